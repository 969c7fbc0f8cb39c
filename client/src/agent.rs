//! The agent: one listener for HTTP and SOCKS5, and the task that keeps the wallet filled.

use crate::catalogue;
use crate::config::{Config, GatewayConfig};
use crate::connections::Connections;
use crate::gateway::{Gateway, GatewayUrlError, Sharing};
use crate::gateways::Gateways;
use crate::marks::saved::SavedMarks;
use crate::minting_status::MintingStatus;
use crate::page;
use crate::recorder::Recorder;
use crate::refill::Refill;
use crate::reload::{self, Settings};
use crate::saved_challenges::SavedChallenges;
use crate::start::{StartError, check};
use crate::state::AgentState;
use crate::supply::Supply;
use crate::token_source::TokenSource;
use crate::tunnel::Opener;
use crate::wallet::{Wallet, WalletError};
use metrics::gauge;
use postern_admin::ProcessContext;
use postern_config::ConfigFile;
use postern_daemon::listen;
use postern_daemon::reload::Reloader;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

/// The listener's name in the log and in errors.
const WHAT: &str = "the agent";

/// The local agent, listening but not yet serving.
pub struct Agent {
    listener: TcpListener,
    local: SocketAddr,
    connections: Connections,
    state: Arc<AgentState>,
    refill: Refill,
    settings: watch::Sender<Settings>,
    process: ProcessContext,
    reloader: Option<Reloader<Config>>,
}

impl Agent {
    /// Opens the wallet and the listener. Neither the gateway nor the issuer is needed yet; the readiness gate "agent"
    /// reports what is missing.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn bind(config: Config, process: &ProcessContext) -> Result<Self, StartError> {
        check(&config)?;
        let gateways = gateways(&config.gateway, process)?;
        let source = TokenSource::new(config.issuer.clone(), &process.live)?;
        let (settings, changes) = watch::channel(Settings::of(&config));
        let (path, fsync) = (config.wallet.path.clone(), config.wallet.fsync);
        let opening = spawn_blocking(move || {
            Ok((Wallet::open(&path, fsync)?, SavedChallenges::read(&path), SavedMarks::read(&path)))
        });
        let (wallet, saved, (saved_marks, marks)) = opening.await.unwrap_or_else(|error| {
            let (path, source) = (config.wallet.path, std::io::Error::other(error));
            Err(WalletError::Io { path, what: "open", source })
        })?;
        let limit = process.descriptors.connections("[listen] connections", config.listen.connections, 2);
        let listener = listen::bind(WHAT, config.listen.address).await?;
        let local = listener.local_addr().unwrap_or(config.listen.address);

        let recorder = Arc::new(Recorder::new(wallet.shown().clone()));
        let supply = Arc::new(Supply::new(wallet, recorder.clone()));
        let gate = process.readiness.gate("gateway");
        let gateways = Arc::new(Gateways::new(gateways, &saved, marks, supply.clone(), gate));
        let status = MintingStatus::new(process.readiness.gate("agent"), recorder.clone());
        page::add(&process.live, &recorder, changes.clone());
        let counted = Arc::downgrade(&recorder);
        process.shutdown.count_tunnels(move || counted.upgrade().map_or(0, |recorder| recorder.tunnels()));
        let refill =
            Refill::new(supply.clone(), gateways.clone(), source, (saved, saved_marks), changes, status);
        let state = Arc::new(AgentState {
            opener: Opener { gateways, supply, recorder },
            shutdown: process.shutdown.clone(),
            readiness: process.readiness.clone(),
            address: local.to_string(),
        });
        Ok(Self {
            listener,
            local,
            connections: Connections::new(limit),
            state,
            refill,
            settings,
            process: process.clone(),
            reloader: None,
        })
    }

    /// Reads `file`, which the configuration came from, again on SIGHUP.
    #[must_use]
    pub fn reloading(mut self, file: ConfigFile<Config>) -> Self {
        self.reloader = Some(Reloader::new(file, &self.process.readiness, &self.process.shutdown));
        self
    }

    /// The address it listens on, with the real port when the configuration has port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepts until the drain begins, and ends with the stop, when nothing of it holds the wallet any more.
    /// Connections are on the tracker of the shutdown of `process`, and go on until its
    /// [`wait`](postern_daemon::drain::Shutdown::wait) has seen them end or its deadline has passed.
    pub async fn run(self) {
        let shutdown = self.state.shutdown.clone();
        // Without a tracked task, a drain would end before the last connections are accepted.
        let accepting = shutdown.tracker().token();
        if let Some(reloader) = self.reloader {
            tokio::spawn(reload::keep(reloader, self.settings, shutdown.clone()));
        }
        let refilling = tokio::spawn(self.refill.run(shutdown.clone()));
        let gateways = self.state.opener.gateways.clone();
        let keeping = tokio::spawn(gateways.keep(self.state.readiness.clone(), shutdown.clone()));
        let admit = |(stream, from)| self.connections.admit(stream, from, self.state.clone());
        loop {
            let next = async {
                self.connections.settled().await;
                self.listener.accept().await
            };
            let accepted = tokio::select! {
                accepted = next => accepted,
                () = shutdown.draining() => break,
            };
            match accepted {
                Ok(accepted) => admit(accepted),
                Err(error) => listen::pause(WHAT, &error).await,
            }
        }
        if let Ok(waiting) = listen::waiting(self.listener) {
            waiting.for_each(admit);
        }
        drop(accepting);
        // Both end with the stop. A panic is already in the log, and nothing is left to do here.
        let _ = (refilling.await, keeping.await);
    }
}

fn gateways(config: &GatewayConfig, process: &ProcessContext) -> Result<Vec<Arc<Gateway>>, GatewayUrlError> {
    let sharing = Sharing {
        tunnels: config.tunnels.get(),
        lifetime: config.connection_lifetime.get(),
        shutdown: process.shutdown.clone(),
    };
    let own = config.own_certificate()?;
    if let Some(own) = &own {
        let ends = |second: u64| gauge!(catalogue::AGENT_CERTIFICATE_ENDS).set(second as f64);
        let gate = process.readiness.gate("certificate");
        tokio::spawn(own.clone().renew(gate, ends, process.shutdown.clone()));
    }
    let gateway = |url: &String| {
        let gateway = Gateway::shown(url, config, own.clone())?;
        Ok(Arc::new(gateway.recorded(&process.live).sharing(sharing.clone())))
    };
    config.url.list().iter().map(gateway).collect()
}
