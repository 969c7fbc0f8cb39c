//! Detection of a store that gives no verdicts, from its last answers to callers and to the watch.
//!
//! An open connection proves little: behind a router all servers may be down while the router answers each command with an
//! error. A caller that detects this beforehand refuses without reading a token.

use super::world::{instant, since};
use crate::Unknown;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Consecutive failures, and minimum duration, before no verdict is expected any more. While one of three servers is down, a
/// third of the spends fails; in this time and number all fail only if nothing works.
const FEW: u32 = 8;
const LONG: Duration = Duration::from_millis(300);
/// Rounds of the watch without an answer before no verdict is expected: a single one may have hit a pause of the server.
const ROUNDS: u32 = 2;

/// The recent results. Reading them costs a caller two atomic loads while the store works.
#[derive(Default)]
pub(super) struct Verdicts {
    /// Consecutive spends without a verdict.
    failed: AtomicU32,
    /// Consecutive rounds of the watch that found no store.
    silent: AtomicU32,
    /// Spends fail while the watch can read: it must write successfully before spends are tried again.
    refuses: AtomicBool,
    last: Mutex<Failures>,
}

/// The time of the first of the consecutive failed spends, and the last reason.
#[derive(Default)]
struct Failures {
    since: Option<Instant>,
    reason: Option<Unknown>,
}

impl Verdicts {
    /// Records the result of a spend. Returns `true` if it is the one that shows that no spend gets a verdict; the caller then
    /// wakes the watch.
    pub(super) fn spent<T>(&self, result: &Result<T, Unknown>) -> bool {
        match result {
            Ok(_) => {
                if self.failed.load(Relaxed) != 0 {
                    self.failed.store(0, Relaxed);
                }
                false
            }
            // The token's fault, a refusal known before, or this process's own bounds.
            Err(Unknown::EpochRetired | Unknown::Unmarked | Unknown::Unwatched | Unknown::Overloaded) => {
                false
            }
            Err(reason) => self.failed(*reason),
        }
    }

    #[cold]
    fn failed(&self, reason: Unknown) -> bool {
        let mut last = self.last.lock();
        let before = self.failed.fetch_add(1, Relaxed);
        let first = last.since.filter(|_| before > 0).unwrap_or_else(instant);
        *last = Failures { since: Some(first), reason: Some(reason) };
        before + 1 >= FEW && since(first) >= LONG && !self.refuses.swap(true, Relaxed)
    }

    /// Records a round of the watch: it found the store, or the reason why not.
    pub(super) fn round(&self, found: Result<(), Unknown>) {
        match found {
            Ok(()) => self.silent.store(0, Relaxed),
            Err(reason) => {
                self.last.lock().reason = Some(reason);
                self.silent.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns `true` if the watch must write successfully before spends are tried again.
    pub(super) fn refuses(&self) -> bool {
        self.refuses.load(Relaxed)
    }

    pub(super) fn written(&self) {
        self.failed.store(0, Relaxed);
        if self.refuses.swap(false, Relaxed) {
            tracing::info!("the double-spend store gives verdicts again");
        }
    }

    pub(super) fn expected(&self) -> Result<(), Unknown> {
        if self.silent.load(Relaxed) < ROUNDS && !self.refuses.load(Relaxed) {
            return Ok(());
        }
        Err(self.last.lock().reason.unwrap_or(Unknown::Rejected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    const FAILED: Result<(), Unknown> = Err(Unknown::TimedOut);

    #[test]
    fn a_store_that_answers_now_and_then_is_asked_on() {
        let verdicts = Verdicts::default();
        for _ in 0..4 {
            (0..FEW).for_each(|_| assert!(!verdicts.spent(&FAILED)));
            assert!(!verdicts.spent(&Ok(())));
            sleep(LONG / 3);
        }
        assert_eq!(verdicts.expected(), Ok(()));
    }

    #[test]
    fn spends_that_all_fail_for_long_end_the_service_until_the_watch_has_written() {
        let verdicts = Verdicts::default();
        (1..FEW).for_each(|_| assert!(!verdicts.spent(&FAILED)));
        sleep(LONG);
        assert!(!verdicts.refuses());
        assert!(verdicts.spent(&FAILED), "the watch is woken");
        assert!(verdicts.refuses());
        assert!(!verdicts.spent(&FAILED), "once");
        assert_eq!(verdicts.expected(), FAILED);
        verdicts.round(Ok(()));
        assert_eq!(verdicts.expected(), FAILED, "that it can be read says nothing about writing");
        verdicts.written();
        assert_eq!((verdicts.expected(), verdicts.refuses()), (Ok(()), false));
    }

    #[test]
    fn what_is_not_the_stores_fault_does_not_count() {
        let verdicts = Verdicts::default();
        for reason in [Unknown::EpochRetired, Unknown::Unmarked, Unknown::Overloaded] {
            (0..=FEW).for_each(|_| assert!(!verdicts.spent::<()>(&Err(reason))));
        }
        sleep(LONG);
        assert!(!verdicts.spent(&FAILED));
        assert_eq!(verdicts.expected(), Ok(()));
    }

    #[test]
    fn one_silent_round_may_be_a_pause_and_two_are_an_outage() {
        let verdicts = Verdicts::default();
        verdicts.round(FAILED);
        assert_eq!(verdicts.expected(), Ok(()));
        verdicts.round(FAILED);
        assert_eq!(verdicts.expected(), FAILED);
        verdicts.round(Ok(()));
        assert_eq!(verdicts.expected(), Ok(()));
    }
}
