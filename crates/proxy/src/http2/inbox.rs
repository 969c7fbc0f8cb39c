//! Received data of a stream that its reader has not taken, and reads of a connection in turns, so that the tasks of its streams
//! take the data in between.

use super::has_padded_value;
use bytes::{Buf, Bytes};
use h2::RecvStream;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// The receiving side of a stream. Clones share it. One task uses all of them, and must [keep it taking](Inbox::keep_taking).
#[derive(Clone, Debug)]
pub struct Inbox(Arc<Mutex<Received>>);

#[derive(Debug)]
struct Received {
    stream: RecvStream,
    /// Data of earlier turns, copied: a frame of one byte retains the whole buffer that it was read into.
    kept: VecDeque<u8>,
    /// Data of this turn.
    fresh: VecDeque<Bytes>,
    /// The peer's end of the stream; an error if it was reset, or its connection is gone.
    end: Option<Result<(), io::ErrorKind>>,
    /// Share of the connection's unpaid bytes; `None` once paid. An unpaid sender may have no token.
    unpaid: Option<Share>,
    /// `true` once a read was attempted.
    is_wanted: bool,
}

/// A stream's share of its connection's [`Unpaid`], released when dropped.
#[derive(Debug)]
struct Share {
    bytes: usize,
    of: Unpaid,
}

impl Share {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.of.add(bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.release(self.bytes);
    }
}

impl Inbox {
    /// Creates an inbox for a stream. Its bytes count in `unpaid`, if given, until it is [paid](Inbox::paid).
    pub fn new(stream: RecvStream, unpaid: Option<Unpaid>) -> Self {
        Self(Arc::new(Mutex::new(Received {
            stream,
            kept: VecDeque::new(),
            fresh: VecDeque::new(),
            end: None,
            unpaid: unpaid.map(|of| Share { bytes: 0, of }),
            is_wanted: false,
        })))
    }

    /// Runs `work`, and takes arriving data while it runs, even if `work` does not read.
    pub async fn keep_taking<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.0.lock().take(cx);
            let done = work.as_mut().poll(cx);
            self.0.lock().compact();
            done
        })
        .await
    }

    /// Passes the next bytes, at most `most`, to `read`, and returns their number; 0 at the peer's end.
    fn poll_with(&self, most: usize, read: impl FnOnce(&[u8])) -> Poll<io::Result<usize>> {
        let mut received = self.0.lock();
        received.is_wanted = true;
        let taken = match received.next() {
            Some(bytes) => {
                let bytes = &bytes[..most.min(bytes.len())];
                read(bytes);
                bytes.len()
            }
            None => {
                return match received.end {
                    Some(Ok(())) => Poll::Ready(Ok(0)),
                    Some(Err(kind)) => Poll::Ready(Err(kind.into())),
                    None => Poll::Pending, // `take` has registered the task's waker
                };
            }
        };
        received.advance(taken);
        Poll::Ready(Ok(taken))
    }

    pub(super) fn poll_read(&self, buf: &mut tokio::io::ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        while buf.remaining() > 0 {
            match self.poll_with(buf.remaining(), |bytes| buf.put_slice(bytes)) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(_)) => {}
                _ if buf.filled().len() > before => break,
                other => return other.map_ok(|_| ()),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns `true` once a read was attempted.
    pub fn is_wanted(&self) -> bool {
        self.0.lock().is_wanted
    }

    /// Ends the accounting of unpaid bytes when the stream's request is admitted: its window is then the bound.
    pub fn paid(&self) {
        self.0.lock().unpaid = None;
    }
}

/// The body of a request, in pieces of 16 KiB at most. Its trailer fields are not forwarded (RFC 9110, section 6.5.1), and
/// Content-Length, which `h2` enforces, has its size.
impl Body for Inbox {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        const MOST: usize = 16 << 10;
        let mut piece = Bytes::new();
        self.poll_with(MOST, |bytes| piece = Bytes::copy_from_slice(bytes)).map(|read| match read {
            Ok(0) => None,
            Ok(_) => Some(Ok(Frame::data(piece))),
            Err(error) => Some(Err(error)),
        })
    }

    fn is_end_stream(&self) -> bool {
        let received = self.0.lock();
        let has_ended = match received.end {
            Some(end) => end.is_ok(),
            None => received.stream.is_end_stream(),
        };
        received.next().is_none() && has_ended
    }
}

impl Received {
    /// Takes the data that the connection has for this stream, and registers the task's waker for more.
    fn take(&mut self, cx: &mut Context<'_>) {
        while self.end.is_none() {
            match self.stream.poll_data(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(bytes))) => {
                    if let Some(share) = &mut self.unpaid {
                        share.add(bytes.len());
                    }
                    self.fresh.push_back(bytes);
                }
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(kind(&error))),
                Poll::Ready(None) => match self.stream.poll_trailers(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(Some(trailers))) if has_padded_value(&trailers) => {
                        self.end = Some(Err(io::ErrorKind::InvalidData));
                    }
                    Poll::Ready(Ok(_)) => self.end = Some(Ok(())),
                    Poll::Ready(Err(error)) => self.end = Some(Err(kind(&error))),
                },
            }
        }
    }

    /// Copies the data that was not taken in this turn.
    fn compact(&mut self) {
        for bytes in self.fresh.drain(..) {
            self.kept.extend(&bytes);
        }
    }

    fn next(&self) -> Option<&[u8]> {
        let kept = self.kept.as_slices().0;
        if !kept.is_empty() {
            return Some(kept);
        }
        self.fresh.iter().map(|bytes| &bytes[..]).find(|bytes| !bytes.is_empty())
    }

    /// Removes `taken` bytes of [`next`](Self::next), and allows the peer to send as many again.
    fn advance(&mut self, taken: usize) {
        if self.kept.is_empty() {
            while self.fresh.front().is_some_and(Bytes::is_empty) {
                self.fresh.pop_front();
            }
            if let Some(first) = self.fresh.front_mut() {
                first.advance(taken);
            }
        } else {
            self.kept.drain(..taken);
            if self.kept.is_empty() {
                self.kept = VecDeque::new(); // most tunnels are idle most of the time
            }
        }
        // Fails only for a stream that is over, which needs no credit.
        let _ = self.stream.flow_control().release_capacity(taken);
    }
}

/// Returns the socket error that corresponds to a stream's error.
pub(super) fn kind(error: &h2::Error) -> io::ErrorKind {
    match error.get_io() {
        Some(error) => error.kind(),
        None if error.is_reset() => io::ErrorKind::ConnectionReset,
        None => io::ErrorKind::ConnectionAborted,
    }
}

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
