//! The stream under hyper: a deadline on writes, limited read-ahead, interim answers, which hyper cannot send, and none of the
//! answers that hyper generates. hyper has a deadline for reading a header, but none for a client that does not read its answers.
//!
//! hyper answers an unparsable request with a bare status line and closes. Every refusal by Postern has a body with advice, so
//! bytes that hyper generates are discarded, and the connection's task writes the last answer once hyper has returned the
//! connection. [`Exchange`] distinguishes the two: while no answer is in progress, hyper has no answer of the service to write.

use crate::exchange::Exchange;
use crate::http;
use bytes::{Buf, Bytes};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Maximum read of request heads, in bytes. For a client that sends requests ahead, hyper keeps two buffers of the size of one
/// read.
const HEAD_PIECE: usize = 4096;

/// A client's connection. Writes to it fail with [`io::ErrorKind::TimedOut`] if the client leaves them unread for longer than the
/// patience of its [`Exchange`]. While a write waits, nothing is read, unless the answer is streamed.
///
/// Most answers are written at once: only a write that has to wait costs a timer.
#[derive(Debug)]
pub struct ClientStream<S> {
    /// Bytes that were read before.
    early: Bytes,
    stream: S,
    exchange: Exchange,
    /// `true` if writes are discarded while no answer is in progress.
    answers_only: bool,
    /// Unwritten heads of interim answers.
    interim: Bytes,
    waiting: Option<Waiting>,
}

/// A write that waits for the peer to read.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl<S> ClientStream<S> {
    /// Limits the writes to `stream`, and the reads from it.
    pub fn new(stream: S, exchange: Exchange) -> Self {
        Self::after(Bytes::new(), stream, exchange)
    }

    /// Limits as [`ClientStream::new`] does a stream from which `early` was read before, and returns that first.
    pub fn after(early: Bytes, stream: S, exchange: Exchange) -> Self {
        Self { early, stream, exchange, answers_only: false, interim: Bytes::new(), waiting: None }
    }

    /// Limits as [`ClientStream::new`] does, and discards writes while `exchange` has no answer in progress.
    pub fn answers_only(stream: S, exchange: Exchange) -> Self {
        Self { answers_only: true, ..Self::new(stream, exchange) }
    }

    /// Returns the stream without limits: a tunnel has others.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// `true` if bytes to be written now are not those of an answer.
    fn discards(&self) -> bool {
        self.answers_only && self.exchange.is_silent()
    }

    /// Keeps a blocked write waiting until the deadline.
    fn stuck<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let exchange = &self.exchange;
        let waiting = self.waiting.get_or_insert_with(|| {
            exchange.set_unread(true);
            let since = Instant::now();
            Waiting { since, alarm: Box::pin(sleep_until(exchange.deadline(since))) }
        });
        ready!(waiting.alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read what it is sent")))
    }

    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            return self.stuck(cx);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.alarm.as_mut().reset(self.exchange.deadline(waiting.since));
        }
        written
    }

    fn emptied(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if done.is_pending() {
            return self.stuck(cx);
        }
        if self.waiting.take().is_some() {
            self.exchange.set_unread(false);
            cx.waker().wake_by_ref(); // the service may wait for this
        }
        done
    }
}

impl<S: AsyncWrite + Unpin> ClientStream<S> {
    /// Writes the pending interim answers. While a service works on an answer, hyper has nothing unwritten of another message
    /// ([`Exchange::begin`] waits until the previous one is read), and it flushes whenever it has polled the service.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.interim.has_remaining() {
                match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.interim))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => self.interim.advance(written),
                }
            }
            let answers = self.exchange.take_interim();
            if answers.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let heads = answers.iter().flat_map(|answer| http::head(answer.status(), answer.headers()));
            self.interim = heads.collect();
        }
    }

    /// Writes the pending interim answers, then applies `poll` to the stream.
    fn poll_behind_interim<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        ready!(self.poll_interim(cx))?;
        poll(Pin::new(&mut self.stream), cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Further bytes would only be buffered. A streamed answer may belong to a request that is still arriving.
        if self.waiting.is_some() && !self.exchange.is_streaming() {
            return Poll::Pending; // `emptied` wakes the task
        }
        if !self.early.is_empty() {
            let length = self.early.len().min(buf.remaining());
            let rest = self.early.split_off(length);
            buf.put_slice(&std::mem::replace(&mut self.early, rest));
            return Poll::Ready(Ok(()));
        }
        if self.exchange.is_answering() {
            return Pin::new(&mut self.stream).poll_read(cx, buf); // a request's body
        }
        let mut piece = [MaybeUninit::uninit(); HEAD_PIECE];
        let room = buf.remaining().min(piece.len());
        let mut piece = ReadBuf::uninit(&mut piece[..room]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
        buf.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.discards() {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = self.poll_behind_interim(cx, |stream, cx| stream.poll_write(cx, buf));
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.discards() {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        let written = self.poll_behind_interim(cx, |stream, cx| stream.poll_write_vectored(cx, bufs));
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Marks the answer as flushed: hyper flushes once its buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.exchange.flushed();
        let done = self.poll_behind_interim(cx, |stream, cx| stream.poll_flush(cx));
        self.emptied(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.answers_only {
            return Poll::Ready(Ok(())); // the connection's task ends the stream, after the last answer
        }
        let done = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.emptied(cx, done)
    }
}

#[cfg(test)]
mod tests;
