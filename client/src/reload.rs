//! What the agent applies when its configuration is read again (SIGHUP).

use crate::config::{Config, IssuerConfig};
use crate::start::check;
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use tokio::sync::watch;

/// The keys that take effect at once; the others need a restart.
const LIVE: [&str; 3] = ["issuer", "wallet.low", "wallet.high"];

/// The values of those keys.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) issuer: IssuerConfig,
    pub(crate) low: usize,
    pub(crate) high: usize,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        Self { issuer: config.issuer.clone(), low: config.wallet.low, high: config.wallet.high }
    }
}

/// Reads the configuration again on each reload request, until the stop. An operator who reloads has repaired
/// something, so minting is tried again at once even when nothing in the file has changed.
pub(crate) async fn keep(
    mut reloader: Reloader<Config>,
    settings: watch::Sender<Settings>,
    shutdown: Shutdown,
) {
    let reloading = async {
        loop {
            reloader.requested().await;
            match reloader.reload(&LIVE, check) {
                Some(config) => drop(settings.send_replace(Settings::of(&config))),
                None => settings.send_modify(|_| {}),
            }
        }
    };
    shutdown.until_stopped(reloading).await;
}
