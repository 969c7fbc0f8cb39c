//! What the agent applies when its configuration is read again (SIGHUP).

use crate::catalogue::Position;
use crate::config::{Config, HopConfig, IssuerConfig};
use crate::start::check;
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use tokio::sync::watch;

/// The keys that take effect at once; the others need a restart.
const LIVE: [&str; 6] = [
    "issuer",
    "wallet.low",
    "wallet.high",
    "first_hop.issuer",
    "first_hop.wallet.low",
    "first_hop.wallet.high",
];

/// The values of those keys, for one hop.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) issuer: IssuerConfig,
    pub(crate) low: usize,
    pub(crate) high: usize,
}

impl Settings {
    pub(crate) fn of(hop: HopConfig<'_>) -> Self {
        Self { issuer: hop.issuer.clone(), low: hop.wallet.low, high: hop.wallet.high }
    }
}

/// Reads the configuration again on each reload request, until the stop. An operator who reloads has repaired
/// something, so minting is tried again at once even when nothing in the file has changed.
pub(crate) async fn keep(
    mut reloader: Reloader<Config>,
    settings: Vec<(Position, watch::Sender<Settings>)>,
    shutdown: Shutdown,
) {
    let reloading = async {
        loop {
            reloader.requested().await;
            let config = reloader.reload(&LIVE, check);
            for (position, settings) in &settings {
                let hop = config.as_ref().and_then(|config| config.hop(*position));
                match hop {
                    Some(hop) => drop(settings.send_replace(Settings::of(hop))),
                    None => settings.send_modify(|_| {}),
                }
            }
        }
    };
    shutdown.until_stopped(reloading).await;
}
