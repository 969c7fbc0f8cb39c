//! What a connection is doing: whether an answer is in progress, and whether its client reads.
//!
//! An [`Exchange`] is shared by the stream that hyper writes to ([`Writes`](crate::writes::Writes)) and the service
//! that answers. An answer is in progress from [`Exchange::begin`] until its body is dropped and hyper, having written
//! everything, flushes the stream.

use http_body::{Body, Frame, SizeHint};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const FLUSHING: u8 = 2;

/// An answer that moves must still be taken whole within this many times [`Patience::answer`]: a client that takes a
/// few bytes now and then must not hold its connection for ever.
const WHOLE: u32 = 4;
/// Later than any deadline, and early enough to be added to any time.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How long a client may leave unread what is written to it.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The longest pause in reading an ordinary answer. All of it has to be taken within four times that.
    pub answer: Duration,
    /// The longest pause in reading an answer that is [streamed](Exchange::stream). It may go on for any time.
    pub stream: Duration,
}

/// What one connection is doing. Clones share one state.
///
/// The stream and the service of a connection are polled by one task: waiting for each other needs no wake-up but
/// that of the task.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<State>);

#[derive(Debug)]
struct State {
    patience: Patience,
    phase: AtomicU8,
    streaming: AtomicBool,
    unread: AtomicBool,
}

/// Marks an answer as in progress until it is dropped; it is stored with the answer's body.
#[derive(Debug)]
pub struct Answering(Exchange);

impl Exchange {
    /// A connection without a request.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        let (phase, streaming, unread) = Default::default();
        Self(Arc::new(State { patience, phase, streaming, unread }))
    }

    /// A request has reached the service.
    #[must_use]
    pub fn begin(&self) -> Answering {
        self.0.streaming.store(false, Ordering::Relaxed);
        self.0.phase.store(ANSWERING, Ordering::Relaxed);
        Answering(self.clone())
    }

    /// Whether no answer is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.phase.load(Ordering::Relaxed) == IDLE
    }

    /// The answer in progress comes from elsewhere, piece by piece, and may be of any length.
    pub fn stream(&self) {
        self.0.streaming.store(true, Ordering::Relaxed);
    }

    /// Returns when the client has taken the answers before. hyper reads some requests ahead and keeps the answers that
    /// have no body: without this a client that never reads would make it keep any number of them.
    pub async fn caught_up(&self) {
        poll_fn(|_| if self.0.unread.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) })
            .await;
    }

    /// Runs a service's `work` once the client has taken the answers before.
    pub async fn answer<B>(
        &self,
        work: impl Future<Output = http::Response<B>>,
    ) -> http::Response<Answered<B>> {
        let answering = self.begin();
        self.caught_up().await;
        work.await.map(|body| answering.with(body))
    }

    /// hyper has nothing left to write: an answer that ended is over.
    pub(crate) fn flushed(&self) {
        if self.0.phase.load(Ordering::Relaxed) == FLUSHING {
            self.0.phase.store(IDLE, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_unread(&self, unread: bool) {
        self.0.unread.store(unread, Ordering::Relaxed);
    }

    /// Until when the next bytes have to be taken of what began to wait at `since`.
    pub(crate) fn deadline(&self, since: Instant) -> Instant {
        let (now, patience) = (Instant::now(), self.0.patience);
        let after = |begin: Instant, pause: Duration| begin.checked_add(pause).unwrap_or(now + FAR);
        if self.0.streaming.load(Ordering::Relaxed) {
            return after(now, patience.stream);
        }
        after(now, patience.answer).min(after(since, patience.answer.saturating_mul(WHOLE)))
    }
}

impl Answering {
    /// The answer's body, which ends the answer when it is dropped.
    pub fn with<B>(self, body: B) -> Answered<B> {
        Answered { body, _answering: self }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.phase.store(FLUSHING, Ordering::Relaxed);
    }
}

/// An answer's body, and with it the mark that the answer is in progress.
#[derive(Debug)]
pub struct Answered<B> {
    body: B,
    _answering: Answering,
}

impl<B: Body + Unpin> Body for Answered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
