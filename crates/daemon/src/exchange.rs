//! Activity of a connection: the answer in progress, and the client's reading.
//!
//! An [`Exchange`] is shared by the stream that hyper writes to ([`ClientStream`](crate::client_stream::ClientStream)) and the
//! service that answers. An answer is in progress from [`Exchange::begin`] until its body is dropped and hyper, having written
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

/// Phases of an answer, of which at most one bit is set.
const ANSWERING: u8 = 1;
const FLUSHING: u8 = 2;
const PHASES: u8 = ANSWERING | FLUSHING;
/// Flags: the answer is streamed, the client leaves it unread, the connection was displaced, it is never displaced, interim
/// answers are pending, a request is being received.
const STREAMING: u8 = 4;
const UNREAD: u8 = 8;
const DISPLACED: u8 = 16;
const KEPT: u8 = 32;
const INTERIM: u8 = 64;
const RECEIVING: u8 = 128;

/// Multiple of [`Patience::answer`] within which a whole answer must be read, even if it makes progress: a client that reads a
/// few bytes now and then must not hold its connection indefinitely.
const WHOLE: u32 = 4;
/// Longer than any deadline, and short enough to be added to any time.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Time limits on a client that leaves written data unread.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Maximum pause in reading an ordinary answer. The whole answer must be read within four times this.
    pub answer: Duration,
    /// Maximum pause in reading a [streamed](Exchange::stream) answer, whose duration is unlimited.
    pub stream: Duration,
}

/// State of one connection. Clones share it.
///
/// The stream and the service of a connection are polled by one task, so waiting for each other needs only the wake-up of that
/// task. A connection that needs the place of this one may belong to another task.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<State>);

#[derive(Debug)]
struct State {
    patience: Patience,
    bits: AtomicU8,
    displaced: Notify,
    interim: Mutex<Interim>,
}

/// Interim answers (1xx) to the request in progress that its connection's task has not taken yet.
#[derive(Debug, Default)]
struct Interim {
    answers: Vec<Response<()>>,
    task: Option<Waker>,
}

/// Guard that marks an answer as in progress until it is dropped; stored with the answer's body.
#[derive(Debug)]
pub struct Answering(Exchange);

impl Exchange {
    pub fn new(patience: Patience) -> Self {
        let (bits, displaced, interim) = (AtomicU8::default(), Notify::new(), Mutex::default());
        Self(Arc::new(State { patience, bits, displaced, interim }))
    }

    /// Begins an answer once the client has read the previous ones: however far hyper reads ahead, at most one answer is buffered
    /// for a client that does not read.
    ///
    /// Never returns once the connection is [displaced](Exchange::displaced).
    pub async fn begin(&self) -> Answering {
        poll_fn(|_| {
            let begun = self.change(|bits| {
                let begun = bits & !(PHASES | STREAMING | RECEIVING) | ANSWERING;
                (bits & (UNREAD | DISPLACED) == 0).then_some(begun)
            });
            if begun { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Answering(self.clone())
    }

    /// Begins an answer on a connection with many concurrent answers; `None` if it was [displaced](Exchange::displaced). Such a
    /// connection bounds its answers by other means.
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
    /// call this.
    pub fn send_interim(&self, answer: Response<()>) {
        let mut interim = self.0.interim.lock();
        interim.answers.push(answer);
        self.change(|bits| Some(bits | INTERIM));
        interim.task.take().into_iter().for_each(Waker::wake);
    }

    /// Runs a service's `work`, and registers the connection's task to be woken for interim answers from other tasks.
    pub async fn with_interim<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.0.interim.lock().task = Some(cx.waker().clone());
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Takes the pending interim answers, in order. It is called at each write, so it takes no lock if there are none.
    pub fn take_interim(&self) -> Vec<Response<()>> {
        if self.has(INTERIM) == 0 {
            return Vec::new();
        }
        let mut interim = self.0.interim.lock();
        self.change(|bits| Some(bits & !INTERIM));
        std::mem::take(&mut interim.answers)
    }

    /// `true` if no answer is in progress.
    pub fn is_idle(&self) -> bool {
        self.has(PHASES) == 0
    }

    /// Marks a request as being received, by a service that begins its answer later: until then the connection can be displaced,
    /// and hyper may ask for the request's body (100 Continue).
    pub fn receive(&self) {
        self.change(|bits| Some(bits | RECEIVING));
    }

    /// `true` if hyper has nothing to write for a service.
    pub(crate) fn is_silent(&self) -> bool {
        self.has(PHASES | RECEIVING) == 0
    }

    /// Marks the answer in progress as streamed: it arrives from elsewhere, piece by piece, and may have any length.
    pub fn stream(&self) {
        self.change(|bits| Some(bits | STREAMING));
    }

    /// `true` if a service works on an answer, or the answer's body is incomplete.
    pub(crate) fn is_answering(&self) -> bool {
        self.has(ANSWERING) != 0
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.has(STREAMING) != 0
    }

    /// Protects the connection from displacement: the answer in progress turns it into a tunnel. The protection begins with the
    /// answer, because a client may read the answer before the connection's task continues as the tunnel.
    pub fn keep(&self) {
        self.change(|bits| Some(bits | KEPT));
    }

    /// Completes when the connection must end because a new one needs its place. Cancel safe.
    pub async fn displaced(&self) {
        while self.has(DISPLACED) == 0 {
            self.0.displaced.notified().await;
        }
    }

    /// Displaces a connection without a request in progress, or whose client does not read the answer; `true` if it was
    /// displaced.
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

    /// Records that hyper has written everything, which ends an answer whose body was dropped.
    pub(crate) fn flushed(&self) {
        self.change(|bits| (bits & FLUSHING != 0).then_some(bits & !FLUSHING));
    }

    /// Records that the client leaves written data unread, or reads again. A connection with an unread answer can be displaced.
    pub fn set_unread(&self, unread: bool) {
        self.change(|bits| Some(if unread { bits | UNREAD } else { bits & !UNREAD }));
    }

    fn has(&self, wanted: u8) -> u8 {
        self.0.bits.load(Ordering::Acquire) & wanted
    }

    /// Applies `change`; `true` if it returned a new state.
    fn change(&self, change: impl FnMut(u8) -> Option<u8>) -> bool {
        self.0.bits.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Returns the deadline for reading the next bytes of data that has been waiting since `since`.
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
    /// Wraps the answer's body, which ends the answer when it is dropped.
    pub fn with<B>(self, body: B) -> Answered<B> {
        Answered { body, _answering: self }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.change(|bits| Some(bits & !PHASES | FLUSHING));
    }
}

/// An answer's body that marks the answer as in progress.
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
