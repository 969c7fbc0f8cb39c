//! A tunnel through another proxy, as its client sees it: a CONNECT over HTTP/1.1 on a connection of its own ([`ask`]), or on a
//! connection of HTTP/2 that tunnels share ([`Lines`]), and the bytes of both.

mod answer;
mod line;
mod request;
mod shared;

pub use answer::{BODY_LIMIT, Head, HeadError, read_body};
pub use line::{Io, Received};
pub use request::{Asked, Connect, ask};
pub use shared::{Joined, Lines, Made, OnDrain, Seat, Sharing, Vigil};

use crate::http2::{Http2Stream, Inbox, Unsent};
use crate::reset::Reset;
use bytes::{Buf, Bytes};
use line::Taken;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// An open tunnel: bytes that came together with the answer first, then the connection.
pub struct Tunnel {
    early: Bytes,
    io: Box<dyn Io>,
    received: Received,
    _taken: Option<Taken>,
    _held: Option<Box<dyn Send + Sync>>,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tunnel")
    }
}

impl Tunnel {
    /// One with a connection of its own, for whose reader `received` is to be kept taking.
    #[must_use]
    pub fn alone(io: Box<dyn Io>, received: Received) -> Self {
        Self { early: Bytes::new(), io, received, _taken: None, _held: None }
    }

    /// The same, of which `early` came together with the answer.
    #[must_use]
    pub fn after(self, early: Bytes) -> Self {
        Self { early, ..self }
    }

    /// One that shares its connection.
    fn shared(stream: Http2Stream, inbox: Inbox, taken: Taken) -> Self {
        let received = Received::shared(inbox, &taken);
        Self { early: Bytes::new(), io: Box::new(stream), received, _taken: Some(taken), _held: None }
    }

    /// To be kept taking by the task that reads the tunnel.
    #[must_use]
    pub fn received(&self) -> Received {
        self.received.clone()
    }

    /// The tunnel, which keeps `held` for as long as it lives, such as its place in a count.
    #[must_use]
    pub fn holding(self, held: impl Send + Sync + 'static) -> Self {
        Self { _held: Some(Box::new(held)), ..self }
    }
}

impl Reset for Tunnel {
    fn reset(&self) {
        self.io.reset();
    }

    fn is_delivered(&self) -> bool {
        self.io.is_delivered()
    }

    fn socket(&self) -> Option<&TcpStream> {
        if self.early.is_empty() { self.io.socket() } else { None }
    }
}

impl Unsent for Tunnel {
    fn bound_unsent(&self) {
        self.io.bound_unsent();
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..length]);
        self.early.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
