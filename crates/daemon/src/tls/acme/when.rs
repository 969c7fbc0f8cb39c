//! Renewal times. No clock and no randomness: both are arguments. All times are in Unix seconds.

use super::super::validity::Validity;
use std::time::Duration;

/// Minimum time between two attempts, unless the certificate's life is only minutes.
pub(super) const SPACING: Duration = Duration::from_secs(60);
/// Minimum time between two attempts for such a short life.
const LEAST_SPACING: Duration = Duration::from_secs(5);
/// Maximum rest after a success.
const LONGEST_REST: Duration = Duration::from_secs(6 * 3600);

/// Renewal window suggested by the authority (RFC 9773, section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Validity {
    fn life(self) -> u64 {
        self.until.saturating_sub(self.from)
    }

    /// Returns the time after the issuance of this certificate in which nothing is ordered, not even on a reload: a minute, or a
    /// quarter of a life shorter than four minutes, so that there is time for a second attempt.
    pub(super) fn spacing(self) -> Duration {
        (Duration::from_secs(self.life()) / 4).clamp(LEAST_SPACING, SPACING)
    }

    /// Returns the time after the issuance at `now` in which nothing is ordered, whatever the authority advises, because it also
    /// counts certificates: a quarter of the remaining life, at most six hours. A reload (SIGHUP) ends it.
    pub(super) fn rest(self, now: u64) -> Duration {
        let left = Duration::from_secs(self.until.saturating_sub(now));
        (left / 4).clamp(self.spacing(), LONGEST_REST)
    }

    /// Returns the second of the renewal: the one at `chance` (0 to 1) in the suitable range. Without advice, the range is from a
    /// third to 7/30 of the life before the end, so that the servers of a fleet do not renew together.
    pub(super) fn renewal(self, advice: Option<Window>, now: u64, chance: f64) -> u64 {
        let at = |start: u64, length: u64| start.saturating_add((length as f64 * chance) as u64);
        match advice.filter(|window| window.start < window.end) {
            // A window in the past has a reason, such as a revocation.
            Some(window) if window.end <= now => now,
            // Not so early that the renewal never ends, nor so late that there is no time for a second attempt.
            Some(window) => at(window.start, window.end - window.start)
                .max(self.from.saturating_add(self.life() / 2))
                .min(self.until.saturating_sub(self.life() / 4)),
            None => at(self.until.saturating_sub(self.life() / 3), self.life() / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Validity = Validity { from: 1_000, until: 1_600 };

    #[test]
    fn without_advice_it_is_renewed_before_readiness_warns() {
        assert_eq!([0.0, 0.5, 1.0].map(|chance| LIFE.renewal(None, 0, chance)), [1_400, 1_430, 1_460]);
    }

    #[test]
    fn advice_is_followed() {
        let window = |start, end| Some(Window { start, end });
        for (advice, now, expected) in [
            (window(1_350, 1_370), 1_100, [1_350, 1_360, 1_370]),
            (window(1_000, 1_400), 1_100, [1_300, 1_300, 1_400]), // not immediately again
            (window(1_500, 1_600), 1_100, [1_450, 1_450, 1_450]),
            (window(900, 1_050), 1_050, [1_050, 1_050, 1_050]), // revoked
            (window(1_370, 1_370), 1_380, [1_400, 1_430, 1_460]), // no window
        ] {
            assert_eq!(
                [0.0, 0.5, 1.0].map(|chance| LIFE.renewal(advice, now, chance)),
                expected,
                "{advice:?}"
            );
        }
    }

    #[test]
    fn after_a_success_it_rests_for_a_quarter_of_what_is_left_within_bounds() {
        for (from, until, [spacing, rest]) in [
            (0, 90 * 86_400, [60, 6 * 3600]),
            (0, 3_600, [60, 900]),
            (0, 240, [60, 60]),
            (0, 20, [5, 5]),
            (0, 2, [5, 5]),
            (0, 0, [5, 5]),
        ] {
            let validity = Validity { from, until };
            let expected = [spacing, rest].map(Duration::from_secs);
            assert_eq!([validity.spacing(), validity.rest(0)], expected, "{validity:?}");
        }
        let validity = Validity { from: 0, until: 90 * 86_400 };
        assert_eq!(validity.rest(validity.until - 20), SPACING, "the clock is wrong");
    }

    #[test]
    fn strange_lives_do_no_harm() {
        for (from, until) in [(0, 0), (u64::MAX, 0), (0, u64::MAX)] {
            let _ = Validity { from, until }.renewal(None, 0, 1.0);
            let _ = Validity { from, until }.renewal(Some(Window { start: 0, end: u64::MAX }), 5, 0.5);
        }
    }
}
