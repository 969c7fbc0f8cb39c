//! The agent: one listener for HTTP and SOCKS5, and the task that keeps the wallet filled.

use crate::catalogue::AgentOutcome;
use crate::config::{Config, GatewayConfig};
use crate::gateway::{Gateway, GatewayUrlError};
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
use crate::{http_proxy, socks};
use postern_admin::ProcessContext;
use postern_admin::live::Live;
use postern_config::ConfigFile;
use postern_daemon::listen;
use postern_daemon::reload::Reloader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// How long a client may take to send its first byte. Browsers open connections ahead of need, and open others when those
/// are closed.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to pause when accepting fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The local agent, listening but not yet serving.
pub struct Agent {
    listener: TcpListener,
    local: SocketAddr,
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
        let gateways = gateways(&config.gateway, &process.live)?;
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
        let listener = listen::bind("the agent", config.listen.address).await?;
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
        Ok(Self { listener, local, state, refill, settings, process: process.clone(), reloader: None })
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
        let admit = |stream| {
            let (state, shutdown) = (self.state.clone(), shutdown.clone());
            self.state.shutdown.tracker().spawn(async move {
                shutdown.until_stopped(serve(stream, state)).await;
            });
        };
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = shutdown.draining() => break,
            };
            match accepted {
                Ok((stream, _)) => admit(stream),
                Err(error) => {
                    tracing::warn!("the agent cannot accept: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        if let Ok(waiting) = listen::waiting(self.listener) {
            waiting.for_each(|(stream, _)| admit(stream));
        }
        drop(accepting);
        // Both end with the stop. A panic is already in the log, and nothing is left to do here.
        let _ = (refilling.await, keeping.await);
    }
}

fn gateways(config: &GatewayConfig, live: &Live) -> Result<Vec<Arc<Gateway>>, GatewayUrlError> {
    let gateway = |url: &String| Ok(Arc::new(Gateway::new(url, config)?.recorded(live)));
    config.url.list().iter().map(gateway).collect()
}

/// The first byte distinguishes the protocols: 5 and 4 are versions of SOCKS, and no HTTP method begins with them.
async fn serve(stream: TcpStream, state: Arc<AgentState>) {
    let mut first = [0];
    let peeked = tokio::select! {
        peeked = timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)) => peeked,
        () = state.shutdown.draining() => return,
    };
    if !matches!(peeked, Ok(Ok(1))) || stream.set_nodelay(true).is_err() {
        return;
    }
    match first[0] {
        5 => socks::serve(stream, &state).await,
        4 => {
            state.count(AgentOutcome::BadRequest);
            socks::refuse_version_4(stream).await;
        }
        _ => http_proxy::serve(stream, state).await,
    }
}
