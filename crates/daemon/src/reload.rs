//! A daemon's configuration file, read again on SIGHUP. An unusable file changes nothing: the log and `/readyz` report it until a
//! valid one is read.

use crate::drain::{Reloads, Shutdown};
use crate::readiness::{Gate, Readiness};
use crate::utc;
use postern_config::{ConfigFile, Fixed, Reading};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// Reader of a daemon's configuration file on each reload request.
#[derive(Debug)]
pub struct Reloader<T> {
    file: ConfigFile<T>,
    requests: Reloads,
    gate: Gate,
}

impl<T: DeserializeOwned + Serialize + JsonSchema> Reloader<T> {
    /// Creates the reader, and adds the gate "configuration" to `readiness`.
    pub fn new(file: ConfigFile<T>, readiness: &Readiness, shutdown: &Shutdown) -> Self {
        let gate = readiness.gate("configuration");
        gate.set_ready();
        Self { file, requests: shutdown.reloads(), gate }
    }

    /// Completes when a reload was requested since the last call. Cancel safe.
    pub async fn requested(&mut self) {
        self.requests.next().await;
    }

    /// Reads the file again. `fixed` are the keys that require a restart; `check` rejects the configurations that a start would
    /// refuse. Returns the reading to put in force if another key has changed: then call [`Reloader::applied`] or
    /// [`Reloader::refused`]. Logs the changes that require a restart. Blocks on the disk.
    pub fn read<E: Display>(
        &mut self,
        fixed: &[Fixed],
        check: impl Fn(&T) -> Result<(), E>,
    ) -> Option<Reading<T>> {
        match self.file.read_again(fixed, check) {
            Ok(reading) if reading.changed.is_empty() => {
                if reading.pending.is_empty() {
                    self.gate.set_ready();
                    tracing::info!(
                        "{} was read again: no setting has changed, and the files that it names are read again, but not those of ca \
                         settings: give a changed one another name",
                        self.file.path().display()
                    );
                } else {
                    self.applied(reading);
                }
                None
            }
            Ok(reading) => Some(reading),
            Err(reason) => {
                self.refused(&reason);
                None
            }
        }
    }

    /// Records that a reading is in force, and logs its changes.
    pub fn applied(&mut self, reading: Reading<T>) {
        self.gate.set_ready(); // before the log, so that readiness agrees with it
        let path = self.file.path().display();
        if !reading.changed.is_empty() {
            tracing::info!(
                "{path} was read again, and is in force from now on: {}",
                reading.changed.join("; ")
            );
        }
        if !reading.pending.is_empty() {
            tracing::warn!(
                "{path} was read again, and these changes wait for a restart: {}. Restart the daemon when it suits; where \
                 systemd holds its port (a socket unit), the restart refuses no client",
                reading.pending.join("; ")
            );
        }
        self.file.adopt(reading);
    }

    /// Records that a reading is not in force: the configuration stays as it was.
    pub fn refused(&mut self, reason: &str) {
        let (path, reason) = (self.file.path().display(), reason.replace('\n', "; "));
        // Before the log, so that readiness agrees with it.
        self.gate.set_degraded(format!(
            "the configuration file cannot be used since {}, and what was read before stays in force: {reason}; mend the \
             file and send SIGHUP again",
            utc::now()
        ));
        tracing::error!(
            "{path} cannot be used, and what was read before stays in force: {reason}; mend the file and send SIGHUP again"
        );
    }
}

#[cfg(test)]
mod tests;
