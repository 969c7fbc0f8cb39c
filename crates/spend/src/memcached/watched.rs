//! Whether the watch does its work. While it does not, records may be lost without notice.

use super::undo::{Undo, is_undone};
use super::world::{instant, since};
use crate::Unknown;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a round may be overdue in which every canary had an answer, beside two intervals of the canaries.
const OVERDUE: Duration = Duration::from_secs(3);

/// What is known of the watch. Reading it costs a caller three atomic loads.
pub(super) struct Watched {
    opened: Instant,
    /// From which age of the last full round on the watch is blind.
    limit: Duration,
    /// When the last round ended in which every canary had an answer, in milliseconds since `opened`.
    full: AtomicU64,
    /// Its thread has panicked.
    ended: AtomicBool,
    is_ahead: AtomicBool,
    /// How far the store's clock is ahead, if it is.
    ahead: Mutex<Option<Unknown>>,
}

impl Watched {
    pub(super) fn new(canary_interval: Duration) -> Self {
        Self {
            opened: instant(),
            limit: OVERDUE + 2 * canary_interval,
            full: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            is_ahead: AtomicBool::new(false),
            ahead: Mutex::new(None),
        }
    }

    /// Every canary had an answer: a hit, a miss, or an error of its server, whose records cannot be spent then.
    pub(super) fn full_round(&self) {
        let now = u64::try_from(since(self.opened).as_millis()).unwrap_or(u64::MAX);
        self.full.store(now, Relaxed);
    }

    /// The age of the last full round.
    pub(super) fn age(&self) -> Duration {
        since(self.opened).saturating_sub(Duration::from_millis(self.full.load(Relaxed)))
    }

    /// No full round for too long: some canaries have no answer, and what lies beside them may be lost.
    pub(super) fn is_blind(&self) -> bool {
        self.age() > self.limit && !is_undone(Undo::BlindWatch)
    }

    /// The thread has panicked. Nothing is admitted any more.
    pub(super) fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// How far the store's clock is ahead, or that it is not any more.
    pub(super) fn set_ahead(&self, ahead: Option<Unknown>) {
        *self.ahead.lock() = ahead;
        self.is_ahead.store(ahead.is_some(), Relaxed);
    }

    /// Whether spends are safe as far as the watch itself goes, whatever the operator chose for losses.
    pub(super) fn is_fit(&self) -> Result<(), Unknown> {
        if self.ended.load(Relaxed) {
            return Err(Unknown::Unwatched);
        }
        if self.is_ahead.load(Relaxed) {
            Err(self.ahead.lock().unwrap_or(Unknown::Unwatched))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_has_ended_or_found_a_clock_ahead_is_not_fit() {
        let watched = Watched::new(Duration::from_secs(1));
        assert_eq!((watched.is_fit(), watched.is_blind()), (Ok(()), false));
        let (at_least, below) = (Duration::from_secs(3_600), Duration::from_secs(3 * 86_400));
        let ahead = Unknown::ClockAhead { at_least, below };
        watched.set_ahead(Some(ahead));
        assert_eq!(watched.is_fit(), Err(ahead));
        assert!(ahead.to_string().contains("is between 1 h and 3 days ahead"), "{ahead}");
        watched.set_ahead(None);
        assert_eq!(watched.is_fit(), Ok(()));
        watched.end();
        assert_eq!(watched.is_fit(), Err(Unknown::Unwatched));
    }

    #[test]
    fn it_is_blind_when_no_round_was_full_lately() {
        let mut watched = Watched::new(Duration::ZERO);
        watched.opened -= Duration::from_secs(10);
        assert!(watched.is_blind() && watched.age() >= Duration::from_secs(10));
        watched.full_round();
        assert!(!watched.is_blind());
    }
}
