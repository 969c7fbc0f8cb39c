//! Listening sockets, with errors that name the listener and a remedy.

pub mod handed;

use crate::seldom::Seldom;
use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens on `address`, with the socket that systemd [handed over](handed) for it, if any. `what` is the listener's name in the
/// error, such as "the admin listener".
///
/// # Errors
/// The address cannot be bound: in use, not on this machine, or a port below 1024 without the privilege.
pub async fn bind(what: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    let listener = match handed::claim(address) {
        Some(listener) => TcpListener::from_std(listener),
        None => TcpListener::bind(address).await,
    };
    let listener = listener.map_err(|source| BindError { what, address, source })?;
    // Accepted connections inherit it: answers are small and must not wait for a delayed acknowledgement (40 ms).
    let _ = SockRef::from(&listener).set_tcp_nodelay(true); // a failure only makes answers slower
    Ok(listener)
}

/// Returns the connections in the kernel's queue when a drain begins, until the queue is empty, then closes the listener. Closing
/// the listener earlier would reset connections that the kernel has accepted.
pub fn waiting(listener: TcpListener) -> io::Result<impl Iterator<Item = (TcpStream, SocketAddr)>> {
    // Polls the kernel directly: tokio's listener also reports "not ready" if it has not polled the kernel, or has accepted many
    // connections in a row.
    let listener = listener.into_std()?;
    let next = move || loop {
        match listener.accept() {
            Ok(accepted) => return Some(accepted),
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => return None, // the queue is empty, or cannot be read any more
        }
    };
    let usable = |(stream, from): (StdStream, SocketAddr)| {
        stream.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(stream).ok()?, from))
    };
    Ok(std::iter::from_fn(next).filter_map(usable))
}

/// `true` if accepting failed because of the one connection to be accepted. All other errors persist, and must not cause a busy
/// loop.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Waits after a failed accept, before the next attempt. Lack of descriptors or memory persists, so it is logged at most once a
/// second for all listeners together. Returns immediately after an error of one connection. `what` is the listener's name.
pub async fn pause(what: &str, error: &io::Error) {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(1));
    if is_of_one_connection(error) {
        return;
    }
    if REPORTED.due(Instant::now()).is_some() {
        tracing::warn!(
            "{what} cannot accept connections: {error}; it tries again. If this persists, raise the limit of open files \
             (LimitNOFILE, ulimit -Hn), or add memory"
        );
    }
    sleep(ACCEPT_PAUSE).await;
}

/// A listener that could not be opened. Daemons exit with [`crate::exit::RUNTIME`].
#[derive(Debug, thiserror::Error)]
#[error("cannot open {what} on {address}: {source}; {}", advice(.source))]
pub struct BindError {
    pub what: &'static str,
    pub address: SocketAddr,
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: stop it or choose another port",
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: choose one of its addresses, or 0.0.0.0"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: choose a higher port",
        _ => "choose another address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_do_not_wait_for_an_acknowledgement() {
        let listener = bind("the listener", ([127, 0, 0, 1], 0).into()).await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(listener.accept().await.unwrap().0.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_port_in_use_is_said_in_a_sentence() {
        let first = bind("the first listener", ([127, 0, 0, 1], 0).into()).await.unwrap();
        let taken = first.local_addr().unwrap();
        let error = bind("the admin listener", taken).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot open the admin listener on {taken}: ")), "{error}");
        assert!(error.ends_with("another program listens there: stop it or choose another port"), "{error}");
    }
}
