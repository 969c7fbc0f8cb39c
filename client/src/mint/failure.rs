//! Failed attempts to mint: the pause, and the report in readiness, log and live page.

use super::consistency::Inconsistent;
use super::error::MintError;
use crate::hop::health::Outage;
use crate::hop::marks::MarksRefused;
use crate::recorder::{FailureKind, FailureStatus, Recorder};
use crate::wallet::clock::Skew;
use crate::wallet::file::WalletError;
use crate::wallet::supply::{Demand, Failure};
use postern_daemon::backoff::{Backoff, jittered};
use postern_daemon::readiness::Gate;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between attempts.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(60) };
/// Longest pause while gateway and issuer disagree on a key: gateways catch up within seconds.
const LONGEST_KEY_PAUSE: Duration = Duration::from_secs(4);
/// Longest pause while the gateway is away.
const LONGEST_GATEWAY_PAUSE: Duration = Duration::from_secs(2);
/// Shortest pause after a failure that needs an operator: a refused account, a missing certificate.
const LASTING_PAUSE: Duration = Duration::from_secs(20);
/// Limit on an issuer's `Retry-After`, so that a raised quota is noticed within minutes.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(240);
/// Time after which a lasting failure is logged again.
const AGAIN: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    #[error(transparent)]
    Gateway(#[from] Outage),
    #[error(transparent)]
    Mint(#[from] MintError),
    #[error(transparent)]
    Wallet(#[from] WalletError),
    #[error(transparent)]
    Marks(#[from] MarksRefused),
    #[error(transparent)]
    Consistency(#[from] Inconsistent),
}

impl AttemptError {
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::Gateway(_) => FailureKind::Gateway,
            Self::Mint(error) if error.is_of_key() => FailureKind::Key,
            Self::Marks(_) => FailureKind::Mark,
            Self::Mint(error) if !error.is_lasting() => FailureKind::Passing,
            Self::Consistency(error) if !error.is_difference() => FailureKind::Passing,
            Self::Consistency(_) | Self::Mint(_) | Self::Wallet(_) => FailureKind::Lasting,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Mint(error) => error.retry_after(),
            Self::Marks(error) => Some(error.left),
            Self::Gateway(_) | Self::Wallet(_) | Self::Consistency(_) => None,
        }
    }
}

/// Publisher of the state of minting: readiness, log, and live page.
pub(crate) struct MintingStatus {
    gate: Gate,
    recorder: Arc<Recorder>,
    /// The last failure that was logged, and when.
    logged: Option<(String, Instant)>,
}

impl MintingStatus {
    pub(crate) fn new(gate: Gate, recorder: Arc<Recorder>) -> Self {
        Self { gate, recorder, logged: None }
    }

    /// Records the end of an attempt. Logs each cause once, and again at intervals while it lasts.
    pub(crate) fn attempted(&mut self, failure: Option<&Failure>) {
        if let Some(failure) = failure {
            let failed = FailureStatus { at: UnixSeconds::now(), sentence: failure.sentence.clone() };
            self.recorder.minting.lock().last_failure = Some(failed);
        }
        match failure {
            // `gateways` reports outages of gateways.
            Some(failure) if failure.kind == FailureKind::Gateway => {}
            Some(failure) => {
                if failure.kind == FailureKind::Mark {
                    self.recorder.marks_refused.increment(1);
                }
                let cause = without_numbers(&failure.sentence);
                let is_known = self
                    .logged
                    .as_ref()
                    .is_some_and(|(known, when)| *known == cause && when.elapsed() < AGAIN);
                if !is_known {
                    tracing::warn!("no tokens can be minted: {}", failure.sentence);
                    self.logged = Some((cause, Instant::now()));
                }
            }
            None if self.logged.take().is_some() => tracing::info!("tokens are minted again"),
            None => {}
        }
    }

    pub(crate) fn clock_skew_changed(&self, skew: Skew) {
        if skew.is_some() {
            tracing::warn!("{skew}; until then the issuer's clock is used for the times of keys");
        } else {
            tracing::info!("this machine's clock and the issuer's agree again");
        }
    }

    /// Publishes readiness. An empty wallet is normal `on_demand`, and for a while `on_trial`.
    pub(crate) fn publish(&self, demand: &Demand, skew: Skew, on_demand: bool, on_trial: bool) {
        let is_stocked = demand.is_stocked();
        let failure = demand.failure.as_ref().filter(|failure| failure.kind != FailureKind::Gateway);
        self.recorder.minting.lock().trouble = failure.map(|failure| (failure.clone(), is_stocked));
        match failure {
            Some(failure) if is_stocked => self.gate.set_degraded(format!(
                "{} tokens are left, and no more can be minted: {}",
                demand.held(),
                failure.sentence
            )),
            _ if is_stocked && skew.is_some() => self.gate.set_degraded(skew.to_string()),
            _ if is_stocked => self.gate.set_ready(),
            Some(failure) => self.gate.set_not_ready(&failure.sentence),
            None if demand.current.is_none() => {
                self.gate.set_not_ready("the gateway's challenge is not known yet")
            }
            None if on_trial => self.gate.set_degraded(
                "the gateway has a new mark, as after a loss of records, or another challenge than before: until it has lasted for \
                 ten to twenty minutes, each request waits for its own token",
            ),
            None if on_demand && skew.is_some() => self.gate.set_degraded(skew.to_string()),
            None if on_demand => self.gate.set_ready(),
            None => self.gate.set_not_ready("the wallet is empty; tokens are being minted"),
        }
    }
}

/// Removes digits: messages that differ only in seconds or ports have one cause.
fn without_numbers(sentence: &str) -> String {
    sentence.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Returns the pause before the next attempt; `jitter` as in [`jittered`].
pub(crate) fn pause(
    failures: u32,
    kind: FailureKind,
    retry_after: Option<Duration>,
    jitter: f64,
) -> Duration {
    let doubled = BACKOFF.pause(failures);
    let ours = match kind {
        FailureKind::Gateway => doubled.min(LONGEST_GATEWAY_PAUSE),
        FailureKind::Key => doubled.min(LONGEST_KEY_PAUSE),
        FailureKind::Mark => BACKOFF.first,
        FailureKind::Passing => doubled,
        FailureKind::Lasting => doubled.max(LASTING_PAUSE),
    };
    jittered(ours, retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER), jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_respect_the_issuer() {
        use FailureKind::{Gateway, Key, Lasting, Mark, Passing};
        assert_eq!(pause(0, Passing, None, 1.0), BACKOFF.first);
        assert_eq!(pause(1, Passing, None, 1.0), 2 * BACKOFF.first);
        assert_eq!(pause(1, Passing, None, 0.0), BACKOFF.first);
        assert_eq!(pause(u32::MAX, Passing, None, 1.0), BACKOFF.longest);
        assert_eq!(pause(0, Lasting, None, 1.0), LASTING_PAUSE);
        assert_eq!(pause(u32::MAX, Key, None, 1.0), LONGEST_KEY_PAUSE);
        assert_eq!(pause(u32::MAX, Gateway, None, 1.0), LONGEST_GATEWAY_PAUSE);
        assert_eq!(pause(u32::MAX, Mark, Some(Duration::from_secs(1)), 0.0), Duration::from_secs(1));
        let said = Duration::from_secs(100);
        for jitter in [0.0, 0.5, 1.0] {
            assert!((said..=said.mul_f64(1.2)).contains(&pause(3, Passing, Some(said), jitter)));
        }
        let longest = pause(0, Passing, Some(Duration::MAX), 1.0);
        assert!(longest <= Duration::from_secs(300), "{longest:?}: a raised quota is noticed within minutes");
    }
}
