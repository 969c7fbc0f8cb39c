//! The agent: one listener for HTTP and SOCKS5, and the hops that its tunnels lead through.

use crate::config::Config;
use crate::front::state::{AgentState, Limit, UdpPlaces};
use crate::hop::gateways::Gateways;
use crate::hop::limits::{Cap, FailedTargets};
use crate::hop::marks::saved::SavedMarks;
use crate::hop::tunnel::Opener;
use crate::mint::consistency::Consistency;
use crate::mint::failure::MintingStatus;
use crate::mint::refill::Refill;
use crate::mint::source::TokenSource;
use crate::recorder::{Answers, Recorder};
use crate::reload::{self, Approach, Reloadable, gates};
use crate::settings::{HopSettings, StartError, settings};
use crate::status;
use crate::wallet::challenge::SavedChallenges;
use crate::wallet::file::{Wallet, WalletError};
use crate::wallet::supply::Supply;
use postern_config::ConfigFile;
use postern_daemon::BoxFuture;
use postern_daemon::admin::ProcessContext;
use postern_daemon::drain::Shutdown;
use postern_daemon::listen;
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::readiness::Readiness;
use postern_daemon::reload::Reloader;
use postern_daemon::serve;
use postern_daemon::sources::SourceLimits;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};

/// The listener's name in the log and in errors.
const WHAT: &str = "the agent";

/// A hop whose tasks have not started.
struct Hop {
    opener: Arc<Opener>,
    refill: Refill,
}

/// The local agent, listening but not yet serving.
pub struct Agent {
    listener: TcpListener,
    state: Arc<AgentState>,
    hops: Vec<Hop>,
    reloadable: Vec<Reloadable>,
    config: Config,
    process: ProcessContext,
    reloader: Option<Reloader<Config>>,
}

impl Agent {
    /// Opens the wallets and the listener. Gateways and issuers need not be reachable yet: the readiness gates report what is
    /// missing.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn bind(config: Config, process: &ProcessContext) -> BoxFuture<'_, Result<Self, StartError>> {
        Box::pin(Self::open(config, process))
    }

    async fn open(config: Config, process: &ProcessContext) -> Result<Self, StartError> {
        let answers = Arc::new(Answers::new());
        let (mut hops, mut reloadable, mut before) = (Vec::new(), Vec::new(), None::<Arc<Opener>>);
        for settings in settings(&config)? {
            let (hop, changed) = Hop::open(settings, before, &answers, process).await?;
            before = Some(hop.opener.clone());
            hops.push(hop);
            reloadable.push(changed);
        }
        let opener = before.expect("every configuration has a last hop");
        let listener = listen::bind(WHAT, config.listen.address).await?;
        let counted = Arc::downgrade(&opener.recorder);
        process.shutdown.count_tunnels(move || counted.upgrade().map_or(0, |recorder| recorder.tunnels()));
        let state = Arc::new(AgentState {
            opener,
            answers,
            shutdown: process.shutdown.clone(),
            limit: Limit::new(&config.listen, process.descriptors),
            udp_places: UdpPlaces::default(),
            sources: SourceLimits { handshakes: 0, refusals: 0, ..SourceLimits::default() },
            places: Places::new(process.descriptors.most(2), 2),
            rates: Rates::default(),
        });
        Ok(Self { listener, state, hops, reloadable, config, process: process.clone(), reloader: None })
    }

    /// Rereads `file`, the source of the configuration, on SIGHUP.
    #[must_use]
    pub fn reloading(mut self, file: ConfigFile<Config>) -> Self {
        self.reloader = Some(Reloader::new(file, &self.process.readiness, &self.process.shutdown));
        self
    }

    /// Returns the listener's address, with the actual port if the configuration has port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.config.listen.address)
    }

    /// Accepts connections until the drain begins, and returns after the stop, when nothing holds the wallets open. Connections
    /// are on the tracker of the process's shutdown, and continue until its [`wait`](postern_daemon::drain::Shutdown::wait) has
    /// seen them end or its deadline has passed.
    pub fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(self.serve())
    }

    async fn serve(self) {
        let shutdown = self.state.shutdown.clone();
        // Without a tracked task, a drain would end before the last connections are accepted.
        let accepting = shutdown.tracker().token();
        if let Some(reloader) = self.reloader {
            let limit = self.state.limit.clone();
            tokio::spawn(reload::keep(reloader, self.config, self.reloadable, limit, shutdown.clone()));
        }
        let mut keeping = JoinSet::new();
        for hop in self.hops {
            hop.keep(&mut keeping, self.process.readiness.clone(), shutdown.clone());
        }
        let serving =
            serve::accept(self.state, (WHAT, self.listener), shutdown.tracker(), shutdown.draining());
        tokio::select! {
            _ = serving => {} // fails only for connections that wait
            // An agent that mints nothing any more must not look well.
            Some(Err(ended)) = keeping.join_next() => {
                if let Ok(panic) = ended.try_into_panic() {
                    resume_unwind(panic);
                }
            }
        }
        drop(accepting);
        keeping.join_all().await; // until the stop; panics, too
    }
}

impl Hop {
    /// Opens the wallet and prepares the gateways, which are reached through `before` if there is a previous hop.
    async fn open(
        HopSettings { position, gateways, own, wallet: path, fsync, tokens }: HopSettings,
        before: Option<Arc<Opener>>,
        answers: &Arc<Answers>,
        process: &ProcessContext,
    ) -> Result<(Self, Reloadable), StartError> {
        let [gateway_gate, tokens_gate, _] = gates(position);
        let mut approach = Approach::new(position, before, process);
        let gateways = approach.lead_to(gateways, own);
        let source = TokenSource::new(&tokens, &process.live);
        let (place, mirrors) = (path.clone(), tokens.mirrors.clone());
        let opening = spawn_blocking(move || {
            let wallet = Wallet::open(&place, fsync, position)?;
            let consistency = Consistency::open(position, &place, mirrors);
            Ok((wallet, SavedChallenges::read(&place), SavedMarks::read(&place), consistency))
        });
        let (wallet, saved_challenges, (saved_marks, marks), consistency) =
            opening.await.unwrap_or_else(|error| Err(WalletError::io(&path, "open", &error.into())))?;
        let recorder = Arc::new(Recorder::new(position, wallet.shown().clone()));
        let supply = Arc::new(Supply::new(wallet, recorder.clone()));
        let gate = process.readiness.gate(gateway_gate);
        let gateways = Arc::new(Gateways::new(gateways, &saved_challenges, marks, supply.clone(), gate));
        let (settings, changes) = watch::channel(tokens);
        let (cap, failed) = (Cap::new(changes.clone()), FailedTargets::default());
        let opener = Arc::new(Opener { gateways, supply, recorder, cap, failed });
        status::add(process, position, answers, &opener, changes.clone());
        let refill = Refill::new(
            &opener,
            (source, consistency),
            (saved_challenges, saved_marks),
            changes,
            MintingStatus::new(process.readiness.gate(tokens_gate), opener.recorder.clone()),
            process.shutdown.clone(),
        );
        let reloadable = Reloadable { gateways: opener.gateways.clone(), approach, settings };
        Ok((Self { opener, refill }, reloadable))
    }

    /// Runs the refill and the probes of the gateways in `tasks` until the stop.
    fn keep(self, tasks: &mut JoinSet<()>, readiness: Readiness, shutdown: Shutdown) {
        let Self { opener, refill } = self;
        tasks.spawn(refill.run());
        tasks.spawn(async move { opener.gateways.clone().keep(readiness, shutdown).await });
    }
}
