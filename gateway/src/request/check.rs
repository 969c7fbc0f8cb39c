//! The second stage: the double-spend store's hint. A hit is a replay, refused before any cryptography is done or while
//! it is; a miss proves nothing.

use crate::config::Hint;
use crate::observe::timeline::Times;
use crate::request::deny::Refusal;
use crate::request::parse::Presented;
use postern_spend::{Epoch, ExchangeLog, Seen, Store};
use postern_token::SpentKey;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

/// The question whether the store remembers a token.
pub(crate) struct Question<'a> {
    store: &'a Store,
    key: SpentKey,
    epoch: Epoch,
}

/// The answer, and what it took.
pub(crate) struct Replay {
    pub(crate) verdict: Result<(), Refusal>,
    pub(crate) times: Times,
    pub(crate) log: ExchangeLog,
}

/// Work that was done around the question, and when.
pub(crate) struct Done<T> {
    pub(crate) value: T,
    pub(crate) times: Times,
}

impl<T> Done<T> {
    fn of(work: impl FnOnce() -> T) -> Self {
        let from = Instant::now();
        let value = work();
        Self { value, times: (from, Instant::now()) }
    }
}

impl<'a> Question<'a> {
    pub(crate) fn new(store: &'a Store, presented: &Presented) -> Self {
        Self { store, key: *presented.spent_key(), epoch: *presented.epoch() }
    }

    /// Refuses a token that the store remembers.
    ///
    /// A store that gives no hint is asked again by the spend stage, whose verdict counts, so no hint refuses nobody.
    async fn ask(self) -> Replay {
        let (began, mut log) = (Instant::now(), ExchangeLog::default());
        let verdict = match self.store.seen_with(&self.key, &self.epoch, &mut log).await {
            Ok(Seen::Spent) => Err(Refusal::AlreadySpent),
            Ok(Seen::NotSeen) | Err(_) => Ok(()),
        };
        Replay { verdict, times: (began, Instant::now()), log }
    }

    /// Asks when `hint` says, and does the `work` that may be done before, while or after the answer comes. No work, when
    /// the answer is there before it and says that the token was spent.
    pub(crate) async fn ask_around<T>(
        self,
        hint: Hint,
        work: impl FnOnce() -> T,
    ) -> (Option<Replay>, Option<Done<T>>) {
        match hint {
            Hint::Off => (None, Some(Done::of(work))),
            Hint::Before => {
                let replay = self.ask().await;
                let done = replay.verdict.is_ok().then(|| Done::of(work));
                (Some(replay), done)
            }
            Hint::Beside => {
                let (replay, done) = self.ask_beside(work).await;
                (Some(replay), done)
            }
        }
    }

    async fn ask_beside<T>(self, work: impl FnOnce() -> T) -> (Replay, Option<Done<T>>) {
        let mut asking = pin!(self.ask());
        match poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await {
            Poll::Ready(replay) if replay.verdict.is_err() => (replay, None),
            Poll::Ready(replay) => (replay, Some(Done::of(work))),
            Poll::Pending => {
                // The connection's task sends what has gathered, before the processor is busy here.
                tokio::task::yield_now().await;
                let done = Done::of(work);
                (asking.await, Some(done))
            }
        }
    }
}
