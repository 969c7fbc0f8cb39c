//! Reload (SIGHUP): rereads the configuration and changes the running hops.

use crate::catalogue::{self, Position};
use crate::config::Config;
use crate::front::state::Limit;
use crate::hop::gateway::{Gateway, HopBefore};
use crate::hop::gateways::Gateways;
use crate::hop::tunnel::Opener;
use crate::settings::{TokenSettings, check, settings};
use metrics::gauge;
use postern_config::{Fixed, differ};
use postern_daemon::admin::ProcessContext;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Gate;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::OwnCertificate;
use postern_telemetry::log;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::AbortHandle;

const OTHER_SOCKETS: &str = "the sockets are bound at the start";
const OTHER_WALLET: &str = "the wallet stays open";

/// Configuration keys that take effect only after a restart.
pub const FIXED: [Fixed; 7] = [
    Fixed { key: "listen.address", why: OTHER_SOCKETS },
    Fixed { key: "listen.admin", why: OTHER_SOCKETS },
    Fixed { key: "listen.allow_remote", why: OTHER_SOCKETS },
    Fixed { key: "wallet.path", why: OTHER_WALLET },
    Fixed { key: "wallet.fsync", why: OTHER_WALLET },
    Fixed { key: "first_hop.wallet.path", why: OTHER_WALLET },
    Fixed { key: "first_hop.wallet.fsync", why: OTHER_WALLET },
];

/// The route to a hop's gateways, and the agent's certificate for them.
pub(crate) struct Approach {
    position: Position,
    before: Option<Arc<dyn HopBefore>>,
    renewal: Option<AbortHandle>,
    gate: Option<Gate>,
    process: ProcessContext,
}

/// The part of a running hop that a reload changes.
pub(crate) struct Reloadable {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) approach: Approach,
    pub(crate) settings: watch::Sender<TokenSettings>,
}

/// Returns the names of a hop's readiness gates: of its gateways, of its tokens, of the agent's certificate.
pub(crate) const fn gates(hop: Position) -> [&'static str; 3] {
    match hop {
        Position::First => ["first hop's gateway", "first hop's tokens", "first hop's certificate"],
        Position::Last => ["gateway", "agent", "certificate"],
    }
}

/// Rereads the configuration on each reload request, until the stop; `config` is the one in force. Minting is retried at once even
/// if nothing in the file has changed, because an operator who reloads has repaired something.
pub(crate) async fn keep(
    mut reloader: Reloader<Config>,
    mut config: Config,
    mut hops: Vec<Reloadable>,
    limit: Limit,
    shutdown: Shutdown,
) {
    let reloading = async {
        loop {
            reloader.requested().await;
            let reading = reloader.read(&FIXED, check);
            let new = reading.as_ref().map_or(&config, |reading| &reading.config);
            match settings(new) {
                Ok(settings) => {
                    for settings in settings {
                        let position = settings.position;
                        let section = |of: &Config| {
                            let mut hops = of.hops();
                            hops.find_map(|(place, hop)| (place == position).then(|| hop.gateway.clone()))
                        };
                        let has_other_gateways = differ(&section(&config), &section(new));
                        if let Some(hop) = hops.iter_mut().find(|hop| hop.approach.position == position) {
                            if has_other_gateways {
                                hop.gateways.replace(hop.approach.lead_to(settings.gateways, settings.own));
                            }
                            hop.settings.send_replace(settings.tokens);
                        }
                    }
                }
                Err(error) if reading.is_some() => {
                    reloader.refused(&error.to_string());
                    continue;
                }
                // Refused already; the clients of before stay in use.
                Err(_) => hops.iter().for_each(|hop| hop.settings.send_modify(|_| ())),
            }
            let Some(reading) = reading else {
                tracing::info!("minting is tried at once");
                continue;
            };
            limit.set(&reading.config.listen);
            log::set_format(reading.config.log.format);
            shutdown.set_deadline(reading.config.drain.deadline.get());
            config = reading.config.clone();
            reloader.applied(reading);
        }
    };
    shutdown.until_stopped(reloading).await;
}

impl Approach {
    /// Describes the route to the gateways at `position`: through `before` if there is a previous hop.
    pub(crate) fn new(position: Position, before: Option<Arc<Opener>>, process: &ProcessContext) -> Self {
        let before = before.map(|before| before as Arc<dyn HopBefore>);
        Self { position, before, renewal: None, gate: None, process: process.clone() }
    }

    /// Leads to these gateways from now on, and renews the agent's certificate for them.
    pub(crate) fn lead_to(
        &mut self,
        gateways: Vec<Gateway>,
        own: Option<OwnCertificate>,
    ) -> Vec<Arc<Gateway>> {
        self.renew(own);
        let in_use = |gateway: Gateway| Arc::new(gateway.in_use(self.before.clone(), &self.process));
        gateways.into_iter().map(in_use).collect()
    }

    /// Starts the renewal of `own`, and stops the renewal of the previous certificate.
    fn renew(&mut self, own: Option<OwnCertificate>) {
        self.renewal.take().into_iter().for_each(|before| before.abort());
        let position = self.position;
        let certificate = gauge!(catalogue::AGENT_CERTIFICATE_ENDS, Position::LABEL => position.as_str());
        let Some(own) = own else {
            if let Some(gate) = &self.gate {
                certificate.set(0.0);
                gate.set_ready();
            }
            return;
        };
        let (readiness, [.., name]) = (&self.process.readiness, gates(position));
        let gate = self.gate.get_or_insert_with(|| readiness.gate(name)).clone();
        let ends = move |second: u64| certificate.set(second as f64);
        let renewal = tokio::spawn(own.renew(gate, ends, self.process.shutdown.clone()));
        self.renewal = Some(renewal.abort_handle());
    }
}
