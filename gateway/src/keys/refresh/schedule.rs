//! Schedule of directory fetches: at the interval of the operator or the issuer, when a known key comes into use or retires, and
//! soon after a token with an unknown key.

use postern_daemon::backoff::Backoff;
use postern_token::UnixSeconds;
use std::time::Duration;
use tokio::time::Instant;

/// First wait after a failed fetch; doubles up to the poll interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// Maximum wait after a failed fetch while no key is usable, so that every request is refused.
const LONGEST_WITHOUT_KEYS: Duration = Duration::from_secs(5);
/// Minimum wait after a successful fetch, whatever the answer's max-age.
const LEAST: Duration = Duration::from_secs(1);
/// Minimum time between two fetches for tokens of unknown keys, which anyone can send.
const UNKNOWN_EVERY: Duration = Duration::from_secs(3);
/// Divergence of wall clock and monotonic clock from which the clock was set, or the machine slept: both require a fetch.
const STEP: Duration = Duration::from_secs(5);
/// Effectively never, but small enough not to overflow a clock.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

pub(super) struct Schedule {
    poll: Duration,
    /// `false` for a file, which is read once, and again only on SIGHUP.
    is_polled: bool,
    pub(super) next: Instant,
    failures: u32,
    asked: Option<Instant>,
    /// Next moment at which a known key comes into use or retires.
    change: Option<UnixSeconds>,
    /// `true` if the next fetch is for a token with an unknown key.
    pub(super) is_soon: bool,
    /// Monotonic and wall clock at the previous look.
    seen: Option<(Instant, UnixSeconds)>,
}

impl Schedule {
    pub(super) fn new(poll: Duration, is_polled: bool) -> Self {
        Self {
            poll,
            is_polled,
            next: Instant::now(),
            failures: 0,
            asked: None,
            change: None,
            is_soon: false,
            seen: None,
        }
    }

    /// Schedules an early fetch after a token with an unknown key: the directory may have changed.
    pub(super) fn soon(&mut self) {
        if self.is_polled {
            let now = Instant::now();
            let earliest = self.asked.map_or(now, |asked| asked + UNKNOWN_EVERY);
            self.next = self.next.min(earliest.max(now));
            self.is_soon = true;
        }
    }

    pub(super) fn asked(&mut self, now: Instant) {
        self.asked = Some(now);
        self.is_soon = false;
    }

    /// Schedules the next fetch after a success; a copy of the answer may be kept for `max_age`. If `is_lacking`, a key of it may
    /// be usable as soon as its secret has been copied here, and is asked for soon: a copy of the answer lasts until the key is in
    /// use, when agents need its challenge.
    pub(super) fn succeeded(
        &mut self,
        now: Instant,
        wall: UnixSeconds,
        max_age: Option<Duration>,
        change: Option<UnixSeconds>,
        is_lacking: bool,
    ) {
        if !self.is_polled {
            (self.next, self.change, self.failures) = (now + NEVER, None, 0);
            return;
        }
        let mut wait = max_age.map_or(self.poll, |age| self.poll.min(age.max(LEAST)));
        if is_lacking {
            wait = wait.min(Backoff { first: LEAST, longest: self.poll }.pause(self.failures));
            self.failures = self.failures.saturating_add(1);
        } else {
            self.failures = 0;
        }
        self.until(now + wait, now, wall, change);
    }

    pub(super) fn failed(
        &mut self,
        now: Instant,
        wall: UnixSeconds,
        change: Option<UnixSeconds>,
        is_usable: bool,
    ) {
        let longest = if is_usable { self.poll } else { self.poll.min(LONGEST_WITHOUT_KEYS) };
        let wait = Backoff { first: FIRST_RETRY, longest }.pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.until(now + wait, now, wall, change);
    }

    fn until(&mut self, next: Instant, now: Instant, wall: UnixSeconds, change: Option<UnixSeconds>) {
        let turn = change.map(|change| now + wall.until(change).min(NEVER));
        (self.next, self.change) = (turn.map_or(next, |turn| next.min(turn)), change);
    }

    /// Fetches at once if the wall clock was set, if the machine slept (the monotonic clock then stands still), or if a key
    /// change is due.
    pub(super) fn look_at_the_clock(&mut self, now: Instant, wall: UnixSeconds) {
        let before = self.seen.replace((now, wall));
        let stepped = before.is_some_and(|(then, wall_then)| {
            let (passed, wall_passed) = (now - then, wall_then.until(wall));
            wall < wall_then || wall_passed.abs_diff(passed) > STEP
        });
        if self.is_polled && (stepped || self.change.is_some_and(|change| wall >= change)) {
            (self.next, self.change) = (self.next.min(now), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(300);
    const WALL: UnixSeconds = UnixSeconds(1_000_000);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fetched(max_age: Option<Duration>, change: Option<UnixSeconds>) -> (Schedule, Instant) {
        let (mut schedule, now) = (Schedule::new(POLL, true), Instant::now());
        schedule.asked(now);
        schedule.succeeded(now, WALL, max_age, change, false);
        (schedule, now)
    }

    #[tokio::test]
    async fn the_shorter_of_poll_and_max_age_counts_and_a_change_of_keys_before_both() {
        for (max_age, change, wait) in [
            (None, None, 300),
            (Some(secs(3600)), None, 300),
            (Some(secs(20)), None, 20),
            (Some(secs(0)), None, 1),
            (Some(secs(20)), Some(UnixSeconds(WALL.0 + 7)), 7),
            (None, Some(UnixSeconds(WALL.0 + 7_000)), 300),
            (None, Some(UnixSeconds::MAX), 300),
        ] {
            let (schedule, now) = fetched(max_age, change);
            assert_eq!(schedule.next - now, secs(wait), "{max_age:?} {change:?}");
        }
    }

    #[tokio::test]
    async fn unknown_keys_make_it_ask_soon_and_no_more_often_than_every_few_seconds() {
        let (mut schedule, now) = fetched(None, None);
        assert!(!schedule.is_soon);
        for _ in 0..1000 {
            schedule.soon();
        }
        assert_eq!(schedule.next, now + UNKNOWN_EVERY);
        assert!(schedule.is_soon);
        let mut file = Schedule::new(POLL, false);
        file.succeeded(now, WALL, None, None, false);
        file.soon();
        assert!(file.next > now + POLL, "a file is not read again for it");
    }

    #[tokio::test]
    async fn failures_are_tried_again_ever_more_slowly_while_there_are_keys() {
        for (is_usable, longest) in [(true, POLL), (false, LONGEST_WITHOUT_KEYS)] {
            let (mut schedule, now) = fetched(None, None);
            let waits = (0..15).map(|_| {
                schedule.failed(now, WALL, None, is_usable);
                schedule.next - now
            });
            let waits: Vec<Duration> = waits.collect();
            assert_eq!((waits[0], waits[1]), (FIRST_RETRY, FIRST_RETRY * 2));
            assert_eq!(waits[14], longest);
        }
    }

    #[tokio::test]
    async fn a_key_without_its_secret_is_looked_for_soon_and_ever_more_slowly() {
        let (mut schedule, now) = fetched(None, None);
        let waits = (0..15).map(|_| {
            schedule.succeeded(now, WALL, Some(secs(100)), None, true);
            schedule.next - now
        });
        let waits: Vec<Duration> = waits.collect();
        assert_eq!((waits[0], waits[1], waits[14]), (LEAST, LEAST * 2, secs(100)));
        schedule.succeeded(now, WALL, None, None, false);
        assert_eq!(schedule.next - now, POLL);
    }

    #[tokio::test]
    async fn a_clock_that_was_set_and_a_machine_that_slept_make_it_ask_at_once() {
        for (wall, asks) in [(1, false), (4, false), (3_600, true)] {
            let (mut schedule, now) = fetched(None, None);
            schedule.look_at_the_clock(now, WALL);
            schedule.look_at_the_clock(now + secs(1), UnixSeconds(WALL.0 + wall));
            assert_eq!(schedule.next <= now + secs(1), asks, "{wall}");
        }
        let (mut schedule, now) = fetched(None, None);
        schedule.look_at_the_clock(now, WALL);
        schedule.look_at_the_clock(now + secs(1), UnixSeconds(WALL.0 - 3_600));
        assert!(schedule.next <= now + secs(1), "set back");
    }
}
