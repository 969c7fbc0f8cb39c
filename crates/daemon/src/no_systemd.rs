//! The same where there is no systemd: nothing is watched or reported.

use crate::drain::Shutdown;
use crate::readiness::Readiness;
use std::future::Future;

/// Signs of life that nothing watches.
#[derive(Clone, Debug, Default)]
pub struct Pulse;

impl Pulse {
    /// As systemd would want it from this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self
    }

    /// Returns at once.
    pub async fn beat(self) {}
}

/// Returns at once.
pub async fn report(_: impl Future<Output = ()>, _: Readiness, _: Pulse, _: Shutdown) {}
