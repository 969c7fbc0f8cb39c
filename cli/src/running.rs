//! Reads the state of a running process from its admin listener.

#[cfg(feature = "servers")]
mod process;

#[cfg(feature = "servers")]
pub(crate) use process::{Running, UNKNOWN, Unusable, metrics};

use bytes::Bytes;
use http::StatusCode;
#[cfg(unix)]
use postern_daemon::examination::{has_open, listeners, lock_holder};
use postern_daemon::http::{ClientOptions, chain, client, fetch_limited};
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Returns a sentence about a process of Postern that answers at `admin` and does not have the file open which the daemon with this
/// setting keeps open.
#[cfg(unix)]
pub(crate) fn other_process(admin: SocketAddr, key: &str, file: &Path) -> Option<String> {
    let here = listeners(admin);
    let other = here.first()?;
    if here.iter().any(|process| has_open(*process, file)) {
        return None;
    }
    let holder = match lock_holder(file) {
        Some(process) => format!("process {process} has it"),
        None => "no process has it".to_owned(),
    };
    let file = file.display();
    Some(format!(
        "process {other} answers at {admin} (listen.admin), and does not have {file} ({key}): {holder}"
    ))
}

#[cfg(not(unix))]
pub(crate) fn other_process(_: SocketAddr, _: &str, _: &Path) -> Option<String> {
    None
}

const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of an answer, in bytes: a snapshot has some kilobytes, `/readyz` one line per reason.
const LIMIT: usize = 1 << 20;

/// The reason for a missing or unusable answer.
pub(crate) struct NoAnswer {
    pub(crate) nothing_listens: bool,
    /// `true` if a connection was taken, and no answer came in time.
    pub(crate) hangs: bool,
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
    let no_answer = |reason: String| NoAnswer { nothing_listens: false, hangs: false, reason };
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    let client = client(&options).map_err(|error| no_answer(error.to_string()))?;
    let answer = client.get(url).send().await.map_err(|error| {
        let nothing_listens = error.is_connect();
        NoAnswer { nothing_listens, hangs: !nothing_listens && error.is_timeout(), reason: chain(&error) }
    })?;
    let status = answer.status();
    if !expected(status) {
        return Err(no_answer(format!("the answer is {status}")));
    }
    let body = fetch_limited(answer, LIMIT).await.map_err(|error| no_answer(error.to_string()))?;
    Ok((status, body))
}
