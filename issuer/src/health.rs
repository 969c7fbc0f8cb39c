//! Faults of the issuer, for `/readyz` and the log. Each is logged once when it begins, with its cause and remedy, and once
//! when it ends.

use crate::catalogue::IssuerOutcome;
use crate::recorder::Recorder;
use parking_lot::Mutex;
use postern_daemon::readiness::Gate;
use std::collections::BTreeMap;
use std::time::Duration;

/// Window in which overload is measured.
const WINDOW: Duration = Duration::from_secs(10);
/// Minimum number of refusals in a window; fewer are a burst, not an overload.
const LEAST_REFUSED: u64 = 10;

/// A fault that needs an operator, in the order of `/readyz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// No key signs for an issued type: requests for its tokens are refused.
    NoKey,
    /// A key in use is in the HSM and cannot sign: requests for its tokens are refused.
    NoSigner,
    /// The next key cannot be made.
    NextKey,
    /// The HSM, or a key in it, is not usable.
    Hsm,
    /// The quota counts cannot be written.
    Counts,
    /// Accounts have a tier that is not in the configuration.
    Terms,
    /// The authorizer does not answer, or its answers are invalid.
    Authorizer,
    /// The machine's clock contradicts the files.
    Clock,
    /// The signers refuse most requests.
    Overload,
}

#[derive(Debug)]
pub(crate) struct Health {
    gate: Gate,
    present: Mutex<BTreeMap<Fault, String>>,
}

impl Health {
    /// Creates a health that is not ready ("starting") until [`Health::started`].
    pub(crate) fn new(gate: Gate) -> Self {
        Self { gate, present: Mutex::default() }
    }

    pub(crate) fn started(&self) {
        self.show(&self.present.lock());
    }

    /// Records a fault and its reason. A changed reason is shown, but not logged again.
    pub(crate) fn raise(&self, fault: Fault, reason: impl Into<String>) {
        let reason = reason.into();
        let mut present = self.present.lock();
        match fault {
            _ if present.contains_key(&fault) => {}
            Fault::NoKey | Fault::NoSigner | Fault::NextKey => tracing::error!("{reason}"),
            _ => tracing::warn!("{reason}"),
        }
        present.insert(fault, reason);
        self.show(&present);
    }

    /// Ends a fault, if it is present.
    pub(crate) fn clear(&self, fault: Fault) {
        let mut present = self.present.lock();
        if present.remove(&fault).is_some() {
            tracing::info!("{}", fault.over());
            self.show(&present);
        }
    }

    /// Records a fault with this reason, or ends it without one.
    pub(crate) fn set(&self, fault: Fault, reason: Option<impl Into<String>>) {
        match reason {
            Some(reason) => self.raise(fault, reason),
            None => self.clear(fault),
        }
    }

    fn show(&self, present: &BTreeMap<Fault, String>) {
        let reasons = present.values().cloned().collect::<Vec<_>>().join("; ");
        let refuses = [Fault::NoKey, Fault::NoSigner];
        if refuses.iter().any(|fault| present.contains_key(fault)) {
            self.gate.set_not_ready(reasons);
        } else if present.is_empty() {
            self.gate.set_ready();
        } else {
            self.gate.set_degraded(reasons);
        }
    }

    /// Raises and clears the overload fault: in each window, from the token requests that were refused because all signers were
    /// busy. Never returns; cancel safe.
    pub(crate) async fn watch_overload(&self, recorder: &Recorder) {
        let answered = |outcome| recorder.total(outcome);
        let issued = || answered(IssuerOutcome::Issued) + answered(IssuerOutcome::Partial);
        let totals = || (answered(IssuerOutcome::Overloaded), issued());
        let mut before = totals();
        loop {
            tokio::time::sleep(WINDOW).await;
            let now = totals();
            self.set(Fault::Overload, overload(now.0 - before.0, now.1 - before.1));
            before = now;
        }
    }
}

impl Fault {
    const fn over(self) -> &'static str {
        match self {
            Self::NoKey => "a token key is in use again",
            Self::NextKey => "the next token key is there again",
            Self::NoSigner => "the token keys in use sign again",
            Self::Hsm => "the HSM and its keys are in order again",
            Self::Counts => "the quota counts are written again",
            Self::Terms => "every account has terms again",
            Self::Authorizer => "the authorizer answers again, or was reconfigured",
            Self::Clock => "the clock agrees with the files or the database again",
            Self::Overload => "the signers answer most requests again",
        }
    }
}

fn overload(refused: u64, issued: u64) -> Option<String> {
    (refused >= LEAST_REFUSED && refused >= issued).then(|| {
        format!(
            "{refused} of {} token requests of the last {} s were refused with 503, because all signers were busy: run the \
             issuer on more cores ([signing] threads), or lower the accounts' quotas",
            refused + issued,
            WINDOW.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_daemon::readiness::Readiness;

    #[test]
    fn readiness_has_every_fault_and_its_cause() {
        let readiness = Readiness::new();
        let health = Health::new(readiness.gate("issuer"));
        assert_eq!(readiness.reasons(), ["issuer: starting"]);
        health.raise(Fault::Counts, "no space");
        health.started();
        assert_eq!(
            (readiness.reasons().len(), readiness.degraded()),
            (0, vec!["issuer: no space".to_owned()])
        );
        health.raise(Fault::NoKey, "no key");
        assert_eq!(readiness.reasons(), ["issuer: no key; no space"]);
        health.clear(Fault::NoKey);
        health.clear(Fault::Clock);
        health.raise(Fault::Counts, "still no space");
        assert_eq!(readiness.degraded(), ["issuer: still no space"]);
        health.clear(Fault::Counts);
        assert!(readiness.reasons().is_empty() && readiness.degraded().is_empty());
    }

    #[test]
    fn overload_is_when_most_requests_are_refused() {
        assert_eq!(overload(0, 0), None);
        assert_eq!(overload(9, 0), None);
        assert_eq!(overload(500, 501), None);
        assert!(overload(501, 500).unwrap().starts_with("501 of 1001 token requests of the last 10 s"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_of_refusals_is_seen_and_its_end() {
        let (readiness, recorder) = (Readiness::new(), Recorder::new());
        let health = Health::new(readiness.gate("issuer"));
        health.started();
        let refusals = || (0..20).for_each(|_| recorder.answered(None, IssuerOutcome::Overloaded, WINDOW));
        let watching = health.watch_overload(&recorder);
        let mut watching = std::pin::pin!(watching);
        let mut seen = Vec::new();
        let _ = tokio::time::timeout(Duration::from_millis(1), &mut watching).await; // it has begun to count
        for has_refusals in [true, true, false] {
            if has_refusals {
                refusals();
            }
            let _ = tokio::time::timeout(WINDOW, &mut watching).await;
            seen.push(readiness.degraded().len());
        }
        assert_eq!(seen, [1, 1, 0]);
    }
}
