//! What a reload of the configuration changes while the issuer serves: accounts, limits, how long the directory may be
//! kept, and the times of the next keys. Everything else needs a restart.

use crate::accounts::Accounts;
use crate::config::{Config, Limits};
use crate::keyring::Keyring;
use arc_swap::{ArcSwap, Guard};
use postern_daemon::descriptors::Descriptors;
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use std::sync::Arc;
use std::time::Duration;

/// The keys that take effect at once.
const LIVE: [&str; 6] =
    ["accounts", "limits", "directory.max_age", "keys.rotate_every", "keys.publish_ahead", "keys.redeem_for"];

/// The values that may change between two requests. Reading them takes no lock.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    present: Arc<ArcSwap<Present>>,
    descriptors: Descriptors,
}

#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) limits: Limits,
    /// The most open connections: those of the limits, if there are descriptors for them.
    pub(crate) connections: usize,
    pub(crate) directory_max_age: Duration,
}

impl Settings {
    pub(crate) fn of(config: &Config, descriptors: Descriptors) -> Self {
        Self { present: Arc::new(ArcSwap::from_pointee(Present::of(config, descriptors))), descriptors }
    }

    fn replace(&self, config: &Config) {
        self.present.store(Arc::new(Present::of(config, self.descriptors)));
    }

    pub(crate) fn load(&self) -> Guard<Arc<Present>> {
        self.present.load()
    }

    /// To be held for longer than a moment.
    pub(crate) fn load_full(&self) -> Arc<Present> {
        self.present.load_full()
    }
}

impl Present {
    fn of(config: &Config, descriptors: Descriptors) -> Self {
        let limits = config.limits.clone();
        let connections = descriptors.connections("[limits] connections", limits.connections.get(), 1);
        Self { limits, connections, directory_max_age: config.directory.max_age() }
    }
}

/// What a reload reaches.
pub(crate) struct Reloading {
    pub(crate) settings: Settings,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) keyring: Arc<Keyring>,
}

impl Reloading {
    /// Reloads on each request, until the stop.
    pub(crate) async fn run(self, mut reloader: Reloader<Config>, shutdown: Shutdown) {
        let reloading = async {
            loop {
                reloader.requested().await;
                // It reads files and guesses keys, which takes a thread some hundred milliseconds.
                let reading = tokio::task::spawn_blocking(move || {
                    let config = reloader.reload(&LIVE, crate::check_without_keys);
                    (reloader, config)
                });
                let Ok((back, config)) = reading.await else { return }; // the runtime is shutting down
                reloader = back;
                if let Some(config) = config {
                    self.apply(&config);
                }
            }
        };
        shutdown.until_stopped(reloading).await;
    }

    fn apply(&self, config: &Config) {
        self.accounts.replace(&config.accounts);
        self.keyring.reschedule(config.keys.schedule());
        self.settings.replace(config);
    }
}
