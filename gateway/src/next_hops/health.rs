//! The health of one URL of a next hop. No I/O; time and jitter are arguments.

use postern_daemon::backoff::{Backoff, jittered};
use std::time::Duration;
use tokio::time::Instant;

/// The pauses between two checks of one that is down.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(10) };

/// Whether it is up, as tunnels and checks have found it.
#[derive(Debug)]
pub(super) struct Health {
    /// Failures in a row.
    failures: u32,
    down: Option<String>,
    /// When it is checked next.
    check_at: Instant,
    is_checking: bool,
    /// When it last answered anything.
    heard: Instant,
}

impl Health {
    /// One that was never used counts as up, and is checked at once.
    pub(super) fn new(now: Instant) -> Self {
        Self { failures: 0, down: None, check_at: now, is_checking: false, heard: now }
    }

    /// Why it is down.
    pub(super) fn down(&self) -> Option<&str> {
        self.down.as_deref()
    }

    pub(super) const fn check_at(&self) -> Instant {
        self.check_at
    }

    /// Whether it has answered nothing since.
    pub(super) fn silent_since(&self, began: Instant) -> bool {
        self.heard < began
    }

    /// It did what it is for. Whether it was down before.
    pub(super) fn served(&mut self, now: Instant) -> bool {
        (self.failures, self.heard) = (0, now);
        self.down.take().is_some()
    }

    /// Begins a check if one is due; the next one follows after `every`, unless it fails.
    pub(super) fn begin_check(&mut self, every: Duration, now: Instant) -> bool {
        let begins = !self.is_checking && self.check_at <= now;
        if begins {
            (self.is_checking, self.check_at) = (true, now + every);
        }
        begins
    }

    /// The check has ended.
    pub(super) fn end_check(&mut self) {
        self.is_checking = false;
    }

    /// A tunnel or a check failed by its fault. Whether that is news. `jitter` as in [`jittered`].
    pub(super) fn failed(&mut self, reason: String, by: Finder, now: Instant, jitter: f64) -> bool {
        if by == Finder::Tunnel && self.down.is_some() {
            return false; // one of several tunnels that were being opened: checks have the word now
        }
        self.check_at = now + jittered(BACKOFF.pause(self.failures), Duration::ZERO, jitter);
        self.failures = self.failures.saturating_add(1);
        self.down.replace(reason).is_none()
    }
}

/// Who found a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finder {
    Tunnel,
    Check,
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn one_that_failed_is_checked_sooner_and_ever_less_often() {
        let now = Instant::now();
        let mut health = Health::new(now);
        assert!(health.down().is_none() && health.check_at() == now, "a new one is up, and checked at once");
        assert!(health.begin_check(EVERY, now) && !health.begin_check(EVERY, now + EVERY), "one at a time");
        health.end_check();
        assert_eq!(health.check_at(), now + EVERY);
        let mut failed = |by| health.failed("it hung up".to_owned(), by, now, 1.0);
        assert!(failed(Finder::Tunnel), "news");
        assert!(!failed(Finder::Tunnel) && !failed(Finder::Check), "no news");
        assert_eq!(health.down(), Some("it hung up"));
        assert_eq!(health.check_at(), now + 2 * BACKOFF.first, "tunnels that fail together are one failure");
        for _ in 0..20 {
            health.failed("it hung up".to_owned(), Finder::Check, now, 1.0);
        }
        assert_eq!(health.check_at(), now + BACKOFF.longest);
        assert!(health.served(now) && !health.served(now));
        assert!(health.down().is_none());
        health.failed("again".to_owned(), Finder::Check, now, 1.0);
        assert_eq!(health.check_at(), now + BACKOFF.first);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_last_answer() {
        let now = Instant::now();
        let mut health = Health::new(now);
        assert!(health.silent_since(now + EVERY));
        health.served(now + 2 * EVERY);
        assert!(!health.silent_since(now + EVERY));
    }
}
