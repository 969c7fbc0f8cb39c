//! The end of an epoch: by the wall clock, confirmed by the monotonic clock.
//!
//! A tombstone is permanent, but a wall clock can be a month ahead for a minute: before the first synchronization after boot, or
//! by an operator's mistake. So an epoch ends only after the wall clock was past its end at every reading during
//! [`CONFIRMATION`] and kept pace with the monotonic clock. Confirmation restarts with each process: a process that restarts
//! more often keeps files longer, and loses no record.

use postern_token::{TokenKeyId, UnixSeconds};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The time for which the wall clock must be past an epoch's end. Longer than synchronized clocks stay wrong; the disk space is
/// not needed sooner.
pub(crate) const CONFIRMATION: Duration = Duration::from_secs(3600);
/// Allowed difference between the two clocks in that time: the wall clock has whole seconds and is slewed.
const TOLERANCE: Duration = Duration::from_secs(10);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) wall: UnixSeconds,
    pub(crate) monotonic: Instant,
}

/// For each epoch, the reading from which on the wall clock was past its end.
#[derive(Default)]
pub(crate) struct Endings(HashMap<TokenKeyId, Reading>);

impl Endings {
    /// Returns the confirmed ones among `over`, which are all epochs past their end by the wall clock.
    pub(crate) fn confirmed(&mut self, over: &[TokenKeyId], now: Reading) -> Vec<TokenKeyId> {
        self.0.retain(|key, since| over.contains(key) && now.keeps_pace_with(since));
        let is_confirmed = |key: &TokenKeyId| {
            let since = self.0.entry(*key).or_insert(now).monotonic;
            now.monotonic.saturating_duration_since(since) >= CONFIRMATION
        };
        over.iter().copied().filter(is_confirmed).collect()
    }
}

impl Reading {
    fn keeps_pace_with(&self, earlier: &Self) -> bool {
        let wall = earlier.wall.until(self.wall);
        let monotonic = self.monotonic.saturating_duration_since(earlier.monotonic);
        self.wall >= earlier.wall && wall.abs_diff(monotonic) <= TOLERANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: TokenKeyId = TokenKeyId([1; 32]);

    /// Returns the minutes at which the epoch is confirmed to be over, for readings (wall, monotonic, over) in minutes.
    fn confirmed(readings: &[(u64, u64, bool)]) -> Vec<u64> {
        let (mut endings, began) = (Endings::default(), Instant::now());
        let minutes = |minutes: &u64| Duration::from_secs(minutes * 60);
        let over = readings.iter().filter_map(|(wall, monotonic, over)| {
            let now = Reading {
                wall: UnixSeconds(0).saturating_add(minutes(wall)),
                monotonic: began + minutes(monotonic),
            };
            let keys = if *over { vec![KEY] } else { Vec::new() };
            (!endings.confirmed(&keys, now).is_empty()).then_some(*monotonic)
        });
        over.collect()
    }

    #[test]
    fn an_epoch_is_over_after_an_hour_by_both_clocks() {
        let steady: Vec<_> = (0..=61).map(|minute| (500 + minute, minute, true)).collect();
        assert_eq!(confirmed(&steady), [60, 61]);
        // No reading in between.
        assert_eq!(confirmed(&[(500, 0, true), (561, 61, true)]), [61]);
        assert_eq!(confirmed(&[(500, 0, true), (559, 59, true)]), [0_u64; 0]);
    }

    #[test]
    fn a_clock_that_jumps_or_comes_back_starts_over() {
        // A month ahead for some minutes.
        assert_eq!(
            confirmed(&[(43_200, 0, true), (43_205, 5, true), (10, 6, false), (90, 86, true)]),
            [0_u64; 0]
        );
        // Set back and ahead again between two readings; or suspended, so that the monotonic clock stopped.
        assert_eq!(confirmed(&[(500, 0, true), (900, 61, true), (959, 120, true), (960, 121, true)]), [121]);
        assert_eq!(confirmed(&[(500, 0, true), (900, 1, true), (961, 62, true)]), [62]);
        assert_eq!(confirmed(&[(500, 0, true), (499, 61, true)]), [0_u64; 0]);
    }
}
