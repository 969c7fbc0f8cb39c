//! The life of a request, on one screen:
//!
//! ```text
//! parse -> check -> verify -> spend -> dial -> (tunnel)
//! ```
//!
//! Each stage hands the next one a value that only it can make: [`Presented`], [`Verified`], [`Spent`], [`Dialled`]. A
//! stage that refuses ends the request; `deny` has the answer.

use crate::check::Question;
use crate::connection::Worker;
use crate::deny::Refusal;
use crate::dial::Dialled;
use crate::parse::Presented;
use crate::recorder::CheckTimes;
use crate::spend::Spent;
use crate::verify::Verified;
use http::request;
use postern_service::names::CheckResult;
use postern_token::UnixSeconds;
use std::time::{Duration, Instant};

/// From a request's head to a connection to its target.
pub(crate) async fn run(worker: &Worker, head: &request::Parts) -> Result<Dialled, Refusal> {
    let (core, now) = (&worker.core, UnixSeconds::now());
    let presented = Presented::parse(head, &core.policy, &core.offer, &core.keyring.load(), now)?;
    let spent = admit(worker, presented, now).await?;
    Dialled::dial(spent, &core.policy, &worker.resolver, core.limits.dial_timeout.get()).await
}

/// The double-spend check, every time measured.
async fn admit(worker: &Worker, presented: Presented, now: UnixSeconds) -> Result<Spent, Refusal> {
    let started = Instant::now();
    let mut times = CheckTimes::default();
    let result = staged(worker, presented, now, &mut times).await;
    worker.core.recorder.checked(
        started,
        times,
        result.as_ref().map_or_else(Refusal::check_result, |_| CheckResult::Admitted),
    );
    result
}

async fn staged(
    worker: &Worker,
    presented: Presented,
    now: UnixSeconds,
    times: &mut CheckTimes,
) -> Result<Spent, Refusal> {
    let question = Question::new(&worker.store, &presented);
    let verify = || timed(|| Verified::verify(presented));
    let (replay, verified) = question.ask_around(worker.core.hint, verify).await;
    times.verify = verified.as_ref().map(|(_, took)| *took);
    if let Some(replay) = replay {
        times.get = Some(replay.took);
        times.waits = replay.waits;
        replay.verdict?;
    }
    let (verified, _) = verified.ok_or(Refusal::AlreadySpent)?;
    let verified = verified?;
    let started = Instant::now();
    let spent = Spent::spend(verified, &worker.store, now, &mut times.waits).await;
    times.add = Some(started.elapsed());
    spent
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let done = work();
    (done, started.elapsed())
}

impl Refusal {
    /// How a check that ended with this refusal is recorded.
    fn check_result(&self) -> CheckResult {
        match self {
            Self::AlreadySpent => CheckResult::Spent,
            Self::StoreUnknown(_) => CheckResult::Unknown,
            _ => CheckResult::Invalid,
        }
    }
}
