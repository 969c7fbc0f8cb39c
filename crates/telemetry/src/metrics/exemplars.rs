//! Exemplars: beside each bucket of a histogram the id of a trace that fell into it, so that a graph leads to a request.
//!
//! The exporter keeps none, so they are kept here and joined to its page by [`open_metrics`](super::open_metrics). Each
//! bucket holds its newest one, and nothing is kept of a request without a trace: what they take is bounded by the number of
//! buckets, and with traces off it is an empty list a series.

use crate::traces::Trace;
use metrics::{Histogram, histogram};
use opentelemetry::trace::TraceId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A histogram of durations whose buckets can name a trace. Equal ones, as of two gateways in one process, are one.
pub struct TracedHistogram {
    histogram: Histogram,
    series: Arc<Series>,
}

impl TracedHistogram {
    /// `buckets` are those that the catalogue has for `name`: their upper bounds, in seconds.
    #[must_use]
    pub fn new(name: &'static str, buckets: &'static [f64], labels: &[(&'static str, &'static str)]) -> Self {
        let histogram = histogram!(name, labels);
        let series = Arc::clone(
            SERIES
                .lock()
                .entry(start_of_bucket(name, labels))
                .or_insert_with(|| Arc::new(Series { bounds: buckets, newest: Mutex::default() })),
        );
        Self { histogram, series }
    }

    /// Counts a duration.
    #[inline]
    pub fn record(&self, took: Duration) {
        self.histogram.record(took);
    }

    /// Names `trace` beside the bucket of a duration that was counted before. Only for a trace that is on its way to the
    /// collector: a reader will look for it there.
    pub fn name(&self, took: Duration, trace: &Trace) {
        self.series.set(Exemplar { trace: trace.id(), value: took.as_secs_f64(), at: SystemTime::now() });
    }
}

/// The series of all traced histograms, by what their buckets' lines begin with. Their labels are words of this program,
/// so there are as many as the catalogues allow.
static SERIES: Mutex<BTreeMap<String, Arc<Series>>> = Mutex::new(BTreeMap::new());

/// As the exporter writes it: the bucket's own label stands last.
fn start_of_bucket(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: String = labels.iter().map(|(label, value)| format!("{label}=\"{value}\",")).collect();
    format!("{name}_bucket{{{labels}")
}

struct Series {
    bounds: &'static [f64],
    /// One place for each bound and one for what is above; none of them before the first exemplar.
    newest: Mutex<Vec<Option<Exemplar>>>,
}

impl Series {
    fn set(&self, exemplar: Exemplar) {
        let mut newest = self.newest.lock();
        newest.resize(self.bounds.len() + 1, None);
        newest[self.bounds.partition_point(|bound| *bound < exemplar.value)] = Some(exemplar);
    }
}

/// A request that fell into a bucket.
#[derive(Clone, Copy, Debug)]
struct Exemplar {
    trace: TraceId,
    /// In seconds.
    value: f64,
    at: SystemTime,
}

/// What stands beside buckets at one moment.
pub(super) struct Exemplars(BTreeMap<String, Vec<Beside>>);

/// A bucket's upper bound, and its exemplar as OpenMetrics writes it.
struct Beside(f64, String);

impl Exemplars {
    /// Take it before the page is rendered: then each exemplar has been counted there.
    pub(super) fn now() -> Self {
        let all = SERIES.lock();
        let known = all.iter().map(|(start, series)| (start.clone(), series.beside()));
        Self(known.filter(|(_, beside)| !beside.is_empty()).collect())
    }

    /// The exemplar of the bucket whose line of the exporter's page this is.
    pub(super) fn of_line(&self, line: &str) -> Option<&str> {
        let (start, rest) = line.split_once("le=\"")?;
        let series = self.0.get(start)?;
        let bound: f64 = rest.split_once('"')?.0.parse().ok()?; // "+Inf" too
        series.iter().find(|Beside(of, _)| *of == bound).map(|Beside(_, text)| text.as_str())
    }
}

impl Series {
    fn beside(&self) -> Vec<Beside> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let newest = self.newest.lock();
        bounds
            .zip(newest.iter())
            .filter_map(|(bound, one)| Some(Beside(bound, one.as_ref()?.text())))
            .collect()
    }
}

impl Exemplar {
    /// The time is in whole seconds: enough for a graph, and no finer than the live page.
    fn text(&self) -> String {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        format!("# {{trace_id=\"{}\"}} {} {at}", self.trace, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exemplar(trace: u128, value: f64) -> Exemplar {
        Exemplar { trace: trace.into(), value, at: UNIX_EPOCH + Duration::from_millis(1_700_000_000_900) }
    }

    #[test]
    fn each_bucket_keeps_its_newest() {
        let series = Series { bounds: &[0.001, 0.01], newest: Mutex::default() };
        assert!(series.beside().is_empty());
        for (trace, value) in [(1, 0.001), (2, 0.0005), (3, 0.011), (4, 7.0)] {
            series.set(exemplar(trace, value));
        }
        let beside: Vec<_> = series.beside().into_iter().map(|Beside(bound, text)| (bound, text)).collect();
        let text = |id: u8, value: &str| format!("# {{trace_id=\"{id:032x}\"}} {value} 1700000000");
        assert_eq!(beside, [(0.001, text(2, "0.0005")), (f64::INFINITY, text(4, "7"))]);
        assert_eq!(series.newest.lock().len(), 3, "one place a bucket");
    }

    #[test]
    fn a_line_finds_the_exemplar_of_its_bucket_alone() {
        let start = start_of_bucket("x_seconds", &[("stage", "get"), ("result", "spent")]);
        let beside = vec![Beside(0.5, "half".into()), Beside(f64::INFINITY, "more".into())];
        let exemplars = Exemplars([(start, beside)].into());
        let line = |labels: &str| format!("x_seconds_bucket{{{labels}}} 3");
        for (labels, found) in [
            (r#"stage="get",result="spent",le="0.5""#, Some("half")),
            (r#"stage="get",result="spent",le="+Inf""#, Some("more")),
            (r#"stage="get",result="spent",le="1""#, None),
            (r#"stage="add",result="spent",le="0.5""#, None),
            (r#"result="spent",le="0.5""#, None),
        ] {
            assert_eq!(exemplars.of_line(&line(labels)), found, "{labels}");
        }
        assert_eq!(exemplars.of_line("x_seconds_sum 3"), None);
    }
}
