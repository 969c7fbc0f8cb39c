//! A gateway, from its configuration to its last connection.

use crate::backend::{self, BackendError};
use crate::config::{Bind, ChallengeConfig, Config, NextHopError, StoreKind};
use crate::health::LoggedGate;
use crate::keys::offer::Offer;
use crate::keys::refresh::{Refresh, Supply};
use crate::keys::saved::Saved;
use crate::keys::source::{Source, SourceError};
use crate::maintenance::{Maintenance, StoreMaintenance};
use crate::next_hops::{self, Connections};
use crate::observe::recorder::Recorder;
use crate::observe::{catalogue, page};
use crate::reload::Reloading;
use crate::request::resolve::{self, CurrentResolver, ResolverError};
use crate::server::accept::{self, Sockets};
use crate::shared_limits::{LEAST_SECRET, SharedLimits};
use crate::start::Start;
use crate::state::{Core, Generation, ListenerTls, Settings, Worker};
use arc_swap::ArcSwap;
use metrics::gauge;
use parking_lot::Mutex;
use postern_admin::ProcessContext;
use postern_config::{ConfigFile, Size};
use postern_daemon::exit;
use postern_daemon::listen::BindError;
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{Renewed, TlsConfig, TlsError};
use postern_spend::{Backend, Store};
use postern_telemetry::traces::{Tracer, TracerError};
use postern_token::ChallengeError;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{io, thread};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// What the gateway is called in traces.
pub(crate) const SERVICE: &str = "postern-gateway";
/// hyper's smallest read buffer.
const LEAST_HEADER_SIZE: Size = Size::kib(8);
/// A second of it carries a TLS record's worth of a page.
const LEAST_TUNNEL_RATE: Size = Size::kib(1);

/// A gateway whose sockets are bound and whose store is loaded, ready to [`run`](Gateway::run).
pub struct Gateway {
    core: Arc<Core>,
    workers: Vec<(CurrentResolver, TaskTrackerToken)>,
    maintenance: Maintenance,
    start: Start,
    certificate: Renewed,
    process: ProcessContext,
    reloader: Option<Reloader<Config>>,
    /// What a reload is compared with, and how it reaches the keys' maintenance.
    config: Config,
    signed: Option<TlsConfig>,
    supplies: mpsc::UnboundedSender<Supply>,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The names of the challenge.
    #[error("challenge: {0}")]
    Challenge(#[from] ChallengeError),
    /// Marks where they cannot be.
    #[error("challenge.bind needs one challenge.origin: a mark stands below it; or set it to \"off\"")]
    Marks,
    /// Replicas without marks.
    #[error(
        "store.memcached.replicas needs challenge.bind = \"offer\": only a token that a mark binds lets each replica show \
         that it has lost no record of it"
    )]
    Replicas,
    /// The issuer's keys.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The certificate files.
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    /// A rate that is too slow to work.
    #[error(
        "limits.tunnel_rate = \"{0:?}\" a second is too slow for any use: write at least \"1KiB\", or leave it out"
    )]
    TunnelRate(Size),
    /// A bound that is too small to work.
    #[error("limits.header_size = \"{0:?}\" is too small for a token's header: write at least \"8KiB\"")]
    HeaderSize(Size),
    /// A secret that can be guessed.
    #[error(
        "limits.shared_secret is too short: whoever reads the shared memory could guess it and find clients' addresses; write \
         at least {LEAST_SECRET} characters, such as the output of \"openssl rand -hex 32\""
    )]
    SharedSecretLength,
    /// Limits that cannot be shared.
    #[error(
        "limits.shared_secret needs store.kind = \"memcached\": the gateways of a fleet share limits through its memcached; \
         leave the secret out where there is one gateway"
    )]
    SharedSecretStore,
    /// No address to connect from.
    #[error(
        "egress.source has {0}, from which nothing can connect: list addresses of this machine's interfaces, IPv4 ones as such"
    )]
    LocalAddress(IpAddr),
    /// Next hops and rules that do not go together.
    #[error(transparent)]
    NextHops(#[from] NextHopError),
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
            Self::Challenge(_)
            | Self::Marks
            | Self::Replicas
            | Self::Source(_)
            | Self::TunnelRate(_)
            | Self::SharedSecretLength
            | Self::SharedSecretStore
            | Self::LocalAddress(_)
            | Self::NextHops(_)
            | Self::HeaderSize(_) => exit::CONFIG,
            Self::Tracer(TracerError::Config { .. }) => exit::CONFIG,
            Self::Tls(TlsError::State(_)) => exit::RUNTIME,
            Self::Tls(_) => exit::CONFIG,
            Self::Store(error) if error.is_configuration() => exit::CONFIG,
            Self::Resolver(error) if error.is_configuration() => exit::CONFIG,
            Self::Store(_) | Self::Bind(_) | Self::Resolver(_) | Self::Tracer(_) => exit::RUNTIME,
        }
    }
}

/// Finds what a start with this configuration would refuse: it reads certificates and addresses, and opens no socket,
/// takes no lock and writes nothing.
///
/// # Errors
/// [`StartError`], with what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    if config.limits.header_size.0 < LEAST_HEADER_SIZE.0 {
        return Err(StartError::HeaderSize(config.limits.header_size));
    }
    if let Some(rate) = config.limits.tunnel_rate.filter(|rate| rate.0 < LEAST_TUNNEL_RATE.0) {
        return Err(StartError::TunnelRate(rate));
    }
    check_bind(config)?;
    check_shared_secret(config)?;
    resolve::check(&config.egress.resolver)?;
    config.egress.check_next_hops()?;
    config.egress.unusable_source().map_or(Ok(()), |address| Err(StartError::LocalAddress(address)))?;
    Offer::new(&config.challenge)?;
    Source::new(&config.issuer)?;
    config.tls.as_ref().map(TlsConfig::load).transpose()?;
    config.tracing.check()?;
    backend::check(&config.store, workers(config))?;
    Ok(())
}

/// Marks need one name to stand below.
fn check_bind(config: &Config) -> Result<(), StartError> {
    let ChallengeConfig { bind, origin, .. } = &config.challenge;
    let votes = config.store.kind == StoreKind::Memcached && !config.store.memcached.replicas.is_empty();
    if votes && *bind != Bind::Offer {
        return Err(StartError::Replicas);
    }
    if *bind != Bind::Off && origin.contains(',') {
        return Err(StartError::Marks);
    }
    Ok(())
}

/// A secret needs something to share, and must not be guessed.
fn check_shared_secret(config: &Config) -> Result<(), StartError> {
    match &config.limits.shared_secret {
        Some(_) if config.store.kind != StoreKind::Memcached => Err(StartError::SharedSecretStore),
        Some(secret) if secret.expose().chars().count() < LEAST_SECRET => Err(StartError::SharedSecretLength),
        _ => Ok(()),
    }
}

/// How many threads serve connections.
fn workers(config: &Config) -> usize {
    match config.listen.workers {
        0 => thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

impl Gateway {
    /// Reads the certificates, opens the store, binds the listening sockets. Blocks while the store is loaded.
    ///
    /// # Errors
    /// [`StartError`], with what to change.
    pub fn bind(config: &Config, process: &ProcessContext) -> Result<Self, StartError> {
        check(config)?;
        let (offer, mut supply) = (Offer::new(&config.challenge)?, Supply::of(config, &process.live)?);
        let tls = config.tls.as_ref().map(TlsConfig::open).transpose()?;
        let mut sockets = Sockets::bind(config.listen.address, workers(config))?;
        if config.listen.patience.get().is_zero() {
            sockets.listen()?;
        }
        let settings = Settings::of(config, process.descriptors);
        let resolver = settings.resolver.load_full();
        let workers: Vec<_> = (0..workers(config))
            // The kernel will accept, so a drain has something to wait for from now on.
            .map(|_| Ok((CurrentResolver::new(&resolver)?, process.shutdown.tracker().token())))
            .collect::<Result<_, ResolverError>>()?;
        let tracer = Tracer::start(&config.tracing, SERVICE)?;
        let backend = backend::open(&config.store, offer.marks(), workers.len(), slow(&tracer))?;
        let generation = Generation {
            offer,
            backend: Arc::new(backend),
            stores: Vec::new(), // they belong to the workers' runtimes
            check_timing: config.store.memcached.hint,
            on_loss: config.store.memcached.on_loss,
            http2: config.listen.http2,
            require_host: config.listen.require_host,
            balancers: config.listen.proxy_protocol.clone(),
            tls: tls.as_ref().map(|tls| ListenerTls::new(tls, config.listen.http2)),
        };
        let core = Arc::new(Core {
            settings,
            keyring: ArcSwap::from_pointee(supply.saved.as_mut().map(Saved::load).unwrap_or_default()),
            recorder: Recorder::new(&process.live, &generation.backend, tracer, config.log.access),
            generation: ArcSwap::from_pointee(generation),
            shutdown: process.shutdown.clone(),
            places: Places::default(),
            rates: Rates::default(),
            all_lost: AtomicBool::default(),
            next_hop_away: AtomicBool::default(),
            withdrawn: Mutex::default(),
            unknown_key: Notify::new(),
        });
        page::add(&process.live, &core);
        let [keys, store, hops] =
            ["keys", "store", "next hops"].map(|name| LoggedGate::new(name, process.readiness.gate(name)));
        let start = Start {
            sockets,
            served: [keys.served(), store.served()],
            patience: config.listen.patience.get(),
            gate: process.readiness.gate("listen"),
            readiness: process.readiness.clone(),
            shutdown: process.shutdown.clone(),
            listening: watch::Sender::new(false),
        };
        let (supplies, replaced) = mpsc::unbounded_channel();
        let maintenance = Maintenance {
            keys: Refresh::new(Arc::clone(&core), supply, replaced, keys),
            store: StoreMaintenance::new(Arc::clone(&core), store),
            shared_limits: SharedLimits::new(Arc::clone(&core)),
            next_hops: next_hops::Checks::new(Arc::clone(&core), CurrentResolver::new(&resolver)?, hops),
        };
        let ends = |second: u64| gauge!(catalogue::CERTIFICATE_ENDS).set(second as f64);
        let ProcessContext { readiness, shutdown, .. } = process;
        let certificate = Renewed::new(tls, readiness, shutdown, ends, start.listening.subscribe());
        let counted = Arc::downgrade(&core);
        process
            .shutdown
            .count_tunnels(move || counted.upgrade().map_or(0, |core| core.recorder.open_tunnels()));
        Ok(Self {
            core,
            workers,
            maintenance,
            start,
            certificate,
            process: process.clone(),
            reloader: None,
            config: config.clone(),
            signed: None,
            supplies,
        })
    }

    /// Reads `file`, which the configuration came from, again on SIGHUP. `signed` is the certificate, where it is not the file's.
    #[must_use]
    pub fn reloading(mut self, file: ConfigFile<Config>, signed: Option<TlsConfig>) -> Self {
        self.signed = signed;
        self.reloader = Some(Reloader::new(file, &self.process.readiness, &self.process.shutdown));
        self
    }

    /// Where it listens: the port is the real one when port 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.start.sockets.address()
    }

    /// Completes when it takes clients, or has ended without.
    pub fn listening(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut listening = self.start.listening.subscribe();
        async move { _ = listening.wait_for(|listening| *listening).await }
    }

    /// Serves until the stop, from the moment on at which it can. Runs maintenance on the present runtime and
    /// connections on threads of their own.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be started, or ended by itself, or another gateway listens on its address
    /// now.
    pub async fn run(mut self) -> io::Result<()> {
        let (mut threads, mut give, mut runtimes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in &self.workers {
            runtimes.push(tokio::runtime::Builder::new_current_thread().enable_all().build()?);
        }
        let handles: Vec<Handle> = runtimes.iter().map(|runtime| runtime.handle().clone()).collect();
        let mut generation = Generation::clone(&self.core.generation.load());
        generation.stores = stores(&generation.backend, &handles);
        self.core.generation.store(Arc::new(generation));
        for (index, (runtime, (resolver, accepting))) in runtimes.into_iter().zip(self.workers).enumerate() {
            runtime.spawn(self.process.pulse.clone().beat());
            let next_hops = Connections::new(self.core.shutdown.clone());
            let worker = Worker { core: Arc::clone(&self.core), index, resolver, next_hops };
            let (sender, listening) = oneshot::channel();
            give.push(sender);
            let name = format!("gateway-{index}");
            threads.push(
                thread::Builder::new()
                    .name(name)
                    .spawn(move || runtime.block_on(accept::work(listening, worker, accepting)))?,
            );
        }
        self.certificate.start();
        if let Some(reloader) = self.reloader {
            let reloading = Reloading {
                core: Arc::clone(&self.core),
                config: self.config,
                signed: self.signed,
                certificate: self.certificate,
                supplies: self.supplies,
                workers: handles,
                process: self.process,
            };
            tokio::spawn(reloading.run(reloader));
        }
        let (maintenance, start) = (self.maintenance.run(), self.start.run(give));
        let serving = async {
            tokio::select! {
                () = maintenance => Ok(()),
                error = start => Err(error),
            }
        };
        self.core.shutdown.until_stopped(serving).await.unwrap_or(Ok(()))?;
        let joined = tokio::task::spawn_blocking(move || {
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => Err(io::Error::other("a gateway worker panicked")),
            })
        });
        joined.await.map_err(io::Error::other)?
    }
}

/// How long a command to the store may take before its TCP facts are read: without traces they are not used.
pub(crate) fn slow(tracer: &Tracer) -> Duration {
    tracer.slow().unwrap_or(Duration::MAX)
}

/// The store as each of the workers uses it. Its connections belong to the runtime that opens them.
pub(crate) fn stores(backend: &Backend, workers: &[Handle]) -> Vec<Store> {
    let store = |worker: &Handle| {
        let _here = worker.enter();
        backend.store()
    };
    workers.iter().map(store).collect()
}
