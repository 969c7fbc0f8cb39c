//! Exemplars: for each bucket of a histogram, the id of a trace that fell into it, so that a graph leads to a request.
//!
//! The exporter has no exemplars, so they are kept here and joined to its page by [`rewrite`]. Each
//! bucket holds its newest one, and only requests with a trace have one: memory is bounded by the number of buckets, and with
//! traces off it is an empty list for each series.

use crate::traces::Trace;
use metrics::{Histogram, histogram};
use opentelemetry::trace::TraceId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A histogram of durations with exemplars. Those with the same name and labels, as of two gateways in one process, share one
/// series.
pub struct TracedHistogram {
    histogram: Histogram,
    series: Arc<Series>,
}

impl TracedHistogram {
    /// Creates a histogram. `buckets` are those of `name` in the catalogue: upper bounds, in seconds.
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

    #[inline]
    pub fn record(&self, took: Duration) {
        self.histogram.record(took);
    }

    /// Sets `trace` as the exemplar of the bucket of a duration that is already counted. Only for a trace that is being sent to
    /// the collector, where readers look it up.
    pub fn name(&self, took: Duration, trace: &Trace) {
        self.series.set(Exemplar { trace: trace.id(), value: took.as_secs_f64(), at: SystemTime::now() });
    }
}

/// The series of all traced histograms, by the start of their buckets' lines. Labels are constants of this program, so the
/// catalogues bound the number of series.
static SERIES: Mutex<BTreeMap<String, Arc<Series>>> = Mutex::new(BTreeMap::new());

/// Returns the start of a bucket's line as the exporter writes it: the bucket's own label is last.
fn start_of_bucket(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: String = labels.iter().map(|(label, value)| format!("{label}=\"{value}\",")).collect();
    format!("{name}_bucket{{{labels}")
}

struct Series {
    bounds: &'static [f64],
    /// One slot for each bound and one for values above; empty before the first exemplar.
    newest: Mutex<Vec<Option<Exemplar>>>,
}

impl Series {
    fn set(&self, exemplar: Exemplar) {
        let mut newest = self.newest.lock();
        newest.resize(self.bounds.len() + 1, None);
        newest[self.bounds.partition_point(|bound| *bound < exemplar.value)] = Some(exemplar);
    }
}

/// A traced request that fell into a bucket.
#[derive(Clone, Copy, Debug)]
struct Exemplar {
    trace: TraceId,
    /// In seconds.
    value: f64,
    at: SystemTime,
}

/// A snapshot of all exemplars, by the start of their buckets' lines.
pub(super) struct Exemplars(BTreeMap<String, Vec<OfBucket>>);

/// A bucket's upper bound, and its exemplar as OpenMetrics writes it.
struct OfBucket(f64, String);

impl Exemplars {
    /// Takes a snapshot. To be called before the page is rendered, so that the page has counted each exemplar.
    pub(super) fn now() -> Self {
        let all = SERIES.lock();
        let known = all.iter().map(|(start, series)| (start.clone(), series.by_bucket()));
        Self(known.filter(|(_, by_bucket)| !by_bucket.is_empty()).collect())
    }

    /// Returns the exemplar of the bucket on this line of the exporter's page.
    pub(super) fn of_line(&self, line: &str) -> Option<&str> {
        let (start, rest) = line.split_once("le=\"")?;
        let series = self.0.get(start)?;
        let bound: f64 = rest.split_once('"')?.0.parse().ok()?; // "+Inf" too
        series.iter().find(|OfBucket(of, _)| *of == bound).map(|OfBucket(_, text)| text.as_str())
    }
}

impl Series {
    fn by_bucket(&self) -> Vec<OfBucket> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let newest = self.newest.lock();
        bounds
            .zip(newest.iter())
            .filter_map(|(bound, one)| Some(OfBucket(bound, one.as_ref()?.text())))
            .collect()
    }
}

impl Exemplar {
    /// Formats the exemplar. Its time is in whole seconds: enough for a graph, and no finer than the live page.
    fn text(&self) -> String {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        format!("# {{trace_id=\"{}\"}} {} {at}", self.trace, self.value)
    }
}

/// Suffix of a counter's samples, which the name of its family does not have.
const TOTAL: &str = "_total";

/// Rewrites a page of text format 0.0.4 to OpenMetrics 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), which can
/// carry exemplars; the exporter writes only the older format. A series is the same in both.
pub(super) fn rewrite(page: &str, exemplars: &Exemplars) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    for line in page.lines().filter(|line| !line.is_empty()) {
        // Writing to a String cannot fail.
        let _ = match (line.strip_prefix("# HELP "), line.strip_prefix("# TYPE ")) {
            (Some(help), _) => writeln!(text, "# HELP {}", described(help)),
            (_, Some(kind)) => writeln!(text, "# TYPE {}", typed(kind)),
            _ => match exemplars.of_line(line) {
                Some(exemplar) => writeln!(text, "{line} {exemplar}"),
                None => writeln!(text, "{line}"),
            },
        };
    }
    text.push_str("# EOF\n");
    text
}

/// Escapes quotation marks, which the older format does not.
fn described(help: &str) -> String {
    let (name, sentence) = help.split_once(' ').unwrap_or((help, ""));
    format!("{} {}", family(name), sentence.replace('"', "\\\""))
}

fn typed(kind: &str) -> String {
    match kind.split_once(' ') {
        // A dependency's counter, whose samples OpenMetrics does not allow in a counter family.
        Some((name, "counter")) if !name.ends_with(TOTAL) => format!("{name} unknown"),
        Some((name, kind)) => format!("{} {kind}", family(name)),
        None => kind.to_owned(),
    }
}

fn family(name: &str) -> &str {
    name.strip_suffix(TOTAL).unwrap_or(name)
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
        assert!(series.by_bucket().is_empty());
        for (trace, value) in [(1, 0.001), (2, 0.0005), (3, 0.011), (4, 7.0)] {
            series.set(exemplar(trace, value));
        }
        let by_bucket: Vec<_> =
            series.by_bucket().into_iter().map(|OfBucket(bound, text)| (bound, text)).collect();
        let text = |id: u8, value: &str| format!("# {{trace_id=\"{id:032x}\"}} {value} 1700000000");
        assert_eq!(by_bucket, [(0.001, text(2, "0.0005")), (f64::INFINITY, text(4, "7"))]);
        assert_eq!(series.newest.lock().len(), 3, "one place a bucket");
    }

    #[test]
    fn a_line_finds_the_exemplar_of_its_bucket_alone() {
        let start = start_of_bucket("x_seconds", &[("stage", "get"), ("result", "spent")]);
        let by_bucket = vec![OfBucket(0.5, "half".into()), OfBucket(f64::INFINITY, "more".into())];
        let exemplars = Exemplars([(start, by_bucket)].into());
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

    #[test]
    fn families_are_renamed_and_series_are_not() {
        let page = "# HELP a_total With \"b\" and \\\\.\n# TYPE a_total counter\na_total{b=\"c \\\" d\"} 1\n\n\
                    # TYPE e gauge\ne 0.5\n\n# TYPE f counter\nf 2\n\n\
                    # TYPE g_seconds histogram\ng_seconds_bucket{le=\"+Inf\"} 3\ng_seconds_sum 1\ng_seconds_count 3\n\n";
        let expected = "# HELP a With \\\"b\\\" and \\\\.\n# TYPE a counter\na_total{b=\"c \\\" d\"} 1\n\
                        # TYPE e gauge\ne 0.5\n# TYPE f unknown\nf 2\n\
                        # TYPE g_seconds histogram\ng_seconds_bucket{le=\"+Inf\"} 3\ng_seconds_sum 1\n\
                        g_seconds_count 3\n# EOF\n";
        assert_eq!(rewrite(page, &Exemplars::now()), expected);
    }
}
