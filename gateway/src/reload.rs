//! What a reload of the configuration changes while the gateway serves: limits, where tunnels may go, the access log.
//! Everything else needs a restart.

use crate::config::Config;
use crate::state::Core;
use postern_daemon::reload::Reloader;
use std::fmt::Display;
use std::sync::Arc;

/// The keys that take effect at once.
const LIVE: [&str; 3] = ["limits", "egress", "log.access"];

/// Reads the configuration again on each request for it, until the stop. `check` is what a start would refuse.
pub(crate) async fn run<E: Display>(
    mut reloader: Reloader<Config>,
    core: Arc<Core>,
    check: impl Fn(&Config) -> Result<(), E>,
) {
    let reloading = async {
        loop {
            reloader.requested().await;
            if let Some(config) = reloader.reload(&LIVE, &check) {
                core.settings.replace(&config);
                core.recorder.log_accesses(config.log.access);
            }
        }
    };
    core.shutdown.until_stopped(reloading).await;
}
