//! The stream under a connection: it reads in turns, so that the tasks of the connection's streams take what came.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// How many bytes are read in one turn: a frame of one byte takes ten, and a hundred until its task has taken it.
const TURN: usize = 64 << 10;
/// The same before anything was paid: a request takes a dozen, and ten thousand until its task has refused it.
const UNPAID_TURN: usize = 256;
/// How many bytes a connection may bring for streams that have not been admitted, before it is read on.
const UNPAID: usize = 64 << 10;

/// What a connection has brought for streams that nothing was read from yet, in bytes. Above 64 KiB the connection is not read:
/// whoever has no token is about to be refused, and what came is dropped. Clones share one count.
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
    /// Of a connection whose streams are all admitted.
    #[must_use]
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

    /// The connection has paid: the windows of its streams are bound enough.
    pub fn lift(&self) {
        let mut count = self.0.lock();
        count.is_lifted = true;
        count.wake_if_low();
    }

    /// Holds reading, so that what was read can be taken from `h2`, which reads whenever it is polled; then lets it go on. Only
    /// between two polls of one turn: the reader is not woken.
    pub fn hold(&self, is_held: bool) {
        self.0.lock().is_held = is_held;
    }

    /// Ready when the connection may be read, with what may be read in a turn.
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

/// A connection's stream, of which each turn reads 64 KiB at most, 256 bytes before anything was paid, and nothing while too much
/// of it is [`Unpaid`].
#[derive(Debug)]
pub struct Turns<S> {
    stream: S,
    read: usize,
    unpaid: Unpaid,
}

impl<S> Turns<S> {
    /// Reads `stream` in turns.
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
