//! A gateway, from its configuration to its last connection.

use crate::accept;
use crate::backend::{self, BackendError};
use crate::config::{Config, Hint, Limits};
use crate::connection::Worker;
use crate::egress::Policy;
use crate::keyring::{Keyring, Lifetimes, Offer};
use crate::page;
use crate::recorder::Recorder;
use crate::resolve::{Resolver, ResolverError};
use crate::source::{Source, SourceError};
use crate::upkeep::Upkeep;
use arc_swap::ArcSwap;
use postern_service::config::{ConfigFile, Reloader, Size};
use postern_service::drain::Shutdown;
use postern_service::exit;
use postern_service::host::Host;
use postern_service::listen::BindError;
use postern_service::tls::{ServerConfig, ServerTls, TlsError};
use postern_service::traces::{Tracer, TracerError};
use postern_spend::Backend;
use postern_token::ChallengeError;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use std::{io, thread};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// What the gateway is called in traces.
const SERVICE: &str = "postern-gateway";
/// hyper's smallest read buffer.
const LEAST_HEADER_SIZE: Size = Size::kib(8);
/// The keys of the configuration that take effect at once when it is read again; the others need a restart.
const LIVE: [&str; 0] = [];

/// What every request needs, shared by all workers.
pub(crate) struct Core {
    pub(crate) policy: Policy,
    pub(crate) offer: Offer,
    pub(crate) keyring: ArcSwap<Keyring>,
    pub(crate) backend: Backend,
    pub(crate) hint: Hint,
    pub(crate) limits: Limits,
    pub(crate) recorder: Recorder,
    pub(crate) shutdown: Shutdown,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) connections: AtomicUsize,
}

/// A gateway whose sockets are open and whose store is loaded, ready to [`run`](Gateway::run).
pub struct Gateway {
    core: Arc<Core>,
    address: SocketAddr,
    workers: Vec<(TcpListener, Resolver, TaskTrackerToken)>,
    upkeep: Upkeep,
    tls: Option<ServerTls>,
    host: Host,
    reloader: Option<Reloader<Config>>,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The names of the challenge.
    #[error("challenge: {0}")]
    Challenge(#[from] ChallengeError),
    /// The issuer's keys.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The certificate files.
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    /// A bound that is too small to work.
    #[error("limits.header_size = \"{0:?}\" is too small for a token's header: write at least \"8KiB\"")]
    HeaderSize(Size),
    /// The double-spend store.
    #[error(transparent)]
    Store(#[from] BackendError),
    /// The listening address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The resolver.
    #[error(transparent)]
    Resolver(#[from] ResolverError),
    /// The exporter of traces.
    #[error(transparent)]
    Tracer(#[from] TracerError),
}

impl StartError {
    /// The code to exit with: [`exit::CONFIG`] when the configuration must be edited, [`exit::RUNTIME`] otherwise.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Challenge(_) | Self::Source(_) | Self::Tls(_) | Self::HeaderSize(_) => exit::CONFIG,
            Self::Tracer(TracerError::Config { .. }) => exit::CONFIG,
            Self::Store(error) if error.is_configuration() => exit::CONFIG,
            Self::Store(_) | Self::Bind(_) | Self::Resolver(_) | Self::Tracer(_) => exit::RUNTIME,
        }
    }
}

/// Finds what a start with this configuration would refuse: it reads certificates and addresses, and opens no socket,
/// takes no lock and writes nothing.
///
/// # Errors
/// [`StartError`] says what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    if config.limits.header_size.0 < LEAST_HEADER_SIZE.0 {
        return Err(StartError::HeaderSize(config.limits.header_size));
    }
    Offer::new(&config.challenge)?;
    Source::new(&config.issuer)?;
    config.tls.as_ref().map(|tls| ServerTls::load(&tls.certificate, &tls.key)).transpose()?;
    config.tracing.check()?;
    backend::check(&config.store, workers(config))?;
    Ok(())
}

/// How many threads serve connections.
fn workers(config: &Config) -> usize {
    match config.listen.workers {
        0 => thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

impl Gateway {
    /// Reads the certificates, opens the store and the listening sockets. Blocks while the store is loaded.
    ///
    /// # Errors
    /// [`StartError`] says what to change.
    pub fn bind(config: &Config, host: &Host) -> Result<Self, StartError> {
        check(config)?;
        let offer = Offer::new(&config.challenge)?;
        let source = Source::new(&config.issuer)?;
        let tls = config.tls.as_ref().map(|tls| ServerTls::load(&tls.certificate, &tls.key)).transpose()?;
        let (address, listeners) = accept::open(config.listen.address, workers(config))?;
        let workers: Vec<_> = listeners
            .into_iter()
            // The kernel accepts from now on, so a drain has something to wait for from now on.
            .map(|listener| Ok((listener, Resolver::new()?, host.shutdown.tracker().token())))
            .collect::<Result<_, ResolverError>>()?;
        let tracer = Tracer::start(&config.tracing, SERVICE)?;
        // Nobody would see what TCP knows of a slow command.
        let slow = tracer.slow().unwrap_or(Duration::MAX);
        let backend = backend::open(&config.store, workers.len(), slow)?;
        let core = Arc::new(Core {
            policy: Policy::new(&config.egress),
            offer,
            keyring: ArcSwap::default(),
            recorder: Recorder::new(&host.live, &backend, tracer, config.log.access),
            backend,
            hint: config.store.memcached.hint,
            limits: config.limits.clone(),
            shutdown: host.shutdown.clone(),
            tls: tls.as_ref().map(ServerTls::config),
            connections: AtomicUsize::new(0),
        });
        let lifetimes = Lifetimes {
            unsaid: config.issuer.key_lifetime.get(),
            removed: config.issuer.removed_grace.get(),
        };
        let on_loss = config.store.memcached.on_loss;
        page::add(&host.live, &core);
        let counted = Arc::downgrade(&core);
        host.shutdown.count_tunnels(move || counted.upgrade().map_or(0, |core| core.recorder.open_tunnels()));
        let upkeep =
            Upkeep::new(Arc::clone(&core), source, lifetimes, config.issuer.poll.get(), on_loss, host);
        Ok(Self { core, address, workers, upkeep, tls, host: host.clone(), reloader: None })
    }

    /// Reads `file`, which the configuration came from, again on SIGHUP.
    #[must_use]
    pub fn reloading(mut self, file: ConfigFile<Config>) -> Self {
        self.reloader = Some(Reloader::new(file, &self.host));
        self
    }

    /// Where it listens: the port is the real one when port 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the stop. Runs upkeep on the present runtime and connections on threads of their own.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be started, or ended by itself.
    pub async fn run(self) -> io::Result<()> {
        let mut threads = Vec::new();
        for (index, (listener, resolver, accepting)) in self.workers.into_iter().enumerate() {
            let core = Arc::clone(&self.core);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let store = {
                // The store's connections belong to the runtime that opens them.
                let _here = runtime.enter();
                core.backend.store()
            };
            let worker = Worker { store, core, resolver };
            let name = format!("gateway-{index}");
            threads.push(
                thread::Builder::new()
                    .name(name)
                    .spawn(move || runtime.block_on(accept::work(listener, worker, accepting)))?,
            );
        }
        if let Some(tls) = self.tls {
            tokio::spawn(tls.renew(self.core.shutdown.clone()));
        }
        if let Some(reloader) = self.reloader {
            tokio::spawn(reload(reloader, self.core.shutdown.clone()));
        }
        self.core.shutdown.until_stopped(self.upkeep.run()).await;
        let joined = tokio::task::spawn_blocking(move || {
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => Err(io::Error::other("a gateway worker panicked")),
            })
        });
        joined.await.map_err(io::Error::other)?
    }
}

/// Reads the configuration again whenever that is asked for, until the stop.
async fn reload(mut reloader: Reloader<Config>, shutdown: Shutdown) {
    let reloading = async {
        loop {
            reloader.requested().await;
            reloader.reload(&LIVE, check);
        }
    };
    shutdown.until_stopped(reloading).await;
}
