//! What a connection is doing: whether an answer is in progress, and whether its client reads.
//!
//! An [`Exchange`] is shared by the stream that hyper writes to ([`ClientStream`](crate::client_stream::ClientStream)) and the service
//! that answers. An answer is in progress from [`Exchange::begin`] until its body is dropped and hyper, having written
//! everything, flushes the stream.

use http::Response;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The bits of a state: what is done with an answer, of which at most one is set,
const ANSWERING: u8 = 1;
const FLUSHING: u8 = 2;
const PHASES: u8 = ANSWERING | FLUSHING;
/// whether it comes from elsewhere, whether the client leaves it unread, whether the place was taken or never is, and whether interim
/// answers are to be sent.
const STREAMING: u8 = 4;
const UNREAD: u8 = 8;
const DISPLACED: u8 = 16;
const KEPT: u8 = 32;
const INTERIM: u8 = 64;

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
/// that of the task. A connection that needs the place of this one may be another task's.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<State>);

#[derive(Debug)]
struct State {
    patience: Patience,
    bits: AtomicU8,
    displaced: Notify,
    interim: Mutex<Interim>,
}

/// Interim answers (1xx) to the request in progress, which its connection's task has not taken yet.
#[derive(Debug, Default)]
struct Interim {
    answers: Vec<Response<()>>,
    task: Option<Waker>,
}

/// Marks an answer as in progress until it is dropped; it is stored with the answer's body.
#[derive(Debug)]
pub struct Answering(Exchange);

impl Exchange {
    /// A connection without a request.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        let (bits, displaced, interim) = (AtomicU8::default(), Notify::new(), Mutex::default());
        Self(Arc::new(State { patience, bits, displaced, interim }))
    }

    /// Begins an answer, as soon as the client has taken the ones before: whatever hyper reads ahead, one answer at most
    /// is kept for a client that does not read.
    ///
    /// Does not return once the connection is [displaced](Exchange::displaced).
    pub async fn begin(&self) -> Answering {
        poll_fn(|_| {
            let begun = self.change(|bits| {
                (bits & (UNREAD | DISPLACED) == 0).then_some(bits & !(PHASES | STREAMING) | ANSWERING)
            });
            if begun { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Answering(self.clone())
    }

    /// Begins what a connection with many answers at once does, if it has not been [displaced](Exchange::displaced): the bound on
    /// its answers is another.
    #[must_use]
    pub fn begin_any(&self) -> Option<Answering> {
        let begun = self.change(|bits| (bits & DISPLACED == 0).then_some(bits & !PHASES | ANSWERING));
        begun.then(|| Answering(self.clone()))
    }

    /// Runs a service's `work` as an answer.
    pub async fn answer<B>(&self, work: impl Future<Output = Response<B>>) -> Response<Answered<B>> {
        let answering = self.begin().await;
        work.await.map(|body| answering.with(body))
    }

    /// Sends an interim answer (1xx) before the one that the service works on: hyper cannot (hyperium/hyper#2565). Any task may
    /// call it.
    pub fn send_interim(&self, answer: Response<()>) {
        let mut interim = self.0.interim.lock();
        interim.answers.push(answer);
        self.change(|bits| Some(bits | INTERIM));
        interim.task.take().into_iter().for_each(Waker::wake);
    }

    /// Runs `work` of the service, and has the connection's task poll when interim answers come from other tasks.
    pub async fn with_interim<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.0.interim.lock().task = Some(cx.waker().clone());
            work.as_mut().poll(cx)
        })
        .await
    }

    /// The interim answers that came, in their order. Without any it takes no lock: it is called at each write.
    pub fn take_interim(&self) -> Vec<Response<()>> {
        if self.has(INTERIM) == 0 {
            return Vec::new();
        }
        let mut interim = self.0.interim.lock();
        self.change(|bits| Some(bits & !INTERIM));
        std::mem::take(&mut interim.answers)
    }

    /// Whether no answer is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.has(PHASES) == 0
    }

    /// The answer in progress comes from elsewhere, piece by piece, and may be of any length.
    pub fn stream(&self) {
        self.change(|bits| Some(bits | STREAMING));
    }

    /// Whether a service works on an answer, or its body is not complete.
    pub(crate) fn is_answering(&self) -> bool {
        self.has(ANSWERING) != 0
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.has(STREAMING) != 0
    }

    /// The connection becomes a tunnel with the answer in progress, and never gives way. From the answer on: a client may
    /// have read it before the connection's task goes on as the tunnel.
    pub fn keep(&self) {
        self.change(|bits| Some(bits | KEPT));
    }

    /// Completes when the connection has to end because a new one needs its place. Cancel safe.
    pub async fn displaced(&self) {
        while self.has(DISPLACED) == 0 {
            self.0.displaced.notified().await;
        }
    }

    /// Takes its place from a connection without a request in progress, or whose client does not read the answer.
    /// Returns whether it had to give way.
    pub(crate) fn displace(&self) -> bool {
        let displaced = self.change(|bits| {
            let is_idle = bits & PHASES == 0;
            let is_unread = bits & (UNREAD | STREAMING) == UNREAD;
            (bits & (DISPLACED | KEPT) == 0 && (is_idle || is_unread)).then_some(bits | DISPLACED)
        });
        if displaced {
            self.0.displaced.notify_one();
        }
        displaced
    }

    /// hyper has nothing left to write: an answer that ended is over.
    pub(crate) fn flushed(&self) {
        self.change(|bits| (bits & FLUSHING != 0).then_some(bits & !FLUSHING));
    }

    /// The client leaves unread what it is sent, or takes it again. An answer that is unread gives way.
    pub fn set_unread(&self, unread: bool) {
        self.change(|bits| Some(if unread { bits | UNREAD } else { bits & !UNREAD }));
    }

    fn has(&self, wanted: u8) -> u8 {
        self.0.bits.load(Ordering::Acquire) & wanted
    }

    /// Whether `change` had a new state.
    fn change(&self, change: impl FnMut(u8) -> Option<u8>) -> bool {
        self.0.bits.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Until when the next bytes have to be taken of what began to wait at `since`.
    pub(crate) fn deadline(&self, since: Instant) -> Instant {
        let (now, patience) = (Instant::now(), self.0.patience);
        let after = |begin: Instant, pause: Duration| begin.checked_add(pause).unwrap_or(now + FAR);
        if self.is_streaming() {
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
        self.0.change(|bits| Some(bits & !PHASES | FLUSHING));
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
