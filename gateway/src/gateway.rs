//! A gateway, from its configuration to its last connection.

use crate::backend;
use crate::check::{StartError, check};
use crate::config::{Config, Peers};
use crate::gate::LoggedGate;
use crate::keys::offer::{KeyTypes, Offer};
use crate::keys::refresh::{Refresh, Supply};
use crate::keys::source;
use crate::maintenance::{Maintenance, StoreMaintenance};
use crate::memories::Memories;
use crate::next_hops::{self, Connections};
use crate::observe::page;
use crate::observe::recorder::{Recorder, slow};
use crate::observe::spans::SERVICE;
use crate::reload::Reloading;
use crate::request::dear::Dear;
use crate::request::hops::Pseudonym;
use crate::request::resolve::{CurrentResolver, ResolverError};
use crate::server::accept::{self, Listener, Listening};
use crate::server::sockets::Sockets;
use crate::shared_limits::SharedLimits;
use crate::start::Start;
use crate::state::{Certificates, Core, Generation, Settings, Worker};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_admin::ProcessContext;
use postern_config::ConfigFile;
use postern_daemon::BoxFuture;
use postern_daemon::listen::BindError;
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{ListenerTls, TlsConfig};
use postern_telemetry::traces::Tracer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{io, thread};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A gateway whose sockets are bound and whose store is loaded, ready to [`run`](Gateway::run).
pub struct Gateway {
    core: Arc<Core>,
    workers: Vec<(CurrentResolver, TaskTrackerToken)>,
    maintenance: Maintenance,
    start: Start,
    /// Of the listener for peers; it listens already.
    peers: Option<Sockets>,
    certificates: Certificates,
    process: ProcessContext,
    reloader: Option<Reloader<Config>>,
    /// What a reload is compared with, and how it reaches the keys' maintenance.
    config: Config,
    signed: Option<TlsConfig>,
    supplies: mpsc::UnboundedSender<Supply>,
}

/// How many threads serve connections.
pub(crate) fn workers(config: &Config) -> usize {
    match config.listen.workers {
        0 => thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

/// Sockets for peers. They listen at once: what peers ask for needs neither keys nor the store.
fn listen_for(peers: &Peers, workers: usize) -> Result<Sockets, BindError> {
    let mut sockets = Sockets::bind(Listener::Peers.name(), peers.address, workers)?;
    sockets.listen()?;
    Ok(sockets)
}

impl Gateway {
    /// Reads the certificates, opens the store, binds the listening sockets. Blocks while the store is loaded.
    ///
    /// # Errors
    /// [`StartError`], with what to change.
    pub fn bind(config: &Config, process: &ProcessContext) -> Result<Self, StartError> {
        check(config)?;
        let mut supply = Supply::of(config, &process.live)?;
        let saved = supply.saved_keyring();
        let key_types = KeyTypes::default();
        key_types.learn(saved.iter());
        let offer = Offer::new(&config.challenge, source::types(&config.issuer)?, key_types.clone())?;
        let tls = config.tls.as_ref().map(TlsConfig::open).transpose()?;
        let peers_tls = config.peers.as_ref().map(|peers| peers.tls().open()).transpose();
        let peers_tls = peers_tls.map_err(StartError::Peers)?;
        let peers = config.peers.as_ref().map(|peers| listen_for(peers, workers(config))).transpose()?;
        let name = Listener::Clients.name();
        let mut sockets = Sockets::bind(name, config.listen.address, workers(config))?;
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
            http2: config.listen.http2,
            require_host: config.listen.require_host,
            balancers: config.listen.proxy_protocol.clone(),
            tls: tls.as_ref().map(|tls| ListenerTls::new(tls, config.listen.http2)),
            peers: peers_tls.as_ref().map(|tls| ListenerTls::new(tls, config.listen.http2)),
        };
        let core = Arc::new(Core {
            settings,
            keyring: ArcSwap::from_pointee(saved),
            key_types,
            memories: Memories::default(),
            recorder: Recorder::new(&process.live, &generation.backend, tracer, config.log.access),
            generation: ArcSwap::from_pointee(generation),
            shutdown: process.shutdown.clone(),
            places: Places::default(),
            rates: Rates::default(),
            next_hop_away: AtomicBool::default(),
            next_hop_circle: AtomicBool::default(),
            pseudonym: Pseudonym::random(),
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
        let certificates = Certificates::new([tls, peers_tls], process, &start.listening);
        let counted = Arc::downgrade(&core);
        process
            .shutdown
            .count_tunnels(move || counted.upgrade().map_or(0, |core| core.recorder.open_tunnels()));
        Ok(Self {
            core,
            workers,
            maintenance,
            start,
            peers,
            certificates,
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

    /// Where it listens for peers.
    #[must_use]
    pub fn peers_addr(&self) -> Option<SocketAddr> {
        self.peers.as_ref().map(Sockets::address)
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
    pub fn run(self) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(self.serve())
    }

    async fn serve(mut self) -> io::Result<()> {
        let (mut threads, mut give, mut runtimes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in &self.workers {
            runtimes.push(tokio::runtime::Builder::new_current_thread().enable_all().build()?);
        }
        let handles: Vec<Handle> = runtimes.iter().map(|runtime| runtime.handle().clone()).collect();
        let mut generation = Generation::clone(&self.core.generation.load());
        generation.stores = backend::stores(&generation.backend, &handles);
        self.core.generation.store(Arc::new(generation));
        let mut peers = self.peers.into_iter().flat_map(Sockets::into_listeners);
        for (index, (runtime, (resolver, accepting))) in runtimes.into_iter().zip(self.workers).enumerate() {
            runtime.spawn(self.process.pulse.clone().beat());
            let next_hops = Connections::new(self.core.shutdown.clone());
            let worker =
                Worker { core: Arc::clone(&self.core), index, resolver, next_hops, dear: Dear::new() };
            let (sender, clients) = oneshot::channel();
            give.push(sender);
            let listening = Listening { clients, peers: peers.next() };
            let name = format!("gateway-{index}");
            threads.push(
                thread::Builder::new()
                    .name(name)
                    .spawn(move || runtime.block_on(accept::work(listening, worker, accepting)))?,
            );
        }
        self.certificates.start();
        if let Some(reloader) = self.reloader {
            let reloading = Reloading {
                core: Arc::clone(&self.core),
                config: self.config,
                signed: self.signed,
                certificates: self.certificates,
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
