//! Metrics: one recorder per process, rendered as Prometheus text by [`Exporter::render`], or as OpenMetrics with exemplars
//! by [`Exporter::render_open_metrics`].

mod exemplars;
mod process;

pub use crate::catalogue::from_zero;
pub use exemplars::TracedHistogram;
pub use process::PROCESS;

use crate::catalogue::{Kind, Metric};
use crate::own;
use exemplars::{Exemplars, rewrite};
use metrics::{Counter, Gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

/// Interval at which samples are folded into their buckets. A histogram keeps every sample until then: 100,000 samples a
/// second, of 16 bytes each, take 8 MB.
const MAINTENANCE: Duration = Duration::from_secs(5);

/// A handle to the process's metrics. Cheap to clone.
#[derive(Clone)]
pub struct Exporter {
    handle: PrometheusHandle,
}

impl Exporter {
    /// Renders every metric in Prometheus text format 0.0.4.
    pub fn render(&self) -> String {
        let mut page = process::record();
        page += &self.handle.render();
        page
    }

    /// Renders every metric in OpenMetrics 1.0, with the [exemplars](TracedHistogram) of kept traces.
    pub fn render_open_metrics(&self) -> String {
        let exemplars = Exemplars::now();
        rewrite(&self.render(), &exemplars)
    }
}

/// Installs the recorder with the buckets and descriptions of `catalogues` and of telemetry's own metrics, and starts
/// its maintenance. Only the first call in a process installs; later calls return the same exporter.
pub fn install(catalogues: &[&[Metric]]) -> Result<Exporter, MetricsError> {
    static INSTALLED: Mutex<Option<Exporter>> = Mutex::new(None);
    let mut installed = INSTALLED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(exporter) = &*installed {
        return Ok(exporter.clone());
    }
    let handle = builder(catalogues)?.install_recorder()?;
    let exporter = Exporter { handle };
    start_maintenance(exporter.handle.clone())?;
    all(catalogues).for_each(Metric::describe);
    process::describe();
    metrics::gauge!(own::BUILD_INFO, own::VERSION.name => env!("CARGO_PKG_VERSION")).set(1.0);
    for level in own::LogLevel::ALL {
        metrics::counter!(own::LOG_LINES_LEFT_OUT, own::LogLevel::LABEL => level.as_str()).increment(0);
    }
    *installed = Some(exporter.clone());
    Ok(exporter)
}

fn all<'a>(catalogues: &'a [&[Metric]]) -> impl Iterator<Item = &'a Metric> {
    own::METRICS.iter().chain(catalogues.iter().copied().flatten())
}

fn builder(catalogues: &[&[Metric]]) -> Result<PrometheusBuilder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in all(catalogues) {
        if let Kind::Histogram(buckets) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
        }
    }
    Ok(builder)
}

/// Starts a thread rather than a task: the recorder outlives any one runtime (tests have many), and without
/// maintenance, memory grows with every sample.
fn start_maintenance(handle: PrometheusHandle) -> Result<(), MetricsError> {
    std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(MAINTENANCE);
            handle.run_upkeep();
        }
    })?;
    Ok(())
}

#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error("cannot install the metrics recorder: {0}")]
    Recorder(#[from] BuildError),
    #[error("cannot start the metrics thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A counter that the live page also shows. The recorder's handles cannot be read, so this type keeps a copy of the value.
pub struct ReadableCounter {
    counter: Counter,
    total: AtomicU64,
}

impl ReadableCounter {
    pub fn new(counter: Counter) -> Self {
        Self { counter: from_zero(counter), total: AtomicU64::new(0) }
    }

    pub fn add(&self, number: u64) {
        if number == 0 {
            return; // avoids a write to memory that all threads share
        }
        self.counter.increment(number);
        self.total.fetch_add(number, Relaxed);
    }

    /// Returns the sum so far.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }
}

/// A gauge of which a copy is kept, as [`ReadableCounter`] does.
pub struct ReadableGauge {
    gauge: Gauge,
    value: AtomicI64,
}

impl ReadableGauge {
    pub fn new(gauge: Gauge) -> Self {
        gauge.set(0.0);
        Self { gauge, value: AtomicI64::new(0) }
    }

    pub fn add(&self, number: i64) {
        self.gauge.increment(number as f64);
        self.value.fetch_add(number, Relaxed);
    }

    pub fn set(&self, number: i64) {
        self.gauge.set(number as f64);
        self.value.store(number, Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.value.load(Relaxed)
    }
}

impl std::fmt::Debug for ReadableCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadableCounter({})", self.total())
    }
}

impl std::fmt::Debug for ReadableGauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadableGauge({})", self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_again_gives_the_same_exporter() {
        let first = install(&[]).unwrap();
        let second = install(&[]).unwrap();
        metrics::gauge!("postern_test").set(3.0);
        assert!(first.render().contains("postern_test 3"));
        assert!(second.render().contains("postern_test 3"));
    }
}
