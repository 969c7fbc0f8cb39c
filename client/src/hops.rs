//! One hop on the way to the target: its gateways, the tokens they take, and the tasks that keep both in order.

use crate::catalogue::{self, Position};
use crate::config::HopSettings;
use crate::config::{Config, GatewayConfig, HopConfig};
use crate::hop::gateway::{Gateway, GatewayUrlError};
use crate::hop::gateways::Gateways;
use crate::hop::limits::Cap;
use crate::hop::marks::saved::SavedMarks;
use crate::hop::tunnel::Opener;
use crate::mint::consistency::Consistency;
use crate::mint::refill::Refill;
use crate::mint::source::TokenSource;
use crate::mint::status::MintingStatus;
use crate::page;
use crate::recorder::{Answers, Recorder};
use crate::start::StartError;
use crate::status;
use crate::wallet::file::{Wallet, WalletError};
use crate::wallet::saved_challenges::SavedChallenges;
use crate::wallet::supply::Supply;
use metrics::gauge;
use postern_admin::ProcessContext;
use postern_config::differ;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::{Gate, Readiness};
use postern_daemon::tls::OwnCertificate;
use postern_proxy::tunnel::{OnDrain, Sharing};
use std::sync::Arc;
use std::time::Duration;
use tokio::join;
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_blocking};

/// How long a connection to a gateway stays open that carries nothing.
const IDLE: Duration = Duration::from_secs(30);
/// The same where another one costs a token of the hop before; less than a gateway allows it (`limits.idle_timeout`).
const PAID_IDLE: Duration = Duration::from_mins(5);

/// A hop, whose tasks do not run yet.
pub(crate) struct Hop {
    pub(crate) opener: Opener,
    refill: Refill,
}

/// How the gateways of a hop are reached.
struct Approach {
    position: Position,
    /// The hop before it.
    before: Option<Opener>,
    /// Of the certificate that the gateways are shown.
    renewal: Option<AbortHandle>,
    gate: Option<Gate>,
    process: ProcessContext,
}

/// A running hop, as far as a reload changes it.
pub(crate) struct Reloadable {
    gateways: Arc<Gateways>,
    approach: Approach,
    /// What is in force.
    config: GatewayConfig,
    settings: watch::Sender<HopSettings>,
}

/// Gateways that a configuration names, not in use yet.
pub(crate) struct Prepared {
    gateways: Vec<Arc<Gateway>>,
    own: Option<OwnCertificate>,
}

/// The names of a hop's readiness gates.
struct Gates {
    gateway: &'static str,
    tokens: &'static str,
    certificate: &'static str,
}

impl Gates {
    const fn of(hop: Position) -> Self {
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

impl Hop {
    /// Opens the wallet. Its gateways are reached through `before`, where there is a hop before it.
    pub(crate) async fn open(
        position: Position,
        config: HopConfig<'_>,
        before: Option<&Opener>,
        answers: &Arc<Answers>,
        process: &ProcessContext,
    ) -> Result<(Self, Reloadable), StartError> {
        let gates = Gates::of(position);
        let (before, gate) = (before.cloned(), None);
        let mut approach = Approach { position, before, renewal: None, gate, process: process.clone() };
        let Prepared { gateways, own } = approach.prepare(config.gateway)?;
        approach.renew(own);
        let source = TokenSource::new(config.issuer.clone(), &process.live)?;
        let (path, fsync) = (config.wallet.path.clone(), config.wallet.fsync);
        let compared = config.issuer.consistency.clone();
        let opening = spawn_blocking(move || {
            let wallet = Wallet::open(&path, fsync, position)?;
            let consistency = Consistency::open(position, &path, &compared);
            Ok((wallet, SavedChallenges::read(&path), SavedMarks::read(&path), consistency))
        });
        let (wallet, saved, (saved_marks, marks), consistency) = opening.await.unwrap_or_else(|error| {
            let (path, source) = (config.wallet.path.clone(), std::io::Error::other(error));
            Err(WalletError::Io { path, what: "open", source })
        })?;
        let recorder = Arc::new(Recorder::new(position, wallet.shown().clone()));
        let supply = Arc::new(Supply::new(wallet, recorder.clone()));
        let gate = process.readiness.gate(gates.gateway);
        let gateways = Arc::new(Gateways::new(gateways, &saved, marks, supply.clone(), gate));
        let status = MintingStatus::new(process.readiness.gate(gates.tokens), recorder.clone());
        let (settings, changes) = watch::channel(HopSettings::of(config));
        page::add(&process.live, position, (answers, &recorder), changes.clone());
        status::add(&process.reports, position, (&gateways, &supply, &recorder), changes.clone());
        let (cap, failed) = (Arc::new(Cap::new(changes.clone())), Arc::default());
        let refill = Refill::new(
            supply.clone(),
            gateways.clone(),
            (source, consistency?),
            (saved, saved_marks),
            changes,
            status,
        );
        let reloadable =
            Reloadable { gateways: gateways.clone(), approach, config: config.gateway.clone(), settings };
        Ok((Self { opener: Opener { gateways, supply, recorder, cap, failed }, refill }, reloadable))
    }

    /// Fills the wallet and watches the gateways until the stop.
    pub(crate) async fn keep(self, readiness: Readiness, shutdown: Shutdown) {
        let refilling = tokio::spawn(self.refill.run(shutdown.clone()));
        let keeping = tokio::spawn(self.opener.gateways.keep(readiness, shutdown));
        // A panic is already in the log, and nothing is left to do here.
        let _ = join!(refilling, keeping);
    }
}

impl Reloadable {
    /// What `new` has of this hop.
    pub(crate) fn of<'a>(&self, new: &'a Config) -> Option<HopConfig<'a>> {
        new.hop(self.approach.position)
    }

    /// The gateways of `new`, where their section has changed.
    ///
    /// # Errors
    /// A certificate that cannot be read. Nothing has changed.
    pub(crate) fn prepare(&self, new: HopConfig<'_>) -> Result<Option<Prepared>, GatewayUrlError> {
        differ(&self.config, new.gateway).then(|| self.approach.prepare(new.gateway)).transpose()
    }

    /// Applies what was read, and has minting tried again at once even if nothing has changed.
    pub(crate) fn apply(&mut self, new: Option<HopConfig<'_>>, prepared: Option<Prepared>) {
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
    fn prepare(&self, config: &GatewayConfig) -> Result<Prepared, GatewayUrlError> {
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

    /// Renews this certificate from now on, and no longer the one before.
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
        let readiness = &self.process.readiness;
        let gate = self.gate.get_or_insert_with(|| readiness.gate(Gates::of(position).certificate)).clone();
        let ends = move |second: u64| certificate.set(second as f64);
        let renewal = tokio::spawn(own.renew(gate, ends, self.process.shutdown.clone()));
        self.renewal = Some(renewal.abort_handle());
    }
}
