//! What benchmarks need of the inside: the recording of a request, without the request.

use crate::config::AccessLog;
use crate::observe::recorder::{Checking, Recorder};
use crate::observe::timeline::{Stage, Timeline};
use http::HeaderMap;
use postern_admin::live::Live;
use postern_spend::{Backend, Embedded};
use postern_telemetry::traces::{Tracer, TracingConfig};
use postern_token::UnixSeconds;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// The recorder of a gateway that has a store in `home`.
pub struct Recording {
    recorder: Recorder,
    headers: HeaderMap,
}

impl Recording {
    /// A recorder; `endpoint` is where traces would go, of which `sample_ratio` are kept at random.
    ///
    /// # Panics
    /// When the store or the exporter cannot be opened.
    #[must_use]
    pub fn new(home: &Path, endpoint: Option<String>, sample_ratio: f64) -> Self {
        let fsync = postern_spend::Fsync::Interval(std::time::Duration::from_secs(1));
        let store = Embedded::open(home, fsync, UnixSeconds::now()).expect("the store opens");
        let tracing = TracingConfig { endpoint, sample_ratio, ..TracingConfig::default() };
        let tracer = Tracer::start(&tracing, "bench").expect("the exporter starts");
        let backend = Backend::Embedded(Arc::new(store));
        let recorder = Recorder::new(&Live::default(), &backend, tracer, AccessLog::Off);
        Self { recorder, headers: HeaderMap::new() }
    }

    /// All that is recorded of one admitted request up to its answer: the sampling decision, the times of every stage, the
    /// histograms and counters of its check, the choice of the trace.
    pub fn request(&self) {
        let (mut timeline, decision) = (Timeline::begin(), self.recorder.sample(&self.headers));
        timeline.time(Stage::Parse, || black_box(()));
        let mut checking = Checking::begin(&self.recorder, &mut timeline);
        for stage in [Stage::Check, Stage::Verify, Stage::Spend] {
            checking.timeline().time(stage, || black_box(()));
        }
        checking.end(None);
        timeline.time(Stage::Dial, || black_box(()));
        drop(self.recorder.answered(None, false, &timeline, &decision, Default::default()));
    }

    /// What tracing costs a request whose trace is not kept: the sampling decision and the choice.
    pub fn unsampled(&self) {
        let decision = self.recorder.sample(&self.headers);
        black_box(self.recorder.keeps(&decision));
    }

    /// Reading the clock, as often as [`Recording::request`] does for the stages.
    pub fn clock(&self) {
        let mut timeline = Timeline::begin();
        for stage in Stage::ALL {
            timeline.time(stage, || black_box(()));
        }
        black_box(&timeline);
    }
}
