//! Opening a listening socket, with an error that names the listener and says what to do.

use std::io;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Listens on `address`. `what` is the listener's name in the error, such as "the admin listener".
///
/// # Errors
/// When the address cannot be bound: in use, not on this machine, or a port below 1024 without the right to it.
pub async fn bind(what: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { what, address, source })
}

/// A listener that could not be opened. Daemons exit with [`crate::exit::RUNTIME`] on it.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {what} on {address}: {source}; {}", advice(.source))]
pub struct BindError {
    /// The listener's name.
    pub what: &'static str,
    /// Where it should have listened.
    pub address: SocketAddr,
    /// What the system said.
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
