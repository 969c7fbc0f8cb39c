//! What the agent applies when its configuration is read again (SIGHUP).

use crate::config::Config;
use crate::front::connections::Limit;
use crate::hops::Reloadable;
use crate::start::check;
use postern_config::Fixed;
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use postern_telemetry::log;

const OTHER_SOCKETS: &str = "the sockets are bound at the start";
const OTHER_WALLET: &str = "the wallet stays open";

/// The keys that wait for a restart.
pub const FIXED: [Fixed; 7] = [
    Fixed { key: "listen.address", why: OTHER_SOCKETS },
    Fixed { key: "listen.admin", why: OTHER_SOCKETS },
    Fixed { key: "listen.allow_remote", why: OTHER_SOCKETS },
    Fixed { key: "wallet.path", why: OTHER_WALLET },
    Fixed { key: "wallet.fsync", why: OTHER_WALLET },
    Fixed { key: "first_hop.wallet.path", why: OTHER_WALLET },
    Fixed { key: "first_hop.wallet.fsync", why: OTHER_WALLET },
];

/// Reads the configuration again on each reload request, until the stop. An operator who reloads has repaired
/// something, so minting is tried again at once even when nothing in the file has changed.
pub(crate) async fn keep(
    mut reloader: Reloader<Config>,
    mut hops: Vec<Reloadable>,
    limit: Limit,
    shutdown: Shutdown,
) {
    let reloading = async {
        loop {
            reloader.requested().await;
            let reading = reloader.read(&FIXED, check);
            let new = reading.as_ref().map(|reading| &reading.config);
            let of = |hop: &Reloadable| new.and_then(|new| hop.of(new));
            let prepare = |hop: &Reloadable| of(hop).map_or(Ok(None), |new| hop.prepare(new));
            match hops.iter().map(prepare).collect::<Result<Vec<_>, _>>() {
                Ok(prepared) => {
                    hops.iter_mut().zip(prepared).for_each(|(hop, prepared)| hop.apply(of(&*hop), prepared));
                }
                Err(error) => {
                    reloader.refused(&error.to_string());
                    continue;
                }
            }
            let Some(reading) = reading else {
                tracing::info!("minting is tried at once");
                continue;
            };
            limit.set(reading.config.listen.connections);
            log::set_format(reading.config.log.format);
            shutdown.set_deadline(reading.config.drain.deadline.get());
            reloader.applied(reading);
        }
    };
    shutdown.until_stopped(reloading).await;
}
