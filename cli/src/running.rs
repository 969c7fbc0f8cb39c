//! Reads the state of a running process from its admin listener.

#[cfg(feature = "servers")]
mod process;

#[cfg(feature = "servers")]
pub(crate) use process::{Running, UNKNOWN, metrics};

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

/// Time limits of a request, and of its connection.
const PATIENCE: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(2);
/// Maximum size of an answer, in bytes: a snapshot has some kilobytes, `/readyz` one line per reason.
const LIMIT: usize = 1 << 20;

/// The reason for a missing or unusable answer.
pub(crate) enum NoAnswer {
    NothingListens,
    /// Nothing came in time, as from a process that is stopped by a debugger: [`SILENT`] or [`UNREACHABLE`].
    Hangs(&'static str),
    /// It is not the expected one, for this reason.
    Unusable(String),
}

pub(crate) const SILENT: &str = "takes connections, and does not answer";
/// The kernel takes no connection for a process that has accepted none for long.
const UNREACHABLE: &str = "takes no connection in time, because it hangs or a firewall drops packets";

impl Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingListens => f.write_str("nothing listens there"),
            Self::Hangs(how) => write!(f, "it {how}"),
            Self::Unusable(reason) => f.write_str(reason),
        }
    }
}

/// Fetches `url` and returns status and body. A status that is not `expected` is an error, and its body is not read.
pub(crate) async fn get(
    url: &str,
    expected: impl Fn(StatusCode) -> bool,
) -> Result<(StatusCode, Bytes), NoAnswer> {
    let options =
        ClientOptions { timeout: PATIENCE, connect_timeout: Some(CONNECT), ..ClientOptions::default() };
    let client = client(&options).map_err(|error| NoAnswer::Unusable(error.to_string()))?;
    let answer =
        client.get(url).send().await.map_err(|error| match (error.is_connect(), error.is_timeout()) {
            (true, true) => NoAnswer::Hangs(UNREACHABLE),
            (true, false) => NoAnswer::NothingListens,
            (false, true) => NoAnswer::Hangs(SILENT),
            (false, false) => NoAnswer::Unusable(chain(&error)),
        })?;
    let status = answer.status();
    if !expected(status) {
        return Err(NoAnswer::Unusable(format!("the answer is {status}")));
    }
    let body = fetch_limited(answer, LIMIT).await.map_err(|error| NoAnswer::Unusable(error.to_string()))?;
    Ok((status, body))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_process_that_takes_no_connection_differs_from_a_silent_one_and_from_none() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/");
        assert!(matches!(get(&url, |_| true).await, Err(NoAnswer::Hangs(SILENT))));
        let mut queue = Vec::new();
        while let Ok(taken) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queue.push(taken.unwrap());
            assert!(queue.len() < 64, "the queue never fills");
        }
        assert!(matches!(get(&url, |_| true).await, Err(NoAnswer::Hangs(UNREACHABLE))));
        drop((listener, queue));
        assert!(matches!(get(&url, |_| true).await, Err(NoAnswer::NothingListens)));
    }
}
