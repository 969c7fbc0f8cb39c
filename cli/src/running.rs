//! Reads the state of a running process from its admin listener.

#[cfg(feature = "servers")]
mod process;

#[cfg(feature = "servers")]
pub(crate) use process::{Running, UNKNOWN, metrics};

use bytes::Bytes;
use http::StatusCode;
use postern_daemon::http::{ClientOptions, chain, client, fetch_limited};
use std::fmt::{self, Display};
use std::time::Duration;

/// Timeout for an answer of a running process.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of an answer, in bytes: a snapshot has some kilobytes, `/readyz` one line per reason.
const LIMIT: usize = 1 << 20;

/// The reason for a missing or unusable answer.
pub(crate) struct NoAnswer {
    pub(crate) nothing_listens: bool,
    reason: String,
}

impl Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Fetches `url` and returns status and body. A status that is not `expected` is an error, and its body is not read.
pub(crate) async fn get(
    url: &str,
    expected: impl Fn(StatusCode) -> bool,
) -> Result<(StatusCode, Bytes), NoAnswer> {
    let no_answer = |reason: String| NoAnswer { nothing_listens: false, reason };
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    let client = client(&options).map_err(|error| no_answer(error.to_string()))?;
    let answer = client
        .get(url)
        .send()
        .await
        .map_err(|error| NoAnswer { nothing_listens: error.is_connect(), reason: chain(&error) })?;
    let status = answer.status();
    if !expected(status) {
        return Err(no_answer(format!("the answer is {status}")));
    }
    let body = fetch_limited(answer, LIMIT).await.map_err(|error| no_answer(error.to_string()))?;
    Ok((status, body))
}
