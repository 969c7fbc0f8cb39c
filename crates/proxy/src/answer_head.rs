//! A bound on what is read before the head of an answer is complete.
//!
//! hyper skips interim answers (1xx), however many there are, so a target could keep a core busy with them for as long as
//! the wait for its answer may last.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};

/// The most bytes before an answer's head is complete, interim answers and the head itself.
pub const LIMIT: usize = 128 * 1024;

/// A stream on which answers come.
#[derive(Debug)]
pub struct AnswerStream<S> {
    stream: S,
    left: HeadLimit,
}

/// How much may still be read of the stream. A clone is the same limit.
#[derive(Clone, Debug)]
pub struct HeadLimit(Arc<AtomicUsize>);

impl HeadLimit {
    /// The limit of a stream that begins with the head of an answer.
    #[must_use]
    pub fn begun() -> Self {
        Self(Arc::new(AtomicUsize::new(LIMIT)))
    }

    /// A request is about to be sent: the next bytes are of its answer's head.
    pub fn begin(&self) {
        self.0.store(LIMIT, Ordering::Relaxed);
    }

    /// The head is complete: from here on the body is read, without a limit.
    pub fn end(&self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }

    /// Counts bytes that were read.
    fn take(&self, count: usize) {
        let less = |left| (left != usize::MAX).then(|| usize::saturating_sub(left, count));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl<S> AnswerStream<S> {
    /// Reads of `stream` while `left` lets it.
    pub fn new(stream: S, left: HeadLimit) -> Self {
        Self { stream, left }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnswerStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // All that was read before has been looked at, and the head was not in it.
        if self.left.is_used_up() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer has no end of its head",
            )));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.left.take(buffer.filled().len() - before);
        read
    }
}

postern_daemon::writes_through!(AnswerStream);
