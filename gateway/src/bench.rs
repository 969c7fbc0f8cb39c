//! Access for benchmarks to the recording of requests, without real requests.

use crate::observe::recorder::{Checking, Recorder};
use crate::observe::timeline::{Stage, Timeline};
use http::{HeaderMap, StatusCode};
use postern_daemon::admin::live::Live;
use postern_spend::{Backend, Embedded};
use postern_telemetry::traces::{Tracer, TracingConfig};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// The recorder of a gateway, for benchmarks.
pub struct Recording {
    recorder: Recorder,
    headers: HeaderMap,
}

impl Recording {
    /// Creates a recorder with a store in `home`. Traces would go to `endpoint`; `sample_ratio` of them are kept at random.
    ///
    /// # Panics
    /// Panics if the store or the exporter cannot be opened.
    #[must_use]
    pub fn new(home: &Path, endpoint: Option<String>, sample_ratio: f64) -> Self {
        let fsync = postern_spend::Fsync::Interval(std::time::Duration::from_secs(1));
        let store = Embedded::open(home, fsync, postern_token::UnixSeconds::now()).expect("the store opens");
        let tracing = TracingConfig { endpoint, sample_ratio, ..TracingConfig::default() };
        let tracer = Tracer::start(&tracing, "bench").expect("the exporter starts");
        let backend = Backend::Embedded(Arc::new(store));
        let recorder = Recorder::new(&Live::default(), &backend, tracer);
        Self { recorder, headers: HeaderMap::new() }
    }

    /// Records one admitted request up to its answer: the sampling decision, the times of every stage, the histograms and
    /// counters of its check, and the decision to keep its trace.
    pub fn request(&self) {
        let (mut timeline, decision) = (Timeline::begin(), self.recorder.sample(&self.headers));
        timeline.time(Stage::Parse, || black_box(()));
        let checking = Checking { recorder: &self.recorder, timeline: &mut timeline };
        for stage in [Stage::Check, Stage::Verify, Stage::Spend] {
            checking.timeline.time(stage, || black_box(()));
        }
        checking.end(None);
        timeline.time(Stage::Dial, || black_box(()));
        drop(self.recorder.answered((None, StatusCode::OK), false, &timeline, &decision, Default::default()));
    }

    /// Performs the tracing work of a request whose trace is not kept: the sampling decision and the decision to keep it.
    pub fn unsampled(&self) {
        let decision = self.recorder.sample(&self.headers);
        black_box(self.recorder.keeps(&decision));
    }

    /// Reads the clock as often as [`Recording::request`] does for the stages.
    pub fn clock(&self) {
        let mut timeline = Timeline::begin();
        for stage in Stage::ALL {
            timeline.time(stage, || black_box(()));
        }
        black_box(&timeline);
    }
}
