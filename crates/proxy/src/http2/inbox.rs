//! What a stream has received and its reader has not taken.

use super::has_padded_value;
use super::turns::Unpaid;
use bytes::{Buf, Bytes};
use h2::RecvStream;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The receiving side of a stream. Clones share it; all are used by one task, which [keeps](Inbox::keep_taking) it taking.
#[derive(Clone, Debug)]
pub struct Inbox(Arc<Mutex<Received>>);

#[derive(Debug)]
struct Received {
    stream: RecvStream,
    /// What came before this turn, copied: a frame of one byte holds the buffer that it was read into.
    kept: VecDeque<u8>,
    /// What came in this turn.
    fresh: VecDeque<Bytes>,
    end: Option<End>,
    /// Until it is paid, the bytes count as the connection's: whoever sent them may have nothing to pay with.
    unpaid: Option<Share>,
    /// Something was read, or waited for.
    is_wanted: bool,
}

/// How many bytes a stream has of its connection's [`Unpaid`]; they are given back when it is dropped.
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

#[derive(Clone, Copy, Debug)]
enum End {
    /// The peer's end of the stream.
    Ended,
    /// The stream was reset, or its connection is gone.
    Broken(io::ErrorKind),
}

impl Inbox {
    /// An inbox for a stream. Until it is [paid](Inbox::paid), what it holds is counted in `unpaid`, if that is given.
    #[must_use]
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

    /// Runs `work`, and takes what arrives meanwhile, whether `work` reads it or not.
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

    /// The next bytes, at most `most`, through `read`; none at the peer's end.
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
                    Some(End::Ended) => Poll::Ready(Ok(0)),
                    Some(End::Broken(kind)) => Poll::Ready(Err(kind.into())),
                    None => Poll::Pending, // `take` has left the task's waker
                };
            }
        };
        received.advance(taken);
        Poll::Ready(Ok(taken))
    }

    /// Reads into `buf`.
    pub(super) fn poll_read(&self, buf: &mut tokio::io::ReadBuf<'_>) -> Poll<io::Result<()>> {
        while buf.remaining() > 0 {
            match self.poll_with(buf.remaining(), |bytes| buf.put_slice(bytes)) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(_)) => {}
                _ if !buf.filled().is_empty() => break,
                other => return other.map_ok(|_| ()),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next piece; `None` at the peer's end.
    ///
    /// # Errors
    /// When the stream was reset or its connection is gone.
    pub fn poll_piece(&self) -> Poll<Option<io::Result<Bytes>>> {
        const MOST: usize = 16 << 10;
        let mut piece = Bytes::new();
        self.poll_with(MOST, |bytes| piece = Bytes::copy_from_slice(bytes)).map(|read| match read {
            Ok(0) => None,
            Ok(_) => Some(Ok(piece)),
            Err(error) => Some(Err(error)),
        })
    }

    /// Whether anything was read, or waited for.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.lock().is_wanted
    }

    /// The stream's request was admitted: its window is the bound on what it holds.
    pub fn paid(&self) {
        self.0.lock().unpaid = None;
    }

    /// Whether the peer has ended the stream and everything was taken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let received = self.0.lock();
        let has_ended = match received.end {
            Some(end) => matches!(end, End::Ended),
            None => received.stream.is_end_stream(),
        };
        received.next().is_none() && has_ended
    }
}

impl Received {
    /// Takes what the connection has for this stream. It leaves the task's waker for what is still to come.
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
                Poll::Ready(Some(Err(error))) => self.end = Some(End::Broken(kind(&error))),
                Poll::Ready(None) => match self.stream.poll_trailers(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(Some(trailers))) if has_padded_value(&trailers) => {
                        self.end = Some(End::Broken(io::ErrorKind::InvalidData));
                    }
                    Poll::Ready(Ok(_)) => self.end = Some(End::Ended),
                    Poll::Ready(Err(error)) => self.end = Some(End::Broken(kind(&error))),
                },
            }
        }
    }

    /// Copies what was not taken in this turn.
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

    /// The reader took this much of what is [next](Self::next): the peer may send as much again.
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
        // It fails for a stream that is over, which has no use for credit.
        let _ = self.stream.flow_control().release_capacity(taken);
    }
}

/// What became of a stream, in the terms of a socket.
pub(super) fn kind(error: &h2::Error) -> io::ErrorKind {
    match error.get_io() {
        Some(error) => error.kind(),
        None if error.is_reset() => io::ErrorKind::ConnectionReset,
        None => io::ErrorKind::ConnectionAborted,
    }
}
