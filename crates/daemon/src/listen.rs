//! Opening a listening socket, with an error that names the listener and states what to do.

pub mod handed;

use crate::seldom::Seldom;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// How long to leave a listener alone when accepting fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens on `address`, with the socket that systemd [handed over](handed) for it, if it did. `what` is the listener's name in the error, such as "the admin listener".
///
/// # Errors
/// When the address cannot be bound: in use, not on this machine, or a port below 1024 without the right to it.
pub async fn bind(what: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    let listener = match handed::claim(address) {
        Some(listener) => TcpListener::from_std(listener),
        None => TcpListener::bind(address).await,
    };
    listener.map_err(|source| BindError { what, address, source })
}

/// The connections that wait in the kernel's queue when a drain begins, until it is empty; then the listener is closed.
/// Closing it at once would reset them, though the kernel has accepted them.
///
/// # Errors
/// When tokio does not give the listener back.
pub fn waiting(listener: TcpListener) -> io::Result<impl Iterator<Item = (TcpStream, SocketAddr)>> {
    // The kernel is polled directly: tokio's listener says "nothing yet" when it has not looked, or has accepted many
    // at once.
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

/// Whether accepting failed because of the one connection that was to be accepted. Everything else lasts, and must not become a
/// busy loop.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// To be awaited when accepting has failed, before the next attempt. Lack of descriptors or memory lasts: it is reported once a
/// second at most, whichever listeners meet it. `what` is the listener's name.
pub async fn pause(what: &str, error: &io::Error) {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(1));
    if is_of_one_connection(error) {
        return;
    }
    if REPORTED.due(Instant::now()).is_some() {
        tracing::warn!(
            "{what} cannot accept connections: {error}; it tries again. If this goes on, raise the limit of open files \
             (LimitNOFILE, ulimit -Hn), or add memory"
        );
    }
    sleep(ACCEPT_PAUSE).await;
}

/// A listener that could not be opened. Daemons exit with [`crate::exit::RUNTIME`] on it.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {what} on {address}: {source}; {}", advice(.source))]
pub struct BindError {
    /// The listener's name.
    pub what: &'static str,
    /// Where it should have listened.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: stop it or choose another port",
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: choose one of its own, or 0.0.0.0"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: choose a higher port",
        _ => "choose another address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_said_in_a_sentence() {
        let first = bind("the first listener", ([127, 0, 0, 1], 0).into()).await.unwrap();
        let taken = first.local_addr().unwrap();
        let error = bind("the admin listener", taken).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot open the admin listener on {taken}: ")), "{error}");
        assert!(error.ends_with("another program listens there: stop it or choose another port"), "{error}");
    }
}
