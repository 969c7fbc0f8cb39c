//! When a certificate is renewed, and what follows a failure. `Validity` and `Window` have the rules, without a clock or randomness.

use super::CERTIFICATE;
use super::order::{Authority, Given, OrderError, order};
use crate::backoff::{Backoff, jittered};
use crate::drain::Reloads;
use crate::examination::Finding;
use crate::http::one_line;
use crate::tls::identity::{Identity, LOOKS, Report, Shown};
use crate::tls::validity::Validity;
use crate::utc::{rough, unix_now as now};
use instant_acme::{CertificateIdentifier, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Pauses after failures, which authorities count: some allow five an hour.
const AFTER_FAILURES: Backoff =
    Backoff { first: Duration::from_secs(120), longest: Duration::from_secs(6 * 3600) };
/// The time limit of an order from its first request to its last.
const ORDER: Duration = Duration::from_secs(600);
/// Time limit of a request for renewal advice.
const ADVICE: Duration = Duration::from_secs(60);
/// Interval between requests for advice: the default, the minimum and the maximum.
const ASK: Duration = Duration::from_secs(6 * 3600);
const ASK_OFTEN: Duration = Duration::from_secs(3600);
const ASK_SELDOM: Duration = Duration::from_secs(24 * 3600);

/// Orders and renews the certificate; never returns.
pub(crate) async fn keep<F: Fn(u64)>(
    identity: &Identity,
    authority: &Authority,
    mut report: Report<F>,
    mut reloads: Reloads,
) {
    let mut renewal = Renewal::new(identity, authority);
    loop {
        report.set(renewal.verdict(), identity.ends());
        let left = Duration::from_secs(renewal.due().await.saturating_sub(now()));
        let pause = left.max(renewal.rest_until.saturating_duration_since(Instant::now()));
        if pause.is_zero() {
            renewal.attempt().await;
            continue;
        }
        if timeout(renewal.look(pause), reloads.next()).await.is_ok() {
            renewal.hasten();
        }
    }
}

struct Renewal<'a> {
    identity: &'a Identity,
    authority: &'a Authority,
    plan: Option<Plan>,
    /// Times of the last and the next request for renewal advice, by a monotonic clock, as are the two below.
    asked_at: Instant,
    ask_at: Instant,
    failures: u32,
    /// Time before which nothing is ordered, unless a reload comes.
    rest_until: Instant,
    /// Time before which nothing is ordered, even on a reload.
    earliest: Instant,
    trouble: Option<String>,
}

/// Renewal time of a certificate, and the data that it was derived from.
#[derive(Clone, Copy)]
struct Plan {
    validity: Validity,
    advice: Option<Window>,
    due: u64,
}

impl<'a> Renewal<'a> {
    fn new(identity: &'a Identity, authority: &'a Authority) -> Self {
        let now = Instant::now();
        let (asked_at, ask_at, rest_until, earliest) = (now, now, now, now);
        Self {
            identity,
            authority,
            plan: None,
            asked_at,
            ask_at,
            failures: 0,
            rest_until,
            earliest,
            trouble: None,
        }
    }

    /// Returns the second of the renewal; 0 if there is no suitable certificate.
    async fn due(&mut self) -> u64 {
        let now = now();
        let Some(validity) = self.fit().filter(|validity| now <= validity.until) else { return 0 };
        let mut advice = self.plan.and_then(|plan| plan.advice);
        if self.ask_at <= Instant::now() {
            let mut pause = ASK;
            match self.advice().await {
                Ok(Some((window, again))) => (advice, pause) = (Some(window), again),
                Ok(None) => advice = None, // not every authority supports it
                Err(OrderError(error)) => tracing::warn!(
                    "the authority did not say when to renew the certificate, so what it said before stays: {error}"
                ),
            }
            self.asked_at = Instant::now();
            self.ask_at = self.asked_at + pause;
        }
        match self.plan {
            Some(plan) if (plan.validity, plan.advice) == (validity, advice) => plan.due,
            _ => {
                let due = validity.renewal(advice, now, rand::random());
                self.plan = Some(Plan { validity, advice, due });
                due
            }
        }
    }

    /// Returns the validity of the certificate; `None` unless it has the names of the configuration.
    fn fit(&self) -> Option<Validity> {
        self.authority.config.fits(self.identity.shown()?.own()?)
    }

    /// Requests the authority's renewal window and the pause before the next request; `None` if the authority does not support
    /// it.
    async fn advice(&self) -> Result<Option<(Window, Duration)>, OrderError> {
        let (shown, authority) = (self.identity.shown(), self.authority.clone());
        let asking = async move {
            let own = shown.as_deref().and_then(Shown::own);
            let certificate = own.and_then(|own| CertificateIdentifier::try_from(own).ok());
            let Some(certificate) = certificate else { return Ok(None) };
            let Some(account) = authority.known_account().await? else { return Ok(None) };
            let (info, pause) = match account.renewal_info(&certificate).await {
                Err(Error::Unsupported(_)) => return Ok(None),
                answered => answered?,
            };
            let [start, end] = [info.suggested_window.start, info.suggested_window.end]
                .map(|time| u64::try_from(time.unix_timestamp()).unwrap_or_default());
            Ok(Some((Window { start, end }, pause.clamp(ASK_OFTEN, ASK_SELDOM))))
        };
        apart(ADVICE, asking).await
    }

    async fn attempt(&mut self) {
        let is_finalized = Arc::new(AtomicBool::new(false));
        let ordering = {
            let (authority, shown) = (self.authority.clone(), self.identity.shown());
            let (challenges, is_finalized) =
                (Arc::clone(&self.identity.challenges), Arc::clone(&is_finalized));
            async move { order(&authority, &challenges, shown.as_deref(), &is_finalized).await }
        };
        let ordered = apart(ORDER, ordering).await;
        self.identity.challenges.forget();
        match ordered {
            Ok(given) => self.succeed(given).await,
            Err(OrderError(error)) => self.fail(error, is_finalized.load(Ordering::Relaxed)),
        }
    }

    async fn succeed(&mut self, Given { pem, shown, validity }: Given) {
        if let Err(OrderError(error)) = self.authority.keep(CERTIFICATE, pem.into_bytes()).await {
            tracing::error!(
                "the new certificate is used, but not kept, so a restart orders another: {error}"
            );
        }
        self.identity.show(shown);
        tracing::info!("the authority gave a certificate, which is used for new connections");
        (self.failures, self.trouble, self.plan) = (0, None, None);
        self.ask_at = Instant::now();
        self.earliest = self.ask_at + validity.spacing();
        self.rest_until = self.ask_at + validity.rest(now());
    }

    fn fail(&mut self, trouble: String, is_finalized: bool) {
        // An early retry would use up the authority's limit of a week.
        let pause = if is_finalized { AFTER_FAILURES.longest } else { AFTER_FAILURES.pause(self.failures) };
        let pause = jittered(pause, Duration::ZERO, rand::random());
        tracing::warn!(
            "the authority gave no certificate, the next attempt is in {}: {trouble}",
            rough(pause.as_secs())
        );
        self.failures += 1;
        self.earliest = Instant::now() + SPACING;
        self.rest_until = Instant::now() + pause;
        self.trouble = Some(trouble);
    }

    /// Handles a reload: an operator may have corrected something. Automation may send one each second, so `earliest` still
    /// applies.
    fn hasten(&mut self) {
        let (now, fit) = (Instant::now(), self.fit());
        self.rest_until = self.rest_until.min(self.earliest);
        let mut next = self.rest_until;
        if let Some(validity) = fit {
            self.ask_at = self.ask_at.min(self.asked_at + validity.spacing());
            next = next.max(self.ask_at);
        }
        if next > now {
            tracing::info!(
                "reload: the next attempt to renew the certificate is postponed by {}, because authorities limit requests",
                rough((next - now).as_secs().max(1))
            );
        }
    }

    /// Returns the pause before the next check, if nothing is to be ordered for `pause`.
    fn look(&self, pause: Duration) -> Duration {
        let question = self.ask_at.saturating_duration_since(Instant::now());
        // Without a certificate there are no requests for advice.
        let question = if question.is_zero() { LOOKS } else { question };
        pause.min(question).min(LOOKS)
    }

    fn verdict(&self) -> Finding {
        let advice = match &self.trouble {
            Some(trouble) => format!(
                "The last attempt to have another one failed: {trouble}. The next is in {}, or on a reload (SIGHUP)",
                rough(self.rest_until.saturating_duration_since(Instant::now()).as_secs())
            ),
            None => "Another one is being ordered".to_owned(),
        };
        self.identity.verdict(&advice)
    }
}

/// Runs work of the ACME client in a task, so that a panic in it is a failure like others. The task ends with this future.
async fn apart<T: Send + 'static>(
    limit: Duration,
    work: impl Future<Output = Result<T, OrderError>> + Send + 'static,
) -> Result<T, OrderError> {
    match timeout(limit, AbortOnDropHandle::new(tokio::spawn(work))).await {
        Ok(Ok(done)) => done,
        Ok(Err(ended)) => {
            let ended = one_line(ended.to_string().as_bytes());
            Err(OrderError(format!("the ACME client failed, which is a defect: {ended}")))
        }
        Err(_) => Err(OrderError(format!("the authority took longer than {limit:?}"))),
    }
}

/// Minimum time between two attempts, unless the certificate's life is only minutes.
const SPACING: Duration = Duration::from_secs(60);
/// Minimum time between two attempts for such a short life.
const LEAST_SPACING: Duration = Duration::from_secs(5);
/// Maximum rest after a success.
const LONGEST_REST: Duration = Duration::from_secs(6 * 3600);

/// Renewal window suggested by the authority (RFC 9773, section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    start: u64,
    end: u64,
}

impl Validity {
    fn life(self) -> u64 {
        self.until.saturating_sub(self.from)
    }

    /// Returns the time after the issuance of this certificate in which nothing is ordered, not even on a reload: a minute, or a
    /// quarter of a life shorter than four minutes, so that there is time for a second attempt.
    fn spacing(self) -> Duration {
        (Duration::from_secs(self.life()) / 4).clamp(LEAST_SPACING, SPACING)
    }

    /// Returns the time after the issuance at `now` in which nothing is ordered, whatever the authority advises, because it also
    /// counts certificates: a quarter of the remaining life, at most six hours. A reload (SIGHUP) ends it.
    fn rest(self, now: u64) -> Duration {
        let left = Duration::from_secs(self.until.saturating_sub(now));
        (left / 4).clamp(self.spacing(), LONGEST_REST)
    }

    /// Returns the second of the renewal: the one at `chance` (0 to 1) in the suitable range. Without advice, the range is from a
    /// third to 7/30 of the life before the end, so that the servers of a fleet do not renew together.
    fn renewal(self, advice: Option<Window>, now: u64, chance: f64) -> u64 {
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
