//! The lifetimes of keys: pure functions of the keys' times and of now.
//!
//! ```text
//!   made, published        takes over            successor takes over          leaves
//!        |                     |                          |                       |
//!        |<-- publish_ahead -->|<----- rotate_every ----->|<---- redeem_for ----->|
//!                         not_before                 issue_until              not_after
//! ```
//!
//! The two published times of a key are fixed when it is made. Gateways remember spent tokens until the published not-after, so
//! moving it later would let tokens be spent twice, and moving it earlier would void tokens too soon. Agents compare both with
//! those they have seen. `issue_until` is not published: an operator's rotation moves it earlier, and nothing moves it later.

use postern_token::{TokenTypes, UnixSeconds};
use std::time::Duration;

/// The token types that keys are made for, and the times that new keys get. The keys of each type rotate independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// In the issuer's order of preference.
    pub(crate) types: TokenTypes,
    pub(crate) rotate_every: Duration,
    pub(crate) publish_ahead: Duration,
    pub(crate) redeem_for: Duration,
}

#[cfg(test)]
impl Schedule {
    /// A schedule for the tests of all modules: no two of its times are equal.
    pub(crate) const TEST: Self = Self {
        types: TokenTypes::PUBLIC,
        rotate_every: Duration::from_secs(30_000),
        publish_ahead: Duration::from_secs(1_000),
        redeem_for: Duration::from_secs(7_000),
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// The first second in which clients should use the key.
    pub(crate) not_before: UnixSeconds,
    /// The first second in which its successor should be used instead.
    pub(crate) issue_until: UnixSeconds,
    /// The first second in which its tokens are no longer accepted anywhere.
    pub(crate) not_after: UnixSeconds,
}

/// The use of a key at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Published, but not yet in use.
    NotYet,
    /// The key signs.
    Issuing,
    /// The key's tokens are valid, but it signs no more.
    Redeeming,
    /// The key has expired.
    Over,
}

/// Maximum time before and after a change in which both keys sign: clocks differ, and copies of the directory may be seconds old.
const MAX_TOLERANCE: Duration = Duration::from_secs(300);
/// Time that the not-before of a key needed at once is in the past, for gateways whose clocks are behind.
const BACKDATE: Duration = Duration::from_secs(60);

impl Lifetime {
    /// Returns the times of a key that takes over at `not_before`.
    pub(crate) fn starting(not_before: UnixSeconds, schedule: &Schedule) -> Self {
        let issue_until = not_before.saturating_add(schedule.rotate_every);
        Self { not_before, issue_until, not_after: issue_until.saturating_add(schedule.redeem_for) }
    }

    /// `true` if `now` is in the time that this key is meant to be used in.
    pub(crate) fn is_current(&self, now: UnixSeconds) -> bool {
        self.not_before <= now && now < self.issue_until
    }

    /// Returns the use of the key, with tolerance for clocks that differ.
    pub(crate) fn phase(&self, now: UnixSeconds) -> Phase {
        let tolerance = MAX_TOLERANCE.min(self.issue_until.until(self.not_after) / 4);
        if now >= self.not_after {
            Phase::Over
        } else if now < self.not_before.saturating_sub(tolerance) {
            Phase::NotYet
        } else if now < self.issue_until.saturating_add(tolerance) {
            Phase::Issuing
        } else {
            Phase::Redeeming
        }
    }
}

/// Returns the times of the key to make now, if one is to be made.
pub(crate) fn to_make(keys: &[Lifetime], schedule: &Schedule, now: UnixSeconds) -> Option<Lifetime> {
    let Some(current) = current(keys, now) else {
        // The first start, or the issuer was down when a rotation was due, or the clock was set.
        let not_before = now.saturating_sub(BACKDATE);
        return Some(Lifetime { not_before, ..Lifetime::starting(now, schedule) });
    };
    let due = now >= successor_due(&current, schedule);
    (due && !has_successor(&current, keys)).then(|| Lifetime::starting(current.issue_until, schedule))
}

/// A rotation outside the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Takeover {
    /// The times of the new key.
    pub(crate) life: Lifetime,
    /// The time from which earlier keys issue no more.
    pub(crate) at: UnixSeconds,
}

impl Takeover {
    /// Plans the rotation that happens `ahead` of now. `None` if no key of `keys` would be in use until then: agents would have
    /// none to mint for.
    pub(crate) fn after(
        ahead: Duration,
        keys: &[Lifetime],
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Option<Self> {
        let mut at = now.saturating_add(ahead);
        // The newest key is the one in use: two that begin in the same second could not be distinguished.
        while keys.iter().any(|key| key.not_before == at) {
            at = at.saturating_add(Duration::from_secs(1));
        }
        let before = current(keys, at)?;
        let mut life = Lifetime::starting(at, schedule);
        if let Some(next) = keys.iter().map(|key| key.not_before).filter(|start| *start > at).min() {
            // A published successor keeps its times.
            life.issue_until = life.issue_until.min(next);
            life.not_after = life.issue_until.saturating_add(schedule.redeem_for);
        }
        if ahead.is_zero() {
            let after_it = before.not_before.saturating_add(Duration::from_secs(1));
            life.not_before = at.saturating_sub(BACKDATE).max(after_it);
        }
        Some(Self { life, at })
    }

    /// `true` if an existing key would issue for longer.
    pub(crate) fn shortens(&self, key: &Lifetime) -> bool {
        key.not_before < self.at && self.at < key.issue_until
    }

    /// Returns the times of such a key from now on.
    pub(crate) fn shorten(&self, key: Lifetime) -> Lifetime {
        Lifetime { issue_until: self.at, ..key }
    }
}

/// Returns the key to use at `now`: of several, the newest.
pub(crate) fn current(keys: &[Lifetime], now: UnixSeconds) -> Option<Lifetime> {
    keys.iter().filter(|key| key.is_current(now)).max_by_key(|key| key.not_before).copied()
}

/// Returns the first moment after `now` at which a key is to be made, comes into use, stops issuing, or leaves;
/// [`UnixSeconds::MAX`] if there is none.
pub(crate) fn next_change(keys: &[Lifetime], schedule: &Schedule, now: UnixSeconds) -> UnixSeconds {
    let of_keys = keys.iter().flat_map(|key| [key.not_before, key.issue_until, key.not_after]);
    let due = current(keys, now).map(|current| successor_due(&current, schedule));
    of_keys.chain(due).filter(|change| *change > now).min().unwrap_or(UnixSeconds::MAX)
}

fn successor_due(current: &Lifetime, schedule: &Schedule) -> UnixSeconds {
    current.issue_until.saturating_sub(schedule.publish_ahead)
}

/// `true` if some key takes over when `current` stops, or before.
fn has_successor(current: &Lifetime, keys: &[Lifetime]) -> bool {
    keys.iter().any(|key| key.is_current(current.issue_until))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(not_before: u64) -> Lifetime {
        Lifetime::starting(UnixSeconds(not_before), &Schedule::TEST)
    }

    fn at(keys: &[Lifetime], now: u64) -> Option<Lifetime> {
        to_make(keys, &Schedule::TEST, UnixSeconds(now))
    }

    #[test]
    fn the_first_key_is_good_at_once() {
        let first = at(&[], 100_000).unwrap();
        assert_eq!(first, Lifetime { not_before: UnixSeconds(99_940), ..life(100_000) });
        assert_eq!(first.phase(UnixSeconds(100_000)), Phase::Issuing);
        assert_eq!(at(&[first], 100_000), None);
    }

    #[test]
    fn a_successor_is_made_ahead_once_and_takes_over_without_a_gap() {
        let first = life(0);
        assert_eq!(at(&[first], 28_999), None);
        let second = at(&[first], 29_000).unwrap();
        assert_eq!(second.not_before, first.issue_until);
        let both = [first, second];
        assert_eq!(at(&both, 29_500), None);
        assert_eq!(current(&both, UnixSeconds(29_999)), Some(first));
        assert_eq!(current(&both, UnixSeconds(30_000)), Some(second));
    }

    #[test]
    fn a_key_issues_then_redeems_then_leaves() {
        let key = life(30_000);
        let phases = [
            (29_699, Phase::NotYet),
            (29_700, Phase::Issuing),
            (60_299, Phase::Issuing),
            (60_300, Phase::Redeeming),
            (66_999, Phase::Redeeming),
            (67_000, Phase::Over),
        ];
        for (now, phase) in phases {
            assert_eq!(key.phase(UnixSeconds(now)), phase, "{now}");
        }
    }

    #[test]
    fn tolerance_never_eats_up_a_short_redemption() {
        let schedule = Schedule { redeem_for: Duration::from_secs(8), ..Schedule::TEST };
        let key = Lifetime::starting(UnixSeconds(0), &schedule);
        assert_eq!(key.phase(UnixSeconds(30_001)), Phase::Issuing);
        assert_eq!(key.phase(UnixSeconds(30_002)), Phase::Redeeming);
    }

    #[test]
    fn an_issuer_that_slept_through_the_change_makes_a_key_at_once() {
        let first = life(0);
        let made = at(&[first], 31_000).unwrap();
        assert_eq!(made, Lifetime { not_before: UnixSeconds(30_940), ..life(31_000) });
        assert_eq!(current(&[first, made], UnixSeconds(31_000)), Some(made));
    }

    #[test]
    fn a_clock_set_back_makes_a_key_for_now_and_leaves_the_others_alone() {
        let ahead = life(900_000);
        let now = at(&[ahead], 100_000).unwrap();
        assert!(now.is_current(UnixSeconds(100_000)));
        assert_eq!(at(&[ahead, now], 100_000), None);
    }

    #[test]
    fn a_change_of_the_configuration_is_for_the_next_key() {
        let first = life(0);
        let shorter = Schedule { rotate_every: Duration::from_secs(5_000), ..Schedule::TEST };
        assert_eq!(to_make(&[first], &shorter, UnixSeconds(10_000)), None);
        let second = to_make(&[first], &shorter, UnixSeconds(29_000)).unwrap();
        assert_eq!((second.not_before.0, second.issue_until.0), (30_000, 35_000));
    }

    #[test]
    fn the_next_change_is_the_nearest_boundary() {
        let (first, second) = (life(0), life(30_000));
        let next = |keys: &[Lifetime], now| next_change(keys, &Schedule::TEST, UnixSeconds(now)).0;
        assert_eq!(next(&[first], 10), 29_000);
        assert_eq!(next(&[first], 29_000), 30_000);
        assert_eq!(next(&[first, second], 30_000), 37_000);
        assert_eq!(next(&[first, second], 37_000), 59_000);
        assert_eq!(next(&[], 5), u64::MAX);
    }

    /// Back-dating must not use up a short life, or keys would be made without end.
    #[test]
    fn keys_of_a_second_are_possible() {
        let second = Duration::from_secs(1);
        let schedule = Schedule {
            rotate_every: second,
            publish_ahead: Duration::ZERO,
            redeem_for: second,
            ..Schedule::TEST
        };
        let first = to_make(&[], &schedule, UnixSeconds(1_000)).unwrap();
        assert_eq!(to_make(&[first], &schedule, UnixSeconds(1_000)), None);
        assert_eq!(to_make(&[first], &schedule, UnixSeconds(1_001)).unwrap().issue_until.0, 1_002);
    }

    fn after(ahead: u64, keys: &[Lifetime], now: u64) -> Option<Takeover> {
        Takeover::after(Duration::from_secs(ahead), keys, &Schedule::TEST, UnixSeconds(now))
    }

    /// Returns the keys after the rotation, the new one last.
    fn taken_over(keys: &[Lifetime], takeover: Takeover) -> Vec<Lifetime> {
        let shorten = |key: &Lifetime| match takeover.shortens(key) {
            true => takeover.shorten(*key),
            false => *key,
        };
        keys.iter().map(shorten).chain([takeover.life]).collect()
    }

    #[test]
    fn an_operators_rotation_leaves_the_published_times_alone() {
        let first = life(0);
        let takeover = after(500, &[first], 10_000).unwrap();
        assert_eq!(takeover.life, life(10_500));
        let both = taken_over(&[first], takeover);
        assert_eq!((both[0].not_before, both[0].not_after), (first.not_before, first.not_after));
        assert_eq!(both[0].issue_until.0, 10_500);
        assert_eq!(current(&both, UnixSeconds(10_499)), Some(both[0]));
        assert_eq!(current(&both, UnixSeconds(10_500)), Some(both[1]));
        assert_eq!(at(&both, 10_000), None, "the schedule has nothing to add");
    }

    #[test]
    fn a_rotation_at_once_is_for_clocks_that_are_behind_too() {
        let first = life(0);
        let takeover = after(0, &[first], 10_000).unwrap();
        assert_eq!((takeover.life.not_before.0, takeover.at.0), (9_940, 10_000));
        assert_eq!(current(&taken_over(&[first], takeover), UnixSeconds(10_000)), Some(takeover.life));
        // Also for a key that is a second old.
        let takeover = after(0, &[life(9_999)], 10_000).unwrap();
        assert_eq!(takeover.life.not_before.0, 10_000);
        assert_eq!(after(0, &[life(10_000)], 10_000).unwrap().at.0, 10_001);
    }

    #[test]
    fn a_successor_that_is_published_keeps_its_turn() {
        let (first, second) = (life(0), life(30_000));
        let takeover = after(300, &[first, second], 29_500).unwrap();
        assert_eq!((takeover.life.issue_until.0, takeover.life.not_after.0), (30_000, 37_000));
        let all = taken_over(&[first, second], takeover);
        assert_eq!(all[1], second);
        for (now, key) in [(29_799, all[0]), (29_800, all[2]), (30_000, second)] {
            assert_eq!(current(&all, UnixSeconds(now)), Some(key), "{now}");
        }
        let later = taken_over(&[first, second], after(1_000, &[first, second], 29_500).unwrap());
        assert_eq!((later[0], later[1].issue_until.0), (first, 30_500));
    }

    #[test]
    fn no_rotation_leaves_a_gap_before_it() {
        assert_eq!(after(30_000, &[life(0)], 10_000), None);
        assert_eq!(after(0, &[], 10_000), None);
    }

    /// Makes a hundred rotations, from change to change: there is always exactly one current key, a successor is known
    /// a `publish_ahead` before it is needed, and at most three keys live.
    #[test]
    fn over_many_rotations_there_is_always_a_key_and_never_too_many() {
        let mut keys: Vec<Lifetime> = Vec::new();
        let mut now = UnixSeconds(1_000_000);
        for _ in 0..400 {
            keys.retain(|key| key.phase(now) != Phase::Over);
            while let Some(made) = to_make(&keys, &Schedule::TEST, now) {
                assert!(keys.is_empty() || made.not_before.0 >= now.0 + 1_000, "made late");
                keys.push(made);
            }
            assert_eq!(keys.iter().filter(|key| key.is_current(now)).count(), 1);
            assert!(keys.len() <= 3);
            now = next_change(&keys, &Schedule::TEST, now);
        }
    }
}
