//! The systemd module of systems without systemd: nothing is watched or reported.

use crate::drain::Shutdown;
use crate::readiness::Readiness;
use std::future::Future;

/// Heartbeats that nothing watches.
#[derive(Clone, Debug, Default)]
pub struct Pulse;

impl Pulse {
    /// Returns a pulse without a watchdog.
    pub fn of_process() -> Self {
        Self
    }

    pub async fn beat(self) {}
}

pub async fn report(_: impl Future<Output = ()>, _: Readiness, _: Pulse, _: Shutdown) {}
