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
use tokio::time::timeout;

/// Authorities count failures: some allow five an hour.
const AFTER_FAILURES: Backoff =
    Backoff { first: Duration::from_secs(120), longest: Duration::from_secs(6 * 3600) };
/// The time limit of an order from its first request to its last.
const ORDER: Duration = Duration::from_secs(600);
/// The time limit of the question when to renew.
const ADVICE: Duration = Duration::from_secs(60);
/// How often to ask it, where the authority does not say how often. In seconds, as the next two.
const ASK: u64 = 6 * 3600;
const ASK_OFTEN: u64 = 3600;
const ASK_SELDOM: u64 = 24 * 3600;

/// Orders and renews the certificate, without end.
pub(crate) async fn keep<F: Fn(u64)>(
    identity: &Identity,
    (config, folder): (&AcmeConfig, &DataDir),
    mut report: Report<F>,
    mut reloads: Reloads,
) {
    let mut renewal =
        Renewal { identity, config, folder, plan: None, ask_at: 0, failures: 0, retry_at: 0, trouble: None };
    loop {
        report.set(renewal.verdict(), identity.ends());
        let due = renewal.due().await.max(renewal.retry_at);
        let now = now();
        if due <= now {
            renewal.attempt().await;
            continue;
        }
        let pause = Duration::from_secs(due - now).min(LOOKS);
        if timeout(pause, reloads.next()).await.is_ok() {
            (renewal.retry_at, renewal.ask_at) = (0, 0); // somebody has mended something
        }
    }
}

struct Renewal<'a> {
    identity: &'a Identity,
    config: &'a AcmeConfig,
    folder: &'a DataDir,
    plan: Option<Plan>,
    /// When to ask the authority again when to renew.
    ask_at: u64,
    failures: u32,
    retry_at: u64,
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
        let advice = if self.ask_at <= now {
            let (advice, pause) = self.advice().await;
            self.ask_at = now + pause;
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
        Validity::of(shown.first()?).filter(|_| shown.first().is_some_and(|own| names(own) == wanted))
    }

    /// When the authority would have the certificate renewed, and after how many seconds to ask again.
    async fn advice(&self) -> (Option<Window>, u64) {
        let asking = async {
            let shown = self.identity.chain()?;
            let certificate = CertificateIdentifier::try_from(shown.first()?).ok()?;
            let account = known(self.config, self.folder).await.ok()??;
            let (info, pause) = account.renewal_info(&certificate).await.ok()?;
            let [start, end] = [info.suggested_window.start, info.suggested_window.end]
                .map(|time| u64::try_from(time.unix_timestamp()).unwrap_or_default());
            Some((Window { start, end }, pause.as_secs().clamp(ASK_OFTEN, ASK_SELDOM)))
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
        match used.and_then(|()| self.fit().ok_or("the certificate has other names".to_owned())) {
            Ok(_) => {
                tracing::info!("the authority gave a certificate, which is used for new connections");
                (self.failures, self.retry_at, self.ask_at, self.trouble) = (0, 0, 0, None);
            }
            Err(trouble) => {
                let pause = jittered(AFTER_FAILURES.pause(self.failures), Duration::ZERO, rand::random());
                tracing::warn!(
                    "the authority gave no certificate, the next attempt is in {}: {trouble}",
                    rough(pause.as_secs())
                );
                self.failures += 1;
                self.retry_at = now() + pause.as_secs();
                self.trouble = Some(trouble);
            }
        }
    }

    fn verdict(&self) -> Verdict {
        let advice = match &self.trouble {
            Some(trouble) => format!(
                "The last attempt to have another one failed: {trouble}. The next is in {}, or on a reload (SIGHUP)",
                rough(self.retry_at.saturating_sub(now()))
            ),
            None => "Another one is being ordered".to_owned(),
        };
        self.identity.verdict(&advice)
    }
}
