//! The health of one gateway. No I/O; time and jitter are arguments.

use postern_daemon::backoff::{Backoff, jittered};
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between probes.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(10) };
/// Pauses if each probe costs a token of the previous hop.
const PAID_BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_mins(5) };
/// Limit on a gateway's `Retry-After`.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Minimum pause between probes while a request waits.
const HURRIED_PAUSE: Duration = Duration::from_secs(1);

/// The reason why a gateway serves nothing now.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct Outage {
    pub(crate) sentence: String,
    /// `true` if the gateway answers but serves nothing: its store or the issuer's keys are missing, or this agent sent too much.
    pub(crate) is_unavailable: bool,
    /// The gateway's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// `true` if the previous hop opened no tunnel, for a reason other than the gateway.
    pub(crate) is_of_first_hop: bool,
}

impl Outage {
    /// Returns the outage of a gateway that does not answer, or not as one that can be used.
    pub fn no_answer(sentence: impl ToString) -> Self {
        let sentence = sentence.to_string();
        Self { sentence, is_unavailable: false, retry_after: None, is_of_first_hop: false }
    }

    /// Returns the outage of the gateway at `url`, which gave no challenge within `limit`.
    pub(crate) fn silent(url: &str, limit: Duration) -> Self {
        Self::no_answer(format_args!(
            "the gateway {url} did not answer within {limit:?}: it hangs, or the way to it does"
        ))
    }
}

/// One gateway's health.
#[derive(Clone, Debug)]
pub struct Health {
    standing: Standing,
    /// Failed probes in a row.
    failures: u32,
    /// Start of the last probe.
    probed: Option<Instant>,
    pub(crate) is_probing: bool,
    /// Number of probes that succeeded or failed.
    pub(crate) outcomes: u64,
    /// Time of the last answer of any kind.
    pub(crate) heard: Option<Instant>,
    backoff: Backoff,
}

#[derive(Clone, Debug)]
enum Standing {
    /// Not probed yet, or doubted: a probe precedes the next token.
    Unasked,
    Serving,
    Away {
        outage: Outage,
        next_probe: Instant,
    },
}

impl Health {
    /// Returns a health that is serving if `is_trusted`: an earlier run learned the challenge, so tokens may be sent before a
    /// probe.
    pub fn new(is_trusted: bool) -> Self {
        let standing = if is_trusted { Standing::Serving } else { Standing::Unasked };
        Self {
            standing,
            failures: 0,
            probed: None,
            is_probing: false,
            outcomes: 0,
            heard: None,
            backoff: BACKOFF,
        }
    }

    /// Sets longer pauses, because each probe costs a token of the previous hop.
    #[must_use]
    pub fn with_paid_probes(self) -> Self {
        Self { backoff: PAID_BACKOFF, ..self }
    }

    /// Returns `true` if tokens may be sent to the gateway.
    pub const fn is_serving(&self) -> bool {
        matches!(self.standing, Standing::Serving)
    }

    /// Returns the present outage.
    pub const fn outage(&self) -> Option<&Outage> {
        match &self.standing {
            Standing::Away { outage, .. } => Some(outage),
            Standing::Unasked | Standing::Serving => None,
        }
    }

    /// Returns the time of the next probe: `None` while the gateway serves, `now` while a probe is under way.
    pub fn next_probe(&self, now: Instant) -> Option<Instant> {
        match self.standing {
            Standing::Unasked => Some(now),
            _ if self.is_probing => Some(now),
            Standing::Serving => None,
            Standing::Away { next_probe, .. } => Some(next_probe),
        }
    }

    /// Moves the next probe forward for a waiting request, to at most one probe a second.
    pub fn hurry(&mut self, now: Instant) {
        let soonest = self.probed.map_or(now, |probed| probed + HURRIED_PAUSE).max(now);
        // The gateway's `Retry-After` takes precedence.
        if let Standing::Away { outage, next_probe } = &mut self.standing
            && outage.retry_after.is_none_or(|asked| asked <= HURRIED_PAUSE)
        {
            *next_probe = soonest.min(*next_probe);
        }
    }

    /// Begins a probe unless one is under way; returns true if it began.
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        let begins = !self.is_probing;
        if begins {
            (self.is_probing, self.probed) = (true, Some(now));
        }
        begins
    }

    /// Ends the probe under way.
    pub fn end_probe(&mut self) {
        self.is_probing = false;
    }

    /// Returns the time at which the probe under way will have lasted for `limit`.
    pub fn slow_at(&self, limit: Duration) -> Option<Instant> {
        self.probed.filter(|_| self.is_probing).map(|began| began + limit)
    }

    /// Records a successful probe; returns true if the gateway was away before.
    pub fn served(&mut self, now: Instant) -> bool {
        self.outcomes += 1;
        let was_away = self.outage().is_some();
        (self.standing, self.failures, self.heard) = (Standing::Serving, 0, Some(now));
        was_away
    }

    /// Records an answer of any kind.
    pub fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// Records a failed probe or request; returns true if the outage is new or has another message. `jitter` as in [`jittered`].
    pub fn failed(&mut self, outage: Outage, was_probe: bool, now: Instant, jitter: f64) -> bool {
        self.outcomes += u64::from(was_probe);
        if !was_probe && self.outage().is_some() {
            return false; // one of several requests under way: only probes count now
        }
        let is_news = self.outage().is_none_or(|known| known.sentence != outage.sentence);
        let theirs = outage.retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        let next_probe = now + jittered(self.backoff.pause(self.failures), theirs, jitter);
        self.failures = self.failures.saturating_add(1);
        self.standing = Standing::Away { outage, next_probe };
        is_news
    }

    /// Requires a probe before the next token, because a request broke off.
    pub fn doubt(&mut self) {
        if self.is_serving() {
            self.standing = Standing::Unasked;
        }
    }

    /// Requires a probe before the next token, if a request had no answer for `silence` and no other request had one. Returns
    /// true if the gateway has become doubtful.
    pub fn suspect(&mut self, silence: Duration, now: Instant) -> bool {
        let others_heard = self.heard.is_some_and(|heard| now.saturating_duration_since(heard) < silence);
        let is_doubted = self.is_serving() && !others_heard;
        if is_doubted {
            self.standing = Standing::Unasked;
        }
        is_doubted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn away(health: &mut Health, now: Instant) -> bool {
        health.failed(Outage::no_answer("it is down"), true, now, 1.0)
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_limit_and_a_success_resets_them() {
        let (mut health, now) = (Health::new(false), Instant::now());
        assert_eq!(
            health.next_probe(now),
            Some(now),
            "a gateway that was never probed is probed immediately"
        );
        for millis in [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            away(&mut health, now);
            assert_eq!(health.next_probe(now), Some(now + Duration::from_millis(millis)));
        }
        health.served(now);
        assert_eq!(health.next_probe(now), None);
        assert!(away(&mut health, now), "it is news again");
        assert_eq!(health.next_probe(now), Some(now + BACKOFF.first));
        let mut paid = Health::new(false).with_paid_probes();
        for _ in 0..20 {
            away(&mut paid, now);
        }
        assert_eq!(paid.next_probe(now), Some(now + PAID_BACKOFF.longest));
    }

    #[tokio::test(start_paused = true)]
    async fn someone_who_waits_has_a_probe_sent_within_a_second_and_no_more_than_one_a_second() {
        let (mut health, now) = (Health::new(false), Instant::now());
        for _ in 0..10 {
            away(&mut health, now);
        }
        assert!(health.begin_probe(now) && !health.begin_probe(now), "one at a time");
        health.end_probe();
        health.hurry(now);
        assert_eq!(health.next_probe(now), Some(now + SECOND));
        let refusal = Outage { retry_after: Some(30 * SECOND), ..Outage::no_answer("leave me alone") };
        health.failed(refusal, true, now, 0.0);
        health.hurry(now);
        assert_eq!(health.next_probe(now), Some(now + 30 * SECOND), "the gateway's Retry-After counts");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_doubted_unless_others_are_answered() {
        let (mut health, now) = (Health::new(true), Instant::now());
        health.heard(now);
        assert!(!health.suspect(SECOND, now + SECOND / 2));
        assert!(health.suspect(SECOND, now + SECOND));
        assert!(!health.is_serving());
        assert!(!health.suspect(SECOND, now + 2 * SECOND), "it is doubted already");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_fail_together_are_one_failure() {
        let (mut health, now) = (Health::new(true), Instant::now());
        let down = || Outage::no_answer("it is down");
        assert!(health.failed(down(), false, now, 1.0));
        assert!(!health.failed(down(), false, now, 1.0));
        assert_eq!(health.next_probe(now), Some(now + BACKOFF.first));
    }
}
