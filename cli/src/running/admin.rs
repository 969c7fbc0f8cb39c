//! The answers of an admin listener.

use bytes::Bytes;
use http::StatusCode;
use postern_daemon::http::{ClientOptions, chain, client, fetch_limited};
use std::fmt::{self, Display};
use std::time::Duration;

/// How long a running process may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The metric whose label is the version that runs.
const BUILD_INFO: &str = "postern_build_info{version=\"";
/// The most that is read of an answer: a snapshot has some kilobytes, `/readyz` a line a reason.
const LIMIT: usize = 1 << 20;

/// Why there is no answer to use.
pub(crate) struct NoAnswer {
    pub(crate) nothing_listens: bool,
    reason: String,
}

impl Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Fetches `url`: status and body. An answer whose status is not `expected` is an error, and its body is not read.
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

/// The answer of `/readyz`; none when nothing listens.
pub(crate) async fn readyz(url: &str) -> Result<Option<(StatusCode, String)>, String> {
    let (status, body) =
        match get(&format!("{url}/readyz"), |status| matches!(status.as_u16(), 200 | 503)).await {
            Err(error) if error.nothing_listens => return Ok(None),
            answer => answer.map_err(|error| error.to_string())?,
        };
    let body = String::from_utf8_lossy(&body).into_owned();
    if status == StatusCode::OK && !body.starts_with("ready\n") {
        return Err("the answer to /readyz is not Postern's".to_owned());
    }
    Ok(Some((status, body)))
}

/// The metrics of a process, as text.
pub(crate) async fn metrics(url: &str) -> Option<String> {
    let (_, body) = get(&format!("{url}/metrics"), |status| status == StatusCode::OK).await.ok()?;
    Some(String::from_utf8_lossy(&body).into_owned())
}

/// The version in the metrics of a process.
pub(crate) fn version(metrics: &str) -> Option<String> {
    let rest = metrics.lines().find_map(|line| line.strip_prefix(BUILD_INFO))?;
    rest.split_once('"').map(|(version, _)| version.to_owned())
}
