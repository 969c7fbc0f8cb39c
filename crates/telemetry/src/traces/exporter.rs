//! The exporter: its configuration, a bounded queue, and a thread that sends its spans to the collector.

use crate::catalogue::from_zero;
use crate::own::{self, SpanEnded};
use metrics::{Counter, counter};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use parking_lot::Mutex;
use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, timeout_at};

/// Maximum number of spans in one request to the collector.
const MOST_TOGETHER: usize = 512;
/// Time that the first span of a request waits for others.
const GATHER: Duration = Duration::from_millis(200);
/// Timeout of a request to the collector: longer than the lookup of its name while a name server is down.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Time that the end of the process waits for queued spans.
const PARTING: Duration = Duration::from_secs(1);

/// The sending side. When it is dropped, the thread sends what is queued and ends.
#[derive(Debug)]
pub(super) struct Exporter {
    /// `None` only while dropping.
    queue: Option<Sender<SpanData>>,
    full: Counter,
    /// Disconnected when the thread has ended.
    ended: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Drop for Exporter {
    /// Waits for the last spans, which cover the shutdown: one second at most, if the collector does not accept them.
    fn drop(&mut self) {
        self.queue = None;
        let _ = self.ended.lock().recv_timeout(PARTING);
    }
}

fn spans(ended: SpanEnded) -> Counter {
    from_zero(counter!(own::SPANS, SpanEnded::LABEL => ended.as_str()))
}

impl Exporter {
    pub(super) fn start(endpoint: &str, service: &'static str, queue: usize) -> Result<Self, TracerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, receiver) = channel(queue);
        let endpoint = spans_url(endpoint);
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let (running, ended) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("traces".to_owned()).spawn(move || {
            let _running: std::sync::mpsc::Sender<()> = running; // dropped when the thread ends
            runtime.block_on(async {
                // Created here, because its connections belong to this runtime. It connects once it has spans to send.
                match exporter_to(&endpoint) {
                    Ok(mut exporter) => {
                        exporter.set_resource(&resource(service));
                        let _ = ready.send(Ok(())); // start() waits for it
                        drain(receiver, exporter, &endpoint).await;
                    }
                    Err(reason) => drop(ready.send(Err(reason))),
                }
            });
        })?;
        match started.recv() {
            Ok(Ok(())) => {
                Ok(Self { queue: Some(sender), full: spans(SpanEnded::QueueFull), ended: Mutex::new(ended) })
            }
            Ok(Err(reason)) => Err(TracerError::Config { key: "endpoint", reason }),
            Err(_) => Err(std::io::Error::other("its thread ended at once").into()),
        }
    }

    /// Queues spans as far as there is room, and never waits. Returns `true` if all were queued.
    pub(super) fn send(&self, spans: Vec<SpanData>) -> bool {
        let Some(queue) = &self.queue else { return false };
        let dropped = spans.into_iter().filter_map(|span| queue.try_send(span).err()).count() as u64;
        if dropped > 0 {
            self.full.increment(dropped);
        }
        dropped == 0
    }
}

/// Returns the URL for spans. An endpoint without a path gets that of the specification (OTLP 1.9, "OTLP/HTTP Request").
fn spans_url(endpoint: &str) -> String {
    let has_path = endpoint.parse::<http::Uri>().is_ok_and(|uri| uri.path().len() > 1);
    if has_path { endpoint.to_owned() } else { format!("{}/v1/traces", endpoint.trim_end_matches('/')) }
}

/// Connects directly: a collector is on or next to this machine, and a proxy of the environment would read every span.
fn exporter_to(url: &str) -> Result<opentelemetry_otlp::SpanExporter, String> {
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
    opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(client.map_err(|error| error.to_string())?)
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .with_endpoint(url)
        .with_timeout(PATIENCE)
        .build()
        .map_err(|error| error.to_string())
}

/// Creates the resource without host name, process id or user, which are private and not needed.
fn resource(service: &'static str) -> Resource {
    Resource::builder_empty()
        .with_service_name(service)
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Sends queued spans until the queue is closed. An outage of the collector loses only the spans of that time.
async fn drain(mut queue: Receiver<SpanData>, exporter: impl SpanExporter, endpoint: &str) {
    let (exported, failed) = (spans(SpanEnded::Exported), spans(SpanEnded::Failed));
    let mut away = false;
    loop {
        let batch = gather(&mut queue).await;
        if batch.is_empty() {
            return;
        }
        let number = batch.len() as u64;
        match tokio::time::timeout(PATIENCE, exporter.export(batch)).await {
            Ok(Ok(())) => {
                exported.increment(number);
                if std::mem::take(&mut away) {
                    tracing::info!(%endpoint, "the collector of traces is back");
                }
            }
            ended => {
                failed.increment(number);
                if !std::mem::replace(&mut away, true) {
                    let reason = ended.map_or("no answer in time".to_owned(), |result| {
                        result.err().map_or(String::new(), |error| error.to_string())
                    });
                    tracing::warn!(%endpoint, %reason, "the collector takes no traces, so they are dropped: \
                        start it, or correct its address (tracing.endpoint, --traces), which is the one of OTLP over HTTP, \
                        usually port 4318");
                }
            }
        }
    }
}

/// Returns the next spans, at least one; none once the queue is closed.
async fn gather(queue: &mut Receiver<SpanData>) -> Vec<SpanData> {
    let mut batch = Vec::new();
    if queue.recv_many(&mut batch, MOST_TOGETHER).await == 0 {
        return batch;
    }
    let deadline = Instant::now() + GATHER;
    while batch.len() < MOST_TOGETHER {
        let room = MOST_TOGETHER - batch.len();
        match timeout_at(deadline, queue.recv_many(&mut batch, room)).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    batch
}

#[derive(Debug, thiserror::Error)]
pub enum TracerError {
    #[error("tracing.{key}: {reason}")]
    Config { key: &'static str, reason: String },
    #[error(
        "cannot start the thread that sends traces: {0}; allow more processes (ulimit -u), or leave \
         tracing.endpoint out"
    )]
    Start(#[from] std::io::Error),
}

/// Traces, by OTLP over HTTP to a collector such as Jaeger. Without an endpoint there are none.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TracingConfig {
    /// Collector, such as "http://127.0.0.1:4318", without TLS.
    pub endpoint: Option<String>,
    /// Share of requests traced at random.
    pub sample_ratio: f64,
    /// Check time beyond which a request is traced regardless of `sample_ratio`.
    pub slow: ConfigDuration,
    /// Requests a second traced as slow, failed or sampled upstream.
    pub most_kept: u32,
    /// Trace what `traceparent` samples. Only behind your own upstream: trace ids link a client's requests.
    pub accept_context: bool,
    /// Spans that wait for the collector; more are dropped.
    pub queue: usize,
}

impl Default for TracingConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            sample_ratio: 0.01,
            slow: ConfigDuration::millis(10),
            most_kept: 100,
            accept_context: false,
            queue: 4096,
        }
    }
}

impl TracingConfig {
    pub fn check(&self) -> Result<(), TracerError> {
        let wrong = |key, reason: String| Err(TracerError::Config { key, reason });
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return wrong("sample_ratio", format!("is {}, and must be between 0 and 1", self.sample_ratio));
        }
        if !(1..=1_000_000).contains(&self.queue) {
            return wrong("queue", format!("is {}, and must be between 1 and 1000000", self.queue));
        }
        match &self.endpoint {
            Some(url) if url.contains('@') => wrong(
                "endpoint",
                "holds a name or password, which is not used; write the URL without them".to_owned(),
            ),
            Some(url) if !is_plain_http(url) => wrong(
                "endpoint",
                format!(
                    "{url:?} is not an http:// URL with a host, such as \"http://127.0.0.1:4318\"; to reach a \
                     collector over TLS, run one next to the gateway that forwards spans"
                ),
            ),
            _ => Ok(()),
        }
    }
}

fn is_plain_http(url: &str) -> bool {
    let uri = url.parse::<http::Uri>();
    uri.is_ok_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty()))
}
