//! Reload: reads the configuration again (SIGHUP), and changes the running hops.

use crate::catalogue::{self, Position};
use crate::config::{Config, GatewayConfig, HopConfig, HopSettings};
use crate::front::connections::Limit;
use crate::hop::gateway::{Gateway, GatewayUrlError};
use crate::hop::gateways::Gateways;
use crate::hop::tunnel::Opener;
use crate::start::check;
use metrics::gauge;
use postern_admin::ProcessContext;
use postern_config::{Fixed, differ};
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Gate;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::OwnCertificate;
use postern_proxy::tunnel::{OnDrain, Sharing};
use postern_telemetry::log;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

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

/// Time after which an idle connection to a gateway is closed.
const IDLE: Duration = Duration::from_secs(30);
/// The same if another one costs a token of the hop before; less than a gateway's `limits.idle_timeout`.
const PAID_IDLE: Duration = Duration::from_mins(5);

/// The way to a hop's gateways.
pub(crate) struct Approach {
    position: Position,
    /// The hop before it.
    before: Option<Opener>,
    /// Renews the agent's certificate.
    renewal: Option<AbortHandle>,
    gate: Option<Gate>,
    process: ProcessContext,
}

/// The part of a running hop that a reload changes.
pub(crate) struct Reloadable {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) approach: Approach,
    /// The configuration in force.
    pub(crate) config: GatewayConfig,
    pub(crate) settings: watch::Sender<HopSettings>,
}

/// The gateways of a configuration, not in use yet.
pub(crate) struct Prepared {
    pub(crate) gateways: Vec<Arc<Gateway>>,
    pub(crate) own: Option<OwnCertificate>,
}

/// The names of a hop's readiness gates.
pub(crate) struct Gates {
    pub(crate) gateway: &'static str,
    pub(crate) tokens: &'static str,
    certificate: &'static str,
}

impl Gates {
    pub(crate) const fn of(hop: Position) -> Self {
        match hop {
            Position::First => Self {
                gateway: "first hop's gateway",
                tokens: "first hop's tokens",
                certificate: "first hop's certificate",
            },
            Position::Last => Self { gateway: "gateway", tokens: "agent", certificate: "certificate" },
        }
    }
}

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

impl Reloadable {
    /// Finds this hop in a configuration.
    fn of<'a>(&self, new: &'a Config) -> Option<HopConfig<'a>> {
        new.hop(self.approach.position)
    }

    /// Prepares the gateways of `new` if their section has changed.
    ///
    /// # Errors
    /// A certificate that cannot be read. Nothing has changed.
    fn prepare(&self, new: HopConfig<'_>) -> Result<Option<Prepared>, GatewayUrlError> {
        differ(&self.config, new.gateway).then(|| self.approach.prepare(new.gateway)).transpose()
    }

    /// Applies a configuration, and has minting tried again at once even if nothing has changed.
    fn apply(&mut self, new: Option<HopConfig<'_>>, prepared: Option<Prepared>) {
        let Some(new) = new else { return self.settings.send_modify(|_| {}) };
        if let Some(Prepared { gateways, own }) = prepared {
            self.approach.renew(own);
            self.gateways.replace(gateways);
            self.config = new.gateway.clone();
        }
        self.settings.send_replace(HopSettings::of(new));
    }
}

impl Approach {
    /// Describes how the gateways at `position` are reached: through `before`, where there is a hop before it.
    pub(crate) fn new(position: Position, before: Option<Opener>, process: &ProcessContext) -> Self {
        Self { position, before, renewal: None, gate: None, process: process.clone() }
    }

    pub(crate) fn prepare(&self, config: &GatewayConfig) -> Result<Prepared, GatewayUrlError> {
        let Self { position, before, process, .. } = self;
        let sharing = Sharing {
            tunnels: config.tunnels.get(),
            lifetime: config.connection_lifetime.get(),
            idle: if before.is_some() { PAID_IDLE } else { IDLE },
            shutdown: process.shutdown.clone(),
            on_drain: OnDrain::Retire,
        };
        let own = config.own_certificate()?;
        let gateway = |url: &String| {
            let gateway = Gateway::shown(url, config, own.clone())?;
            let gateway = match (before, position) {
                (Some(before), _) => gateway.behind(Arc::new(before.clone()))?,
                (None, Position::First) => gateway.in_front(),
                (None, Position::Last) => gateway,
            };
            Ok(Arc::new(gateway.recorded(&process.live).sharing(sharing.clone())))
        };
        let gateways = config.url.list().iter().map(gateway).collect::<Result<_, GatewayUrlError>>()?;
        Ok(Prepared { gateways, own })
    }

    /// Renews this certificate instead of the one before.
    pub(crate) fn renew(&mut self, own: Option<OwnCertificate>) {
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
        let readiness = &self.process.readiness;
        let gate = self.gate.get_or_insert_with(|| readiness.gate(Gates::of(position).certificate)).clone();
        let ends = move |second: u64| certificate.set(second as f64);
        let renewal = tokio::spawn(own.renew(gate, ends, self.process.shutdown.clone()));
        self.renewal = Some(renewal.abort_handle());
    }
}
