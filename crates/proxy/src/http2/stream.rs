//! A stream as a relay's side.

use super::SEND_QUEUE;
use super::inbox::{Inbox, kind};
use crate::reset::Reset;
use bytes::Bytes;
use h2::{Reason, SendStream};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Both directions of a stream whose headers were exchanged. Its task has to [keep its inbox taking](Inbox::keep_taking).
#[derive(Debug)]
pub struct Http2Stream {
    inbox: Inbox,
    outbox: SendStream<Bytes>,
    /// Each piece in the queue holds a clone: the only one means that all were written.
    queued: Arc<()>,
    resets: AtomicBool,
}

/// A piece in the queue.
struct Queued {
    bytes: Box<[u8]>,
    _queued: Arc<()>,
}

impl AsRef<[u8]> for Queued {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Http2Stream {
    /// A stream of what `inbox` receives and `outbox` sends.
    #[must_use]
    pub fn new(inbox: Inbox, outbox: SendStream<Bytes>) -> Self {
        Self { inbox, outbox, queued: Arc::new(()), resets: AtomicBool::new(false) }
    }

    /// How many bytes may be queued now: the peer's window, as far as the queue has room.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        loop {
            let room = self.outbox.capacity();
            if room > 0 {
                return Poll::Ready(Ok(room));
            }
            self.outbox.reserve_capacity(wanted.min(SEND_QUEUE));
            if self.outbox.capacity() > 0 {
                continue;
            }
            match ready!(self.outbox.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(kind(&error).into())),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }

    fn send(&mut self, bytes: Bytes, is_end: bool) -> io::Result<()> {
        // The only other error is a stream that is over.
        self.outbox.send_data(bytes, is_end).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Ready when the peer has reset the stream, or its connection is gone.
    pub fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.outbox.poll_reset(cx).map(|_| ())
    }

    /// Ends the sending side with trailer fields.
    ///
    /// # Errors
    /// When the stream is over.
    pub fn end_with(&mut self, trailers: http::HeaderMap) -> io::Result<()> {
        self.outbox.send_trailers(trailers).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl AsyncRead for Http2Stream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.inbox.poll_read(buf)
    }
}

impl AsyncWrite for Http2Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let room = ready!(self.poll_room(cx, buf.len()))?;
        let bytes = Box::from(&buf[..room.min(buf.len())]);
        let length = room.min(buf.len());
        let queued = Queued { bytes, _queued: Arc::clone(&self.queued) };
        self.send(Bytes::from_owner(queued), false)?;
        Poll::Ready(Ok(length))
    }

    /// The connection's task writes what is queued.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.send(Bytes::new(), true))
    }
}

/// RFC 9113, section 8.5: a TCP connection that broke is a stream error of type CONNECT_ERROR.
impl Reset for Http2Stream {
    fn reset(&self) {
        self.resets.store(true, Ordering::Relaxed);
    }

    /// The connection's task has written all of it: a reset discards only what is queued.
    fn is_delivered(&self) -> bool {
        Arc::strong_count(&self.queued) == 1
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        if self.resets.load(Ordering::Relaxed) {
            self.outbox.send_reset(Reason::CONNECT_ERROR);
        }
    }
}
