//! Addresses of memcached, mcrouter or twemproxy, and connections to them.

use postern_net::Lookup;
use postern_net::{TcpFacts, tcp_info};
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Idle time before keep-alive probes a silent peer, interval between probes, and number of probes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(1), 3);

/// An address of the store: `HOST:PORT`, `[IPv6]:PORT` or `unix:/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or literal address, and a port. A connection looks the name up again, unless another one has just done so.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// The error for a text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address of a memcached: write \"host:port\", \"[ipv6]:port\" or \"unix:/path\"")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(wrong()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = match host.strip_prefix('[') {
            Some(literal) => literal.strip_suffix(']').ok_or_else(wrong)?,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let sound = !host.is_empty() && port != 0 && !host.contains(|c: char| c.is_whitespace() || c == '/');
        if sound { Ok(Self::Tcp { host: host.to_owned(), port }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Tls {
    /// The trusted certificates, and the client certificate if the server requires one.
    pub config: Arc<ClientConfig>,
    /// The name that the certificate must match; `None` uses the host of the address.
    pub server_name: Option<String>,
}

impl Address {
    /// Opens a connection. `TCP_NODELAY` sends segments as they are written, so no command waits for an acknowledgement;
    /// keep-alive detects a peer that vanished. `lookup` belongs to this address. The caller limits the total time, to
    /// `patience`.
    pub(super) async fn connect(
        &self,
        tls: Option<&Tls>,
        lookup: &Lookup,
        patience: Duration,
    ) -> io::Result<Stream> {
        let stream: Stream = match self {
            Self::Tcp { host, port } => {
                let stream = lookup.connect(host, *port, patience).await?;
                stream.set_nodelay(true)?;
                let (idle, interval, retries) = KEEPALIVE;
                let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(retries))?;
                Box::new(stream)
            }
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        let Some(tls) = tls else { return Ok(stream) };
        let name = match (&tls.server_name, self) {
            (Some(name), _) | (None, Self::Tcp { host: name, .. }) => name.clone(),
            (None, Self::Unix(_)) => "localhost".to_owned(),
        };
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        Ok(Box::new(TlsConnector::from(Arc::clone(&tls.config)).connect(name, stream).await?))
    }
}

/// A connection: of the network, or of a simulated one.
pub trait Connection: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin {
    /// Returns the kernel's facts about the connection; `None` if it is not TCP.
    fn tcp_facts(&self) -> Option<TcpFacts> {
        None
    }
}

pub(crate) type Stream = Box<dyn Connection>;

impl Connection for TcpStream {
    fn tcp_facts(&self) -> Option<TcpFacts> {
        tcp_info(&SockRef::from(self)).ok()
    }
}

impl Connection for UnixStream {}

impl Connection for TlsStream<Stream> {
    fn tcp_facts(&self) -> Option<TcpFacts> {
        self.get_ref().0.tcp_facts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in ["127.0.0.1:11211", "[::1]:5000", "mcrouter.internal:5000", "unix:/run/mcrouter.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in
            ["", "host", "host:", ":1", "host:0", "host:65536", "::1:5000", "[::1:5000", "unix:run", "a b:1"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
