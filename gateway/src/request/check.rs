//! The second stage: looks the token up in the double-spend store before or while its signature is verified. A hit is a
//! replay and is refused without finishing the cryptography; a miss proves nothing.

use crate::config::CheckTiming;
use crate::observe::timeline::Times;
use crate::request::deny::Refusal;
use crate::request::parse::Presented;
use postern_spend::{Epoch, ExchangeLog, Hint, Store};
use postern_token::SpentKey;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

/// A lookup of one token, not started yet.
pub(crate) struct Check<'a> {
    store: &'a Store,
    key: SpentKey,
    epoch: Epoch,
}

/// The result of a [`Check`], with its times.
pub(crate) struct Checked {
    pub(crate) result: Result<(), Refusal>,
    pub(crate) times: Times,
    pub(crate) log: ExchangeLog,
}

/// A value, and when the work that made it began and ended.
pub(crate) struct Timed<T> {
    pub(crate) value: T,
    pub(crate) times: Times,
}

impl<T> Timed<T> {
    fn run(work: impl FnOnce() -> T) -> Self {
        let from = Instant::now();
        let value = work();
        Self { value, times: (from, Instant::now()) }
    }
}

impl<'a> Check<'a> {
    pub(crate) fn new(store: &'a Store, presented: &Presented) -> Self {
        Self { store, key: *presented.spent_key(), epoch: *presented.epoch() }
    }

    /// Refuses a token that is recorded as spent.
    ///
    /// A failed lookup never rejects a request: the spend stage decides.
    async fn run(self) -> Checked {
        let (began, mut log) = (Instant::now(), ExchangeLog::default());
        let result = match self.store.check_with(&self.key, &self.epoch, &mut log).await {
            Ok(Hint::Spent) => Err(Refusal::AlreadySpent),
            Ok(Hint::NotFound) | Err(_) => Ok(()),
        };
        Checked { result, times: (began, Instant::now()), log }
    }

    /// Runs the check before or beside `work`, or not at all, as `timing` says. Skips `work` when the check finds first
    /// that the token was spent.
    pub(crate) async fn run_with<T>(
        self,
        timing: CheckTiming,
        work: impl FnOnce() -> T,
    ) -> (Option<Checked>, Option<Timed<T>>) {
        match timing {
            CheckTiming::Off => (None, Some(Timed::run(work))),
            CheckTiming::Before => {
                let checked = self.run().await;
                let done = checked.result.is_ok().then(|| Timed::run(work));
                (Some(checked), done)
            }
            CheckTiming::Beside => {
                let (checked, done) = self.run_beside(work).await;
                (Some(checked), done)
            }
        }
    }

    async fn run_beside<T>(self, work: impl FnOnce() -> T) -> (Checked, Option<Timed<T>>) {
        let mut checking = pin!(self.run());
        match poll_fn(|cx| Poll::Ready(checking.as_mut().poll(cx))).await {
            Poll::Ready(checked) if checked.result.is_err() => (checked, None),
            Poll::Ready(checked) => (checked, Some(Timed::run(work))),
            Poll::Pending => {
                // Let the connection's task send the command before `work` keeps this thread busy.
                tokio::task::yield_now().await;
                let done = Timed::run(work);
                (checking.await, Some(done))
            }
        }
    }
}
