//! Second stage: looks the token up in the double-spend store before or while its signature is verified. A hit is a replay and
//! is refused, without verification if the lookup ends first; a miss proves nothing.

use crate::config::CheckTiming;
use crate::observe::timeline::{Stage, Timeline, Times};
use crate::request::deny::Refusal;
use postern_spend::{Epoch, ExchangeLog, Hint, SpendStore, Store};
use postern_token::SpentKey;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

/// Looks the token up before `verify`, concurrently with it, or not at all, according to `timing`. Refuses a token that is
/// recorded as spent, without calling `verify` if the record is found first; otherwise returns the result of `verify`.
///
/// A failed lookup never rejects a request: the spend stage decides.
pub(crate) async fn check<T>(
    store: &Store,
    (key, epoch): (SpentKey, Epoch),
    timing: CheckTiming,
    timeline: &mut Timeline,
    verify: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let look_up = async {
        let (began, mut log) = (Instant::now(), ExchangeLog::default());
        let spent = matches!(store.check_with(&key, &epoch, &mut log).await, Ok(Hint::Spent));
        Found { spent, times: (began, Instant::now()), log }
    };
    run(look_up, timing, timeline, verify).await
}

async fn run<T>(
    lookup: impl Future<Output = Found>,
    timing: CheckTiming,
    timeline: &mut Timeline,
    verify: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    if timing == CheckTiming::Off {
        return timeline.time(Stage::Verify, verify);
    }
    let mut lookup = pin!(lookup);
    let found = if timing == CheckTiming::Beside {
        poll_fn(|cx| Poll::Ready(lookup.as_mut().poll(cx))).await
    } else {
        Poll::Ready(lookup.as_mut().await)
    };
    if let Poll::Ready(found) = found {
        found.judge(timeline)?;
        return timeline.time(Stage::Verify, verify);
    }
    // Let the connection's task send the command before `verify` keeps this thread busy.
    tokio::task::yield_now().await;
    let from = Instant::now();
    let verified = verify();
    timeline.set(Stage::Verify, (from, Instant::now()));
    lookup.await.judge(timeline)?;
    verified
}

struct Found {
    spent: bool,
    times: Times,
    log: ExchangeLog,
}

impl Found {
    fn judge(self, timeline: &mut Timeline) -> Result<(), Refusal> {
        timeline.set(Stage::Check, self.times);
        timeline.check_log = self.log;
        if self.spent { Err(Refusal::AlreadySpent) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Returns the steps in their order, and `true` if the token passes. The store answers after two turns of the runtime.
    async fn order(timing: CheckTiming, spent: bool) -> (Vec<&'static str>, bool) {
        let done = RefCell::new(Vec::new());
        let lookup = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            done.borrow_mut().push("looked up");
            let now = Instant::now();
            Found { spent, times: (now, now), log: ExchangeLog::default() }
        };
        let verify = || {
            done.borrow_mut().push("verified");
            Ok(())
        };
        let answer = run(lookup, timing, &mut Timeline::begin(), verify).await;
        assert!(matches!(answer, Ok(()) | Err(Refusal::AlreadySpent)));
        (done.take(), answer.is_ok())
    }

    #[tokio::test]
    async fn the_lookup_precedes_the_verification_or_overlaps_it_or_is_not_made() {
        for spent in [false, true] {
            assert_eq!(order(CheckTiming::Beside, spent).await, (vec!["verified", "looked up"], !spent));
            assert_eq!(order(CheckTiming::Off, spent).await, (vec!["verified"], true));
        }
        assert_eq!(order(CheckTiming::Before, false).await, (vec!["looked up", "verified"], true));
        assert_eq!(order(CheckTiming::Before, true).await, (vec!["looked up"], false));
    }
}
