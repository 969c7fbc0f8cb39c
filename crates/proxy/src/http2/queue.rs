//! What waits to be written.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Counts the pieces that wait to be written. A piece costs some hundred bytes beside its own, so their number needs a bound, too.
#[derive(Clone, Debug, Default)]
pub struct Queue(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    pieces: usize,
    sender: Option<Waker>,
}

/// A piece; it counts until it is dropped.
struct Piece {
    bytes: Box<[u8]>,
    queue: Queue,
}

impl Queue {
    /// A piece that counts until it is written, or dropped with its stream.
    #[must_use]
    pub fn piece(&self, bytes: Box<[u8]>) -> Bytes {
        self.0.lock().pieces += 1;
        Bytes::from_owner(Piece { bytes, queue: self.clone() })
    }

    /// How many pieces wait.
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.0.lock().pieces
    }

    /// Ready when at most `most` pieces wait.
    pub(super) fn poll_at_most(&self, most: usize, cx: &Context<'_>) -> Poll<()> {
        let mut waiting = self.0.lock();
        if waiting.pieces <= most {
            return Poll::Ready(());
        }
        waiting.sender = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut waiting = self.queue.0.lock();
        waiting.pieces -= 1;
        waiting.sender.take().into_iter().for_each(Waker::wake);
    }
}
