//! What an operator chooses about traces.

use super::TracerError;
use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Traces, by OTLP over HTTP to a collector such as Jaeger. Without an endpoint there are none.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TracingConfig {
    /// The collector, such as "http://127.0.0.1:4318". Without it nothing is traced. Spans go to `/v1/traces` there, or to
    /// the path that the URL names.
    pub endpoint: Option<String>,
    /// The share of requests that is traced at random: 0.01 is one of a hundred.
    pub sample_ratio: f64,
    /// A request whose check took longer (parse to verdict, without the target) is kept whatever `sample_ratio`
    /// is; so is one that ended in an error of the gateway's own. Its store commands carry the TCP state of their
    /// connection.
    pub slow: ConfigDuration,
    /// The most requests a second that are kept for being slow or an error, or because an upstream sampled them.
    pub most_kept: u32,
    /// Accept the trace context of requests (`traceparent`, W3C Trace Context) and trace those whose sender sampled
    /// them. Only behind an upstream of your own: a client's trace id would distinguish its requests from those of
    /// others.
    pub accept_context: bool,
    /// The most spans that wait for the collector. Further spans are dropped and counted.
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
    ///
    /// # Errors
    /// [`TracerError::Config`] names the key.
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
                     collector over TLS, run one beside the gateway that passes spans on"
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
