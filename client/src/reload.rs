//! What the agent applies when its configuration is read again (SIGHUP).

use crate::catalogue::Position;
use crate::config::{Config, HopConfig, IssuerConfig};
use crate::connections::Limit;
use crate::start::check;
use postern_config::Fixed;
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use postern_telemetry::log;
use tokio::sync::watch;

const OTHER_SOCKETS: &str = "the sockets are bound at the start";
const OTHER_WALLET: &str = "a wallet belongs to one process, which has it open";
const OTHER_GATEWAY: &str =
    "the challenges and marks that tokens were minted for are those of the gateways of the start";

/// The keys that wait for a restart.
pub const FIXED: [Fixed; 9] = [
    Fixed { key: "listen.address", why: OTHER_SOCKETS },
    Fixed { key: "listen.admin", why: OTHER_SOCKETS },
    Fixed { key: "listen.allow_remote", why: OTHER_SOCKETS },
    Fixed { key: "gateway", why: OTHER_GATEWAY },
    Fixed { key: "wallet.path", why: OTHER_WALLET },
    Fixed { key: "wallet.fsync", why: OTHER_WALLET },
    Fixed { key: "first_hop.gateway", why: OTHER_GATEWAY },
    Fixed { key: "first_hop.wallet.path", why: OTHER_WALLET },
    Fixed { key: "first_hop.wallet.fsync", why: OTHER_WALLET },
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
    limit: Limit,
    shutdown: Shutdown,
) {
    let reloading = async {
        loop {
            reloader.requested().await;
            let reading = reloader.read(&FIXED, check);
            for (position, settings) in &settings {
                let hop = reading.as_ref().and_then(|reading| reading.config.hop(*position));
                match hop {
                    Some(hop) => drop(settings.send_replace(Settings::of(hop))),
                    None => settings.send_modify(|_| {}),
                }
            }
            let Some(reading) = reading else { continue };
            limit.set(reading.config.listen.connections);
            log::set_format(reading.config.log.format);
            shutdown.set_deadline(reading.config.drain.deadline.get());
            reloader.applied(reading);
        }
    };
    shutdown.until_stopped(reloading).await;
}
