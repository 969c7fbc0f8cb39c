//! The configuration of traces.

use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Rejects invalid values.
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
