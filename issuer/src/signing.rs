//! The signing pool: a fixed number of threads, and a fixed number of places to wait, in which accounts take turns.
//!
//! A signature takes hundreds of microseconds of CPU (measured by `cargo bench -p postern-issuer`). On the runtime it
//! would delay every other connection; in an unbounded queue a burst would be answered long after its clients have gone.

use crate::recorder::{Part, Queued, Recorder};
use parking_lot::{Condvar, Mutex};
use postern_daemon::fair_queue::{Claim, FairQueue, Ticket};
use postern_token::{
    AmortizedRequest, AmortizedResponse, SignError, SigningKey, TokenRequest, TokenResponse, TokenType,
};
use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::sync::oneshot;

/// Threads that sign. When the pool is dropped, they sign what waits, and end.
#[derive(Debug)]
pub(crate) struct SigningPool {
    shared: Arc<Shared>,
}

/// The state that the threads share with submitters.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when a request waits, or the pool is dropped.
    changed: Condvar,
    /// Maximum number of requests that are signed or wait.
    places: usize,
    recorder: Arc<Recorder>,
}

#[derive(Debug, Default)]
struct State {
    waiting: FairQueue<Job>,
    signing: usize,
    is_closed: bool,
}

/// The requests to sign.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Token(TokenRequest),
    /// Signed as a whole, since one proof covers all.
    Batch(AmortizedRequest),
}

impl Work {
    /// Returns the cost in signatures of type 2, as measured (`crates/token/benches/README.md`, "The private types").
    fn cost(&self) -> NonZeroU32 {
        let cost = match (self, self.key_name().0) {
            (Self::Token(_), TokenType::VoprfP384) => 16,
            (Self::Token(_), _) => 1,
            (Self::Batch(_), TokenType::VoprfP384) => 7 * self.count(),
            (Self::Batch(_), _) => self.count() / 3,
        };
        u32::try_from(cost).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
    }

    /// Returns the number of requested tokens.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Token(_) => 1,
            Self::Batch(request) => request.count(),
        }
    }

    /// Returns the token type and the truncated id by which the request names its key.
    pub(crate) fn key_name(&self) -> (TokenType, u8) {
        match self {
            Self::Token(request) => (request.token_type(), request.truncated_token_key_id),
            Self::Batch(request) => (request.token_type(), request.truncated_token_key_id),
        }
    }
}

/// The responses to `Work`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Token(TokenResponse),
    Batch(AmortizedResponse),
}

/// A request in the queue. `signed` is called once the signature is made, and dropped uncalled otherwise.
struct Job {
    key: Arc<SigningKey>,
    work: Work,
    signed: Box<dyn FnOnce() + Send>,
    answer: oneshot::Sender<Result<Done, Unsigned>>,
    since: Instant,
    queued: Queued,
}

/// A reason that there is no signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsigned {
    /// Every thread is busy and every place to wait is taken.
    Full,
    /// As `Full`, and no caller has more requests waiting than this one.
    Crowded,
    /// The key does not sign this request.
    Refused(SignError),
    /// The thread panicked, or the pool is gone.
    Failed,
}

/// A pending signature. A request that still waits leaves the queue when this is dropped.
#[derive(Debug)]
pub(crate) struct Signature {
    answer: oneshot::Receiver<Result<Done, Unsigned>>,
    ticket: Ticket,
    shared: Arc<Shared>,
}

impl SigningPool {
    /// Starts a pool of `threads`, by default one for each core, with `queue` places to wait.
    pub(crate) fn new(
        threads: Option<NonZeroUsize>,
        queue: usize,
        recorder: Arc<Recorder>,
    ) -> io::Result<Self> {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let count = threads.unwrap_or_else(cores).get();
        let places = count.saturating_add(queue);
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), places, recorder };
        let pool = Self { shared: Arc::new(shared) };
        for index in 0..count {
            let shared = pool.shared.clone();
            std::thread::Builder::new().name(format!("sign-{index}")).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Sets the metric of the queue's limit to this pool's.
    pub(crate) fn show_places(&self) {
        self.shared.recorder.set_queue_limit(self.shared.places);
    }

    /// Submits `work`, which is signed when its turn comes among those of all callers. The caller of `claim` is one account, or
    /// 0.
    pub(crate) fn submit(
        &self,
        claim: impl Into<Claim>,
        key: Arc<SigningKey>,
        work: Work,
        signed: impl FnOnce() + Send + 'static,
    ) -> Result<Signature, Unsigned> {
        let claim @ Claim { caller, .. } = claim.into();
        let (answer, signature) = oneshot::channel();
        let signed = Box::new(signed);
        let mut state = self.shared.state.lock();
        let mut crowded = None;
        if state.waiting.len() + state.signing >= self.shared.places {
            crowded = state.waiting.make_room(caller);
            if crowded.is_none() {
                let is_own = caller != 0 && state.waiting.len_of(caller) > 1;
                return Err(if is_own { Unsigned::Crowded } else { Unsigned::Full });
            }
        }
        let queued = self.shared.recorder.queued();
        let job = Job { key, work, signed, answer, since: Instant::now(), queued };
        let ticket = state.waiting.push(claim, job.work.cost(), job);
        drop(state);
        self.shared.changed.notify_one();
        if let Some(job) = crowded {
            job.end(Err(Unsigned::Crowded));
        }
        Ok(Signature { answer: signature, ticket, shared: self.shared.clone() })
    }
}

impl Drop for SigningPool {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        while let Some(mut job) = self.next() {
            let signed = std::mem::replace(&mut job.signed, Box::new(|| {}));
            let result = catch_unwind(AssertUnwindSafe(|| job.sign(signed, &self.recorder)));
            self.state.lock().signing -= 1;
            job.end(result.unwrap_or_else(|_| {
                tracing::error!(
                    "a signing thread panicked: its request is answered 500, others go on. Please report this line"
                );
                Err(Unsigned::Failed)
            }));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop() {
                state.signing += 1;
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

impl Job {
    fn sign(&self, signed: Box<dyn FnOnce() + Send>, recorder: &Recorder) -> Result<Done, Unsigned> {
        let started = Instant::now();
        recorder.took(Part::Wait, started - self.since);
        let done = match &self.work {
            Work::Token(request) => self.key.sign(request).map(Done::Token),
            Work::Batch(request) => self.key.sign_batch(request).map(Done::Batch),
        };
        let done = done.map_err(Unsigned::Refused)?;
        recorder.signed(self.key.token_type(), self.work.count(), started.elapsed());
        signed();
        Ok(done)
    }

    fn end(self, result: Result<Done, Unsigned>) {
        let Self { signed, answer, queued, .. } = self;
        drop((signed, queued)); // not later: a client that retries immediately must find its place and its quota
        let _ = answer.send(result); // the client may have disconnected
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Future for Signature {
    type Output = Result<Done, Unsigned>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.answer).poll(context)).unwrap_or(Err(Unsigned::Failed)))
    }
}

impl Drop for Signature {
    fn drop(&mut self) {
        let left = self.shared.state.lock().waiting.remove(self.ticket);
        drop(left); // with the charge, which has another lock, after the queue is unlocked
    }
}

#[cfg(test)]
mod tests;
