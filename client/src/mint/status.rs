//! The state of minting, for readiness, the log and the live page.

use crate::recorder::{Recorder, Trouble};
use crate::wallet::clock::Skew;
use crate::wallet::supply::{Demand, Failure};
use postern_daemon::readiness::Gate;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lasting failure is logged again after this time.
const AGAIN: Duration = Duration::from_secs(600);

/// Publishes the state of minting.
pub(crate) struct MintingStatus {
    gate: Gate,
    recorder: Arc<Recorder>,
    /// The failure that was logged last, and when.
    logged: Option<(String, Instant)>,
}

impl MintingStatus {
    pub(crate) fn new(gate: Gate, recorder: Arc<Recorder>) -> Self {
        Self { gate, recorder, logged: None }
    }

    /// An attempt to mint has ended. Logs each cause once, and again at intervals while it lasts.
    pub(crate) fn attempted(&mut self, failure: Option<&Failure>) {
        if let Some(failure) = failure {
            self.recorder.mint_failed(&failure.sentence);
        }
        match failure {
            // `gateways` reports outages of gateways.
            Some(failure) if failure.is_gateway => {}
            Some(failure) => {
                if failure.is_of_marks {
                    self.recorder.marks_refused();
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

    /// The difference between the clocks of this machine and of the issuer has changed.
    pub(crate) fn clock_skew_changed(&self, skew: Skew) {
        if skew.is_some() {
            tracing::warn!("{skew}; until then the issuer's clock is used for the times of keys");
        } else {
            tracing::info!("this machine's clock and the issuer's agree again");
        }
    }

    /// `on_demand`: no tokens are kept ready, so an empty wallet is normal. `on_trial`: none are for a while.
    pub(crate) fn publish(&self, demand: &Demand, skew: Skew, on_demand: bool, on_trial: bool) {
        let held = demand.level + demand.older;
        let is_stocked = demand.current.as_ref().is_some_and(|current| current.has_context || held > 0);
        let failure = demand.failure.as_ref().filter(|failure| !failure.is_gateway);
        self.recorder.minting(failure.map(|failure| Trouble {
            sentence: failure.sentence.clone(),
            next_attempt: failure.next_attempt,
            is_stocked,
        }));
        match failure {
            Some(failure) if is_stocked => self.gate.set_degraded(format!(
                "{held} tokens are left, and no more can be minted: {}",
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
                 ten to twenty minutes, each request waits for a token of its own",
            ),
            None if on_demand && skew.is_some() => self.gate.set_degraded(skew.to_string()),
            None if on_demand => self.gate.set_ready(),
            None => self.gate.set_not_ready("the wallet is empty; tokens are being minted"),
        }
    }
}

/// Two messages that differ only in seconds or ports have one cause.
fn without_numbers(sentence: &str) -> String {
    sentence.chars().filter(|c| !c.is_ascii_digit()).collect()
}
