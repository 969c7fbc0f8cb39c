//! Whether an epoch is over: by the wall clock, confirmed by the monotonic one.
//!
//! A tombstone is for ever, and a wall clock can be a month ahead for a minute: before the first synchronization after a
//! boot, or by a slip of the hand. So an epoch ends for good only when the wall clock was past its end at every reading
//! of [`CONFIRMATION`], and kept pace with the monotonic clock meanwhile. Confirmation begins anew with each process: one
//! that is restarted more often keeps files longer, and loses no record.

use postern_token::{TokenKeyId, UnixSeconds};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// For how long the wall clock has to be past an epoch's end. Longer than clocks that are synchronized stay wrong, and
/// the room is not needed soon.
pub(crate) const CONFIRMATION: Duration = Duration::from_secs(3600);
/// By how much the two clocks may part in that time: the wall clock is read in whole seconds, and is slewed.
const TOLERANCE: Duration = Duration::from_secs(10);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) wall: UnixSeconds,
    pub(crate) monotonic: Instant,
}

/// Since when the wall clock has been past the end of each epoch.
#[derive(Default)]
pub(crate) struct Endings(HashMap<TokenKeyId, Reading>);

impl Endings {
    /// Of the epochs that are over by the wall clock, all of them in `over`, those for which that is confirmed.
    pub(crate) fn confirmed(&mut self, over: &[TokenKeyId], now: Reading) -> Vec<TokenKeyId> {
        self.0.retain(|key, since| over.contains(key) && now.keeps_pace_with(since));
        let since = |key: &TokenKeyId| self.0.entry(*key).or_insert(now).monotonic;
        let waited = over.iter().map(since).collect::<Vec<_>>();
        let confirmed =
            waited.iter().map(|since| now.monotonic.saturating_duration_since(*since) >= CONFIRMATION);
        over.iter().zip(confirmed).filter_map(|(key, confirmed)| confirmed.then_some(*key)).collect()
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

    /// The minutes after which the epoch is confirmed to be over, of readings by both clocks in minutes.
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
        // Nothing was read in between.
        assert_eq!(confirmed(&[(500, 0, true), (561, 61, true)]), [61]);
        assert_eq!(confirmed(&[(500, 0, true), (559, 59, true)]), [0_u64; 0]);
    }

    #[test]
    fn a_clock_that_jumps_or_comes_back_begins_anew() {
        // A month ahead for some minutes.
        assert_eq!(
            confirmed(&[(43_200, 0, true), (43_205, 5, true), (10, 6, false), (90, 86, true)]),
            [0_u64; 0]
        );
        // Back and ahead again between two readings, and asleep: the monotonic clock did not run.
        assert_eq!(confirmed(&[(500, 0, true), (900, 61, true), (959, 120, true), (960, 121, true)]), [121]);
        assert_eq!(confirmed(&[(500, 0, true), (900, 1, true), (961, 62, true)]), [62]);
        assert_eq!(confirmed(&[(500, 0, true), (499, 61, true)]), [0_u64; 0]);
    }
}
