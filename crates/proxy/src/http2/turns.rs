//! Reads of a connection in turns, so that the tasks of its streams take the data in between.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Maximum number of bytes read in a turn. A frame of one byte takes ten, and a hundred until its task has taken it.
const TURN: usize = 64 << 10;
/// The same before a token was paid: a request takes a dozen, and ten thousand until its task has refused it.
const UNPAID_TURN: usize = 256;
/// Bytes for streams that were not admitted, above which a connection is not read.
const UNPAID: usize = 64 << 10;

/// Count of the bytes that a connection has received for streams that were not admitted. Above 64 KiB the connection is not read:
/// a request without a token is about to be refused, and its data dropped. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct Unpaid(Arc<Mutex<Count>>);

#[derive(Debug, Default)]
struct Count {
    bytes: usize,
    is_lifted: bool,
    is_held: bool,
    reader: Option<Waker>,
}

impl Count {
    fn is_low(&self) -> bool {
        self.is_lifted || self.bytes <= UNPAID
    }

    fn wake_if_low(&mut self) {
        if self.is_low() {
            self.reader.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl Unpaid {
    /// Returns the count of a connection whose streams are all admitted.
    pub fn lifted() -> Self {
        let unpaid = Self::default();
        unpaid.lift();
        unpaid
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.lock().bytes += bytes;
    }

    pub(super) fn release(&self, bytes: usize) {
        let mut count = self.0.lock();
        count.bytes -= bytes;
        count.wake_if_low();
    }

    /// Lifts the limit once the connection has paid: the windows of its streams are then the bound.
    pub fn lift(&self) {
        let mut count = self.0.lock();
        count.is_lifted = true;
        count.wake_if_low();
    }

    /// Holds reads, or allows them again, so that data can be taken from `h2`, which reads whenever it is polled. Use it only
    /// between two polls of one turn: it does not wake the reader.
    pub fn hold(&self, is_held: bool) {
        self.0.lock().is_held = is_held;
    }

    /// Becomes ready when the connection may be read, and returns the bytes of a turn.
    fn poll_low(&self, cx: &Context<'_>) -> Poll<usize> {
        let mut count = self.0.lock();
        if count.is_held {
            return Poll::Pending;
        }
        if count.is_low() {
            return Poll::Ready(if count.is_lifted { TURN } else { UNPAID_TURN });
        }
        count.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A connection's stream, read in turns of 64 KiB at most, of 256 bytes before a token was paid, and not at all while too many
/// bytes are [`Unpaid`].
#[derive(Debug)]
pub struct Turns<S> {
    stream: S,
    read: usize,
    unpaid: Unpaid,
}

impl<S> Turns<S> {
    pub fn new(stream: S, unpaid: Unpaid) -> Self {
        Self { stream, read: 0, unpaid }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Turns<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let turn = ready!(self.unpaid.poll_low(cx));
        if self.read >= turn {
            self.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = buf.remaining().min(turn - self.read);
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(most));
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut piece);
        let read = piece.filled().len();
        buf.advance(read);
        self.read = if polled.is_pending() { 0 } else { self.read + read };
        polled
    }
}

postern_daemon::writes_through!(Turns);
