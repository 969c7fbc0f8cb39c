//! What hyper would say by itself, unsaid.
//!
//! To a request it cannot parse, hyper answers with a bare status line and closes. Every refusal of ours carries
//! Proxy-Status and a body that says what to do, so bytes that hyper writes on its own account are swallowed here, and
//! the connection's task writes the answer of `deny` once hyper has given the connection back.
//!
//! Whose bytes they are is a matter of turns. It is the service's turn from the moment a request reaches it until its
//! answer's body is dropped and hyper, having written everything, flushes the stream. Outside of a turn, hyper has
//! nothing of ours to write.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const NOBODYS: u8 = 0;
const SERVICES: u8 = 1;
const ENDING: u8 = 2;

/// Whose turn it is to write; shared by a connection's stream and its service.
#[derive(Clone, Default)]
pub(crate) struct Turn(Arc<AtomicU8>);

/// Keeps the service's turn until it is dropped: it travels with the answer's body.
pub(crate) struct Speaking(Turn);

impl Turn {
    /// A request has reached the service.
    pub(crate) fn begin(&self) -> Speaking {
        self.0.store(SERVICES, Ordering::Relaxed);
        Speaking(self.clone())
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        self.0.0.store(ENDING, Ordering::Relaxed);
    }
}

/// A stream that passes on only what is said in the service's turn.
pub(crate) struct Unsaid<S> {
    stream: S,
    turn: Turn,
    heard: bool,
}

impl<S> Unsaid<S> {
    pub(crate) fn new(stream: S, turn: Turn) -> Self {
        Self { stream, turn, heard: false }
    }

    /// Whether bytes of a further request have come since the last answer.
    pub(crate) fn heard(&self) -> bool {
        self.heard
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    fn is_silent(&self) -> bool {
        self.turn.0.load(Ordering::Relaxed) == NOBODYS
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unsaid<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.heard |= buf.filled().len() > before;
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unsaid<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_silent() {
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_silent() {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes the stream when nothing is left in its own buffer, so an ended turn is over here.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.turn.0.load(Ordering::Relaxed) == ENDING {
            self.turn.0.store(NOBODYS, Ordering::Relaxed);
            self.heard = false;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
