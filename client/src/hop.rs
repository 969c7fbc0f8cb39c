//! One hop on the way to the target: its gateways, the tokens they take, and the tasks that keep both in order.

use crate::catalogue::{self, Position};
use crate::config::{GatewayConfig, HopConfig};
use crate::gateway::{Gateway, GatewayUrlError};
use crate::gateways::Gateways;
use crate::marks::saved::SavedMarks;
use crate::minting_status::MintingStatus;
use crate::page;
use crate::recorder::{Answers, Recorder};
use crate::refill::Refill;
use crate::reload::Settings;
use crate::saved_challenges::SavedChallenges;
use crate::start::StartError;
use crate::supply::Supply;
use crate::token_source::TokenSource;
use crate::tunnel::Opener;
use crate::wallet::{Wallet, WalletError};
use metrics::gauge;
use postern_admin::ProcessContext;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Readiness;
use postern_proxy::tunnel::{OnDrain, Sharing};
use std::sync::Arc;
use std::time::Duration;
use tokio::join;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

/// How long a connection to a gateway stays open that carries nothing.
const IDLE: Duration = Duration::from_secs(30);
/// The same where another one costs a token of the hop before; less than a gateway allows it (`limits.idle_timeout`).
const PAID_IDLE: Duration = Duration::from_mins(5);

/// A hop, whose tasks do not run yet.
pub(crate) struct Hop {
    pub(crate) opener: Opener,
    refill: Refill,
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
        changes: watch::Receiver<Settings>,
        process: &ProcessContext,
    ) -> Result<Self, StartError> {
        let gates = Gates::of(position);
        let gateways = gateways(position, config.gateway, before, process)?;
        let source = TokenSource::new(config.issuer.clone(), &process.live)?;
        let (path, fsync) = (config.wallet.path.clone(), config.wallet.fsync);
        let opening = spawn_blocking(move || {
            let wallet = Wallet::open(&path, fsync, position)?;
            Ok((wallet, SavedChallenges::read(&path), SavedMarks::read(&path)))
        });
        let (wallet, saved, (saved_marks, marks)) = opening.await.unwrap_or_else(|error| {
            let (path, source) = (config.wallet.path.clone(), std::io::Error::other(error));
            Err(WalletError::Io { path, what: "open", source })
        })?;
        let recorder = Arc::new(Recorder::new(position, wallet.shown().clone()));
        let supply = Arc::new(Supply::new(wallet, recorder.clone()));
        let gate = process.readiness.gate(gates.gateway);
        let gateways = Arc::new(Gateways::new(gateways, &saved, marks, supply.clone(), gate));
        let status = MintingStatus::new(process.readiness.gate(gates.tokens), recorder.clone());
        page::add(&process.live, position, (answers, &recorder), changes.clone());
        let refill =
            Refill::new(supply.clone(), gateways.clone(), source, (saved, saved_marks), changes, status);
        let opener = Opener { gateways, supply, recorder };
        Ok(Self { opener, refill })
    }

    /// Fills the wallet and watches the gateways until the stop.
    pub(crate) async fn keep(self, readiness: Readiness, shutdown: Shutdown) {
        let refilling = tokio::spawn(self.refill.run(shutdown.clone()));
        let keeping = tokio::spawn(self.opener.gateways.keep(readiness, shutdown));
        // A panic is already in the log, and nothing is left to do here.
        let _ = join!(refilling, keeping);
    }
}

fn gateways(
    position: Position,
    config: &GatewayConfig,
    before: Option<&Opener>,
    process: &ProcessContext,
) -> Result<Vec<Arc<Gateway>>, GatewayUrlError> {
    let sharing = Sharing {
        tunnels: config.tunnels.get(),
        lifetime: config.connection_lifetime.get(),
        idle: if before.is_some() { PAID_IDLE } else { IDLE },
        shutdown: process.shutdown.clone(),
        on_drain: OnDrain::Retire,
    };
    let own = config.own_certificate()?;
    if let Some(own) = &own {
        let certificate = gauge!(catalogue::AGENT_CERTIFICATE_ENDS, Position::LABEL => position.as_str());
        let ends = move |second: u64| certificate.set(second as f64);
        let gate = process.readiness.gate(Gates::of(position).certificate);
        tokio::spawn(own.clone().renew(gate, ends, process.shutdown.clone()));
    }
    let gateway = |url: &String| {
        let gateway = Gateway::shown(url, config, own.clone())?;
        let gateway = match (before, position) {
            (Some(before), _) => gateway.behind(before.clone())?,
            (None, Position::First) => gateway.in_front(),
            (None, Position::Last) => gateway,
        };
        Ok(Arc::new(gateway.recorded(&process.live).sharing(sharing.clone())))
    };
    config.url.list().iter().map(gateway).collect()
}
