//! The agent: one listener for HTTP and SOCKS5, and the hops that its tunnels lead through.

use crate::catalogue::Position;
use crate::config::{Config, HopConfig, HopSettings};
use crate::front::connections::Connections;
use crate::front::state::AgentState;
use crate::hop::gateways::Gateways;
use crate::hop::limits::Cap;
use crate::hop::marks::saved::SavedMarks;
use crate::hop::tunnel::Opener;
use crate::mint::consistency::Consistency;
use crate::mint::failure::MintingStatus;
use crate::mint::refill::Refill;
use crate::mint::source::TokenSource;
use crate::recorder::{Answers, Recorder};
use crate::reload::{self, Approach, Gates, Prepared, Reloadable};
use crate::start::{StartError, check};
use crate::status;
use crate::wallet::challenge::SavedChallenges;
use crate::wallet::file::{Wallet, WalletError};
use crate::wallet::supply::Supply;
use postern_admin::ProcessContext;
use postern_config::ConfigFile;
use postern_daemon::BoxFuture;
use postern_daemon::drain::Shutdown;
use postern_daemon::listen;
use postern_daemon::readiness::Readiness;
use postern_daemon::reload::Reloader;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::join;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};

/// The listener's name in the log and in errors.
const WHAT: &str = "the agent";

/// A hop on the way to the target, whose tasks do not run yet.
struct Hop {
    opener: Opener,
    refill: Refill,
}

/// The local agent, listening but not yet serving.
pub struct Agent {
    listener: TcpListener,
    local: SocketAddr,
    connections: Connections,
    state: Arc<AgentState>,
    hops: Vec<Hop>,
    reloadable: Vec<Reloadable>,
    process: ProcessContext,
    reloader: Option<Reloader<Config>>,
}

impl Agent {
    /// Opens the wallets and the listener. Neither the gateways nor the issuers are needed yet; the readiness gate "agent"
    /// reports what is missing.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn bind(config: Config, process: &ProcessContext) -> BoxFuture<'_, Result<Self, StartError>> {
        Box::pin(Self::open(config, process))
    }

    async fn open(config: Config, process: &ProcessContext) -> Result<Self, StartError> {
        check(&config)?;
        let answers = Arc::new(Answers::new());
        let first = match config.hop(Position::First) {
            Some(hop) => Some(Hop::open(Position::First, hop, None, &answers, process).await?),
            None => None,
        };
        let way = first.as_ref().map(|(hop, _)| &hop.opener);
        let last = Hop::open(Position::Last, config.last_hop(), way, &answers, process).await?;
        let opener = last.0.opener.clone();
        let listener = listen::bind(WHAT, config.listen.address).await?;
        let local = listener.local_addr().unwrap_or(config.listen.address);
        let counted = Arc::downgrade(&opener.recorder);
        process.shutdown.count_tunnels(move || counted.upgrade().map_or(0, |recorder| recorder.tunnels()));
        let state = Arc::new(AgentState {
            opener,
            answers,
            shutdown: process.shutdown.clone(),
            readiness: process.readiness.clone(),
        });
        let (hops, reloadable) = first.into_iter().chain([last]).unzip();
        Ok(Self {
            listener,
            local,
            connections: Connections::new(config.listen.connections, process.descriptors),
            state,
            hops,
            reloadable,
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

    /// Returns the address it listens on, with the real port if the configuration has port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepts until the drain begins, and ends with the stop, when nothing holds the wallet any more. Connections are on
    /// the tracker of the process's shutdown, and go on until its [`wait`](postern_daemon::drain::Shutdown::wait) has seen
    /// them end or its deadline has passed.
    pub fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(self.serve())
    }

    async fn serve(self) {
        let shutdown = self.state.shutdown.clone();
        // Without a tracked task, a drain would end before the last connections are accepted.
        let accepting = shutdown.tracker().token();
        if let Some(reloader) = self.reloader {
            tokio::spawn(reload::keep(reloader, self.reloadable, self.connections.limit(), shutdown.clone()));
        }
        let keep = |hop: Hop| hop.keep(self.state.readiness.clone(), shutdown.clone());
        let keeping: JoinSet<()> = self.hops.into_iter().map(keep).collect();
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
        keeping.join_all().await; // with the stop
    }
}

impl Hop {
    /// Opens the wallet. Its gateways are reached through `before`, where there is a hop before it.
    async fn open(
        position: Position,
        config: HopConfig<'_>,
        before: Option<&Opener>,
        answers: &Arc<Answers>,
        process: &ProcessContext,
    ) -> Result<(Self, Reloadable), StartError> {
        let gates = Gates::of(position);
        let mut approach = Approach::new(position, before.cloned(), process);
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
        let (wallet, saved_challenges, (saved_marks, marks), consistency) =
            opening.await.unwrap_or_else(|error| {
                let (path, source) = (config.wallet.path.clone(), std::io::Error::other(error));
                Err(WalletError::Io { path, what: "open", source })
            })?;
        let recorder = Arc::new(Recorder::new(position, wallet.shown().clone()));
        let supply = Arc::new(Supply::new(wallet, recorder.clone()));
        let gate = process.readiness.gate(gates.gateway);
        let gateways = Arc::new(Gateways::new(gateways, &saved_challenges, marks, supply.clone(), gate));
        let (settings, changes) = watch::channel(HopSettings::of(config));
        let cap = Arc::new(Cap::new(changes.clone()));
        let opener = Opener { gateways, supply, recorder, cap, failed: Arc::default() };
        status::add(process, position, answers, &opener, changes.clone());
        let refill = Refill::new(
            &opener,
            (source, consistency?),
            (saved_challenges, saved_marks),
            changes,
            MintingStatus::new(process.readiness.gate(gates.tokens), opener.recorder.clone()),
        );
        let config = config.gateway.clone();
        let reloadable = Reloadable { gateways: opener.gateways.clone(), approach, config, settings };
        Ok((Self { opener, refill }, reloadable))
    }

    /// Fills the wallet and watches the gateways until the stop.
    async fn keep(self, readiness: Readiness, shutdown: Shutdown) {
        let refilling = tokio::spawn(self.refill.run(shutdown.clone()));
        let keeping = tokio::spawn(self.opener.gateways.keep(readiness, shutdown));
        // A panic is already in the log, and nothing is left to do here.
        let _ = join!(refilling, keeping);
    }
}
