//! Where a memcached, mcrouter or twemproxy listens, and connections to it.

use postern_lookup::Lookup;
use postern_tcp_info::{TcpFacts, tcp_info};
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Keep-alive probes a silent peer after this time, and gives up after three more of the interval.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(1), 3);

/// An address of the store: `HOST:PORT`, `[IPv6]:PORT` or `unix:/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or literal address, and a port. The name is resolved at every connect.
    Tcp {
        /// The name or literal address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Why a text is no address.
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

/// How to speak TLS to the store.
#[derive(Clone)]
pub struct Tls {
    /// The trusted certificates, and the client certificate if the server requires one.
    pub config: Arc<ClientConfig>,
    /// The name that the certificate must be for; `None` takes the address's host.
    pub server_name: Option<String>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl Address {
    /// Opens a connection. Segments are sent as they are written (`TCP_NODELAY`), so that no command can wait for an
    /// acknowledgement; keep-alive detects a peer that vanished. `lookup` is of this address. The caller limits the
    /// time, to `patience`.
    pub(super) async fn connect(
        &self,
        tls: Option<&Tls>,
        lookup: &Lookup,
        patience: Duration,
    ) -> io::Result<Stream> {
        let stream = match self {
            Self::Tcp { host, port } => {
                let stream = lookup.connect(host, *port, patience).await?;
                stream.set_nodelay(true)?;
                let (idle, interval, retries) = KEEPALIVE;
                let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(retries))?;
                Stream::Tcp(stream)
            }
            Self::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        let Some(tls) = tls else { return Ok(stream) };
        let name = match (&tls.server_name, self) {
            (Some(name), _) | (None, Self::Tcp { host: name, .. }) => name.clone(),
            (None, Self::Unix(_)) => "localhost".to_owned(),
        };
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let secured = TlsConnector::from(Arc::clone(&tls.config)).connect(name, stream).await?;
        Ok(Stream::Tls(Box::new(secured)))
    }
}

/// A connection of a simulated network.
pub trait Connection: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin> Connection for T {}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<Stream>>),
    Simulated(Box<dyn Connection>),
}

impl Stream {
    /// What the kernel knows of the connection, where it is one of TCP.
    pub(crate) fn tcp_facts(&self) -> Option<TcpFacts> {
        match self {
            Self::Tcp(stream) => tcp_info(&SockRef::from(stream)).ok(),
            Self::Unix(_) | Self::Simulated(_) => None,
            Self::Tls(stream) => stream.get_ref().0.tcp_facts(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Simulated(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Simulated(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Simulated(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Simulated(stream) => Pin::new(stream).poll_shutdown(cx),
        }
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
