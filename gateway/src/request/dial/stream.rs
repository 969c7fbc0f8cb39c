//! The stream to a target.

use postern_proxy::reset::Reset;
use postern_proxy::tunnel::{Received, Tunnel};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The stream to a target.
pub(crate) enum TargetStream {
    /// A connection to it.
    Direct(TcpStream),
    /// A tunnel through a next hop.
    Through(Box<Tunnel>),
}

impl TargetStream {
    /// To be kept taking by the task that reads the stream.
    pub(crate) fn received(&self) -> Received {
        match self {
            Self::Direct(_) => Received::default(),
            Self::Through(tunnel) => tunnel.received(),
        }
    }
}

impl AsyncRead for TargetStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Through(tunnel) => Pin::new(tunnel).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for TargetStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Through(tunnel) => Pin::new(tunnel).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_flush(cx),
            Self::Through(tunnel) => Pin::new(tunnel).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Through(tunnel) => Pin::new(tunnel).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Through(tunnel) => Pin::new(tunnel).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Direct(_))
    }
}

impl Reset for TargetStream {
    fn reset(&self) {
        match self {
            Self::Direct(stream) => stream.reset(),
            Self::Through(tunnel) => tunnel.reset(),
        }
    }

    fn is_delivered(&self) -> bool {
        match self {
            Self::Direct(stream) => stream.is_delivered(),
            Self::Through(tunnel) => tunnel.is_delivered(),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Direct(stream) => stream.socket(),
            Self::Through(tunnel) => tunnel.socket(),
        }
    }
}
