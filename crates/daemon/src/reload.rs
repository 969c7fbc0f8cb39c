//! A daemon's configuration file, read again on SIGHUP. A file that cannot be used changes nothing: the log and
//! `/readyz` say so until a good one is read.

use crate::drain::{Reloads, Shutdown};
use crate::readiness::{Gate, Readiness};
use crate::utc;
use postern_config::{ConfigFile, Reading};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// Reads a daemon's configuration file again on each reload request.
#[derive(Debug)]
pub struct Reloader<T> {
    file: ConfigFile<T>,
    requests: Reloads,
    gate: Gate,
}

impl<T: DeserializeOwned + Serialize + JsonSchema> Reloader<T> {
    /// Adds the gate "configuration" to `readiness`.
    #[must_use]
    pub fn new(file: ConfigFile<T>, readiness: &Readiness, shutdown: &Shutdown) -> Self {
        let gate = readiness.gate("configuration");
        gate.set_ready();
        Self { file, requests: shutdown.reloads(), gate }
    }

    /// Completes when a reload was requested since the last call. Cancel safe.
    pub async fn requested(&mut self) {
        self.requests.next().await;
    }

    /// Reads the file again. `live` are the prefixes of the keys that the daemon applies at once ("accounts",
    /// "limits.body_timeout"); `check` is what its start would refuse.
    ///
    /// Returns what to run with from now on, when a live key has changed: the live keys as the file has them, the
    /// others as they were. Logs what changed, what is in force, and what needs a restart. Blocks on the
    /// disk.
    pub fn reload<E: Display>(&mut self, live: &[&str], check: impl Fn(&T) -> Result<(), E>) -> Option<T> {
        let reading = self.file.read_again(live, check);
        let path = self.file.path().display();
        match reading {
            Ok(Reading { config, applied, pending }) => {
                self.gate.set_ready();
                if applied.is_empty() && pending.is_empty() {
                    tracing::info!("{path} was read again: nothing in it has changed");
                }
                if !applied.is_empty() {
                    tracing::info!(
                        "{path} was read again, and is in force from now on: {}",
                        applied.join("; ")
                    );
                }
                if !pending.is_empty() {
                    tracing::warn!(
                        "{path} was read again, and these changes wait for a restart: {}",
                        pending.join("; ")
                    );
                }
                (!applied.is_empty()).then_some(config)
            }
            Err(reason) => {
                let reason = reason.replace('\n', "; ");
                // Before the log, so that readiness agrees with it.
                self.gate.set_degraded(format!(
                    "the configuration file cannot be used since {}, and what was read before stays in force: \
                     {reason}; mend the file and send SIGHUP again",
                    utc::now()
                ));
                tracing::error!(
                    "{path} cannot be used, and what was read before stays in force: {reason}; mend the file and send \
                     SIGHUP again"
                );
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
