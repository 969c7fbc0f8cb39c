//! Keeps a certificate good for as long as the server runs.

use super::AcmeConfig;
use super::authority::known;
use super::order::{OrderError, order};
use super::when::Window;
use crate::backoff::{Backoff, jittered};
use crate::drain::Reloads;
use crate::files::DataDir;
use crate::http::chain;
use crate::tls::identity::{Identity, LOOKS, Report, now};
use crate::tls::validity::{Validity, Verdict, names};
use crate::utc::rough;
use instant_acme::CertificateIdentifier;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Authorities count failures: some allow five an hour.
const AFTER_FAILURES: Backoff =
    Backoff { first: Duration::from_secs(120), longest: Duration::from_secs(6 * 3600) };
/// The time limit of an order from its first request to its last.
const ORDER: Duration = Duration::from_secs(600);
/// The time limit of the question when to renew.
const ADVICE: Duration = Duration::from_secs(60);
/// How often to ask it, where the authority does not say how often.
const ASK: Duration = Duration::from_secs(6 * 3600);
const ASK_OFTEN: Duration = Duration::from_secs(3600);
const ASK_SELDOM: Duration = Duration::from_secs(24 * 3600);
/// After a success nothing is ordered for a quarter of the certificate's life, and for this long at most, whatever the authority
/// advises: it counts certificates, too.
const REST: Duration = Duration::from_secs(6 * 3600);

/// Orders and renews the certificate, without end.
pub(crate) async fn keep<F: Fn(u64)>(
    identity: &Identity,
    (config, folder): (&AcmeConfig, &DataDir),
    mut report: Report<F>,
    mut reloads: Reloads,
) {
    let start = Instant::now();
    let mut renewal = Renewal {
        identity,
        config,
        folder,
        plan: None,
        ask_at: start,
        failures: 0,
        rest_until: start,
        trouble: None,
    };
    loop {
        report.set(renewal.verdict(), identity.ends());
        let left = Duration::from_secs(renewal.due().await.saturating_sub(now()));
        let pause = left.max(renewal.rest_until.saturating_duration_since(Instant::now()));
        if pause.is_zero() {
            renewal.attempt().await;
        } else if timeout(pause.min(LOOKS), reloads.next()).await.is_ok() {
            renewal.ask_at = Instant::now();
            renewal.rest_until = renewal.ask_at; // somebody has mended something
        }
    }
}

struct Renewal<'a> {
    identity: &'a Identity,
    config: &'a AcmeConfig,
    folder: &'a DataDir,
    plan: Option<Plan>,
    /// When to ask the authority again when to renew. By a clock that is not set, as the next.
    ask_at: Instant,
    failures: u32,
    /// Before this nothing is ordered.
    rest_until: Instant,
    trouble: Option<String>,
}

/// When a certificate is to be renewed, and what that was derived from.
#[derive(Clone, Copy)]
struct Plan {
    validity: Validity,
    advice: Option<Window>,
    due: u64,
}

impl Renewal<'_> {
    /// The second at which to renew; 0 where there is no certificate that fits.
    async fn due(&mut self) -> u64 {
        let now = now();
        let Some(validity) = self.fit().filter(|validity| now <= validity.until) else { return 0 };
        let advice = if self.ask_at <= Instant::now() {
            let (advice, pause) = self.advice().await;
            self.ask_at = Instant::now() + pause;
            advice
        } else {
            self.plan.and_then(|plan| plan.advice)
        };
        match self.plan {
            Some(plan) if (plan.validity, plan.advice) == (validity, advice) => plan.due,
            _ => {
                let due = validity.renewal(advice, now, rand::random());
                self.plan = Some(Plan { validity, advice, due });
                due
            }
        }
    }

    /// How long the certificate is valid, if it has the names of the configuration.
    fn fit(&self) -> Option<Validity> {
        let shown = self.identity.chain()?;
        let wanted: BTreeSet<_> = self.config.names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Validity::of(shown.first()?)
            .filter(|_| shown.first().is_some_and(|own| wanted.is_subset(&names(own))))
    }

    /// When the authority would have the certificate renewed, and when to ask again.
    async fn advice(&self) -> (Option<Window>, Duration) {
        let asking = async {
            let shown = self.identity.chain()?;
            let certificate = CertificateIdentifier::try_from(shown.first()?).ok()?;
            let account = known(self.config, self.folder).await.ok()??;
            let (info, pause) = account.renewal_info(&certificate).await.ok()?;
            let [start, end] = [info.suggested_window.start, info.suggested_window.end]
                .map(|time| u64::try_from(time.unix_timestamp()).unwrap_or_default());
            Some((Window { start, end }, pause.clamp(ASK_OFTEN, ASK_SELDOM)))
        };
        match timeout(ADVICE, asking).await.ok().flatten() {
            Some((window, pause)) => (Some(window), pause),
            None => (None, ASK), // not every authority gives it
        }
    }

    async fn attempt(&mut self) {
        let Identity { challenges, .. } = self.identity;
        let shown = self.identity.chain();
        let shown = shown.as_deref().and_then(|chain| chain.first());
        let ordered = timeout(ORDER, order(self.config, self.folder, challenges, shown)).await;
        challenges.forget();
        let ordered = ordered.unwrap_or(Err(OrderError::TooLong(ORDER))).map_err(|error| chain(&error));
        let used = ordered.and_then(|()| self.identity.read_again().map_err(|error| error.to_string()));
        match used.and_then(|()| self.given()) {
            Ok(life) => {
                tracing::info!("the authority gave a certificate, which is used for new connections");
                (self.failures, self.ask_at, self.trouble) = (0, Instant::now(), None);
                self.rest_until = self.ask_at + (life / 4).min(REST);
            }
            Err(trouble) => {
                let pause = jittered(AFTER_FAILURES.pause(self.failures), Duration::ZERO, rand::random());
                tracing::warn!(
                    "the authority gave no certificate, the next attempt is in {}: {trouble}",
                    rough(pause.as_secs())
                );
                self.failures += 1;
                self.rest_until = Instant::now() + pause;
                self.trouble = Some(trouble);
            }
        }
    }

    /// For how long the certificate that was given is good; why it does not do.
    fn given(&self) -> Result<Duration, String> {
        let validity = self.fit().ok_or("it gave one without all of the names")?;
        match validity.until.saturating_sub(now()) {
            0 => Err("it gave one that has ended by this machine's clock: set the clock".to_owned()),
            left => Ok(Duration::from_secs(left)),
        }
    }

    fn verdict(&self) -> Verdict {
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
