//! What a reload of the configuration changes while the gateway serves: limits, where tunnels may go, the access log.
//! Everything else needs a restart.

use crate::config::{Config, Limits};
use crate::gateway::{Core, check};
use crate::request::egress::Policy;
use arc_swap::ArcSwap;
use postern_daemon::reload::Reloader;
use std::sync::Arc;

/// The keys that take effect at once.
const LIVE: [&str; 3] = ["limits", "egress", "log.access"];

/// The values that may change between two requests. Reading them takes no lock.
pub(crate) struct Settings {
    /// A connection keeps those it began with.
    pub(crate) limits: ArcSwap<Limits>,
    /// Each request is judged by the present one, also on a connection that is older.
    pub(crate) policy: ArcSwap<Policy>,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            limits: ArcSwap::from_pointee(config.limits.clone()),
            policy: ArcSwap::from_pointee(Policy::new(&config.egress)),
        }
    }
}

/// Reads the configuration again on each request for it, until the stop.
pub(crate) async fn run(mut reloader: Reloader<Config>, core: Arc<Core>) {
    let reloading = async {
        loop {
            reloader.requested().await;
            if let Some(config) = reloader.reload(&LIVE, check) {
                core.settings.limits.store(Arc::new(config.limits.clone()));
                core.settings.policy.store(Arc::new(Policy::new(&config.egress)));
                core.recorder.log_accesses(config.log.access);
            }
        }
    };
    core.shutdown.until_stopped(reloading).await;
}
