//! Cancellation: presentations dropped after any number of polls, among others that complete.

use super::rules::{Answer, Rule, Violation, admissions, fresh};
use postern_spend::{Epoch, Spend, SpendStore};
use postern_token::{SpentKey, UnixSeconds};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::task::JoinSet;

/// Keys that are cancelled one after another.
const ONE_BY_ONE: usize = 500;
/// Keys with concurrent cancelled presentations, and presentations per key.
const AT_ONCE: (usize, usize) = (200, 16);
/// Futures are dropped before their first poll, or after up to this many polls.
const POLLS: usize = 6;

pub(super) async fn check<S: SpendStore>(store: &Arc<S>, epoch: Epoch) -> Result<(), Violation> {
    one_by_one(&**store, epoch).await?;
    at_once(store, epoch).await
}

/// Checks the next answers after each cancelled spend: a connection out of step, or a lock left held, would spoil them.
async fn one_by_one<S: SpendStore>(store: &S, epoch: Epoch) -> Result<(), Violation> {
    let now = UnixSeconds::now();
    let spent = fresh(&epoch);
    let first = store.spend(&spent, &epoch, now).await;
    Rule::FirstIsAdmitted.wants("a fresh key", &first, &Ok(Spend::Admitted))?;

    for round in 0..ONE_BY_ONE {
        let (cancelled, other) = (fresh(&epoch), fresh(&epoch));
        let mut answers: Vec<Answer> = Vec::new();
        answers.extend(polled(store.spend(&cancelled, &epoch, now), round % POLLS).await);
        if answers == [Ok(Spend::AlreadySpent)] {
            return Err(Rule::AnswersDoNotStray.broken("a fresh key is reported as spent"));
        }
        // Both orders, because a stray answer may be correct by chance.
        if round % 2 == 0 {
            replay_is_refused(store, &spent, &epoch, now).await?;
            fresh_is_not_refused(store, &other, &epoch, now).await?;
        } else {
            fresh_is_not_refused(store, &other, &epoch, now).await?;
            replay_is_refused(store, &spent, &epoch, now).await?;
        }
        for _ in 0..3 {
            answers.push(store.spend(&cancelled, &epoch, now).await);
        }
        settled(&answers)?;
    }
    Ok(())
}

async fn at_once<S: SpendStore>(store: &Arc<S>, epoch: Epoch) -> Result<(), Violation> {
    for _ in 0..AT_ONCE.0 {
        let key = fresh(&epoch);
        let mut tasks = JoinSet::new();
        for presentation in 0..AT_ONCE.1 {
            let store = Arc::clone(store);
            tasks.spawn(async move {
                polled(store.spend(&key, &epoch, UnixSeconds::now()), presentation % POLLS).await
            });
        }
        let mut answers: Vec<Answer> = Vec::new();
        while let Some(joined) = tasks.join_next().await {
            answers.extend(joined.ok().flatten());
        }
        for _ in 0..2 {
            answers.push(store.spend(&key, &epoch, UnixSeconds::now()).await);
        }
        settled(&answers)?;
    }
    Ok(())
}

/// Checks all answers to presentations of one key, the last of them made after all others and not cancelled: at most one
/// admission, and the key is spent by now.
fn settled(answers: &[Answer]) -> Result<(), Violation> {
    let rule = Rule::CancelledNeverTwice;
    match admissions(answers) {
        0 | 1 => rule.wants("the last presentation", &answers.last(), &Some(&Ok(Spend::AlreadySpent))),
        more => {
            Err(rule.broken(format!("{more} of {} presentations were admitted: {answers:?}", answers.len())))
        }
    }
}

/// A store may answer `Unknown` right after a cancellation (it closed the connection), but nothing wrong.
async fn replay_is_refused<S: SpendStore>(
    store: &S,
    spent: &SpentKey,
    epoch: &Epoch,
    now: UnixSeconds,
) -> Result<(), Violation> {
    match store.spend(spent, epoch, now).await {
        Ok(Spend::Admitted) => {
            Err(Rule::AnswersDoNotStray.broken("a replay is admitted after a cancelled spend"))
        }
        _ => Ok(()),
    }
}

async fn fresh_is_not_refused<S: SpendStore>(
    store: &S,
    key: &SpentKey,
    epoch: &Epoch,
    now: UnixSeconds,
) -> Result<(), Violation> {
    match store.spend(key, epoch, now).await {
        Ok(Spend::AlreadySpent) => {
            Err(Rule::AnswersDoNotStray.broken("a fresh key is reported as spent after a cancelled spend"))
        }
        _ => Ok(()),
    }
}

/// Polls a future at most this many times, each time it wakes, and then drops it.
async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    if polls == 0 {
        return None;
    }
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}
