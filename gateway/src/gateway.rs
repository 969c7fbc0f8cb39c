//! Lifecycle of a gateway, from its configuration to its last connection.

use crate::config::Config;
use crate::error::StartError;
use crate::gate::LoggedGate;
use crate::keys::offer::KeyTypes;
use crate::keys::refresh::{Refresh, Supply};
use crate::maintenance::{SharedLimits, StoreMaintenance};
use crate::memories::Memories;
use crate::next_hops::{self, Connections};
use crate::observe::recorder::{Recorder, slow};
use crate::observe::spans::SERVICE;
use crate::observe::{catalogue, page};
use crate::reload::Reloading;
use crate::request::dear::Dear;
use crate::request::hops::Pseudonym;
use crate::request::resolve::CurrentResolver;
use crate::server::accept::{self, Listener};
use crate::settings::{Settings, check};
use crate::start::{Sockets, Start};
use crate::state::{Core, Generation, Worker, stores};
use arc_swap::ArcSwap;
use metrics::gauge;
use parking_lot::Mutex;
use postern_config::ConfigFile;
use postern_daemon::BoxFuture;
use postern_daemon::admin::ProcessContext;
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{Renewed, TlsConfig};
use postern_telemetry::traces::Tracer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::{io, thread};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A gateway whose sockets are bound and whose store is loaded, ready to [`run`](Gateway::run).
pub struct Gateway {
    core: Arc<Core>,
    workers: Vec<(CurrentResolver, TaskTrackerToken)>,
    maintenance: BoxFuture<'static, ()>,
    start: Start,
    /// Sockets of the peer listener, which already listens.
    peers: Option<Sockets>,
    reloading: Reloading,
    reloader: Option<Reloader<Config>>,
}

pub(crate) fn workers(config: &Config) -> usize {
    match config.listen.workers {
        0 => thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

impl Gateway {
    /// Reads the certificates, opens the store and binds the listening sockets. Blocks while the store is loaded.
    ///
    /// # Errors
    /// [`StartError`], with what to change.
    pub fn bind(config: &Config, process: &ProcessContext) -> Result<Self, StartError> {
        check(config)?;
        let key_types = KeyTypes::default();
        let settings = Settings::of(config, &key_types, process.descriptors, None)?;
        let mut supply = Supply::of(settings.source.clone(), &process.live);
        let saved = supply.saved_keyring();
        key_types.learn(saved.iter());
        let tls = config.tls.as_ref().map(TlsConfig::open).transpose().map_err(StartError::tls("tls"))?;
        let peers_tls = config.peers.as_ref().map(|peers| peers.tls().open()).transpose();
        let peers_tls = peers_tls.map_err(StartError::tls("peers"))?;
        let bind = |whose: Listener, address| Sockets::bind(whose.name(), address, workers(config));
        let peers = config.peers.as_ref().map(|peers| bind(Listener::Peers, peers.address));
        let mut peers = peers.transpose()?;
        peers.iter_mut().try_for_each(Sockets::listen)?; // requests from peers need neither keys nor the store
        let mut sockets = bind(Listener::Clients, config.listen.address)?;
        if config.listen.patience.get().is_zero() {
            sockets.listen()?;
        }
        let resolver = Arc::clone(&settings.resolver);
        let workers: Vec<_> = (0..workers(config))
            // From now on the kernel may accept connections, so a drain has to wait for each worker.
            .map(|_| Ok((CurrentResolver::new(&resolver)?, process.shutdown.tracker().token())))
            .collect::<Result<_, StartError>>()?;
        let tracer = Tracer::start(&config.tracing, SERVICE)?;
        let backend = settings.store.open(workers.len(), slow(&tracer), None)?;
        let store = (Arc::new(backend), Vec::new()); // stores are set in `serve`: each belongs to a worker's runtime
        let generation = Generation::new(settings, store, [tls.as_ref(), peers_tls.as_ref()]);
        let core = Arc::new(Core {
            keyring: ArcSwap::from_pointee(saved),
            key_types,
            memories: Memories::default(),
            recorder: Recorder::new(&process.live, &generation.backend, tracer),
            generation: ArcSwap::from_pointee(generation),
            shutdown: process.shutdown.clone(),
            places: Places::new(process.descriptors.most(2), 2),
            rates: Rates::default(),
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
        let keys = Refresh::new(Arc::clone(&core), supply, replaced, keys);
        let store = StoreMaintenance::new(Arc::clone(&core), store);
        let limits = SharedLimits::new(Arc::clone(&core));
        let hops = next_hops::Checks::new(Arc::clone(&core), CurrentResolver::new(&resolver)?, hops);
        // Concurrently: an issuer that does not answer must not delay the store's readiness.
        let maintenance =
            Box::pin(async { _ = tokio::join!(keys.run(), store.run(), limits.run(), hops.run()) });
        let renewed = |name, tls, ends: fn(u64)| {
            let ProcessContext { readiness, shutdown, .. } = process;
            Renewed::new(name, tls, readiness, shutdown, ends, start.listening.subscribe())
        };
        let of_clients = |end| gauge!(catalogue::CERTIFICATE_ENDS).set(end as f64);
        let of_peers = |end| gauge!(catalogue::PEERS_CERTIFICATE_ENDS).set(end as f64);
        let certificates =
            [renewed("certificate", tls, of_clients), renewed("certificate for peers", peers_tls, of_peers)];
        let counted = Arc::downgrade(&core);
        let tunnels = move || counted.upgrade().map_or(0, |core| core.recorder.tunnels_open.get());
        process.shutdown.count_tunnels(move || usize::try_from(tunnels()).unwrap_or(0));
        let reloading = Reloading {
            core: Arc::clone(&core),
            config: config.clone(),
            signed: None,
            certificates,
            supplies,
            workers: Vec::new(), // set in `serve`
            process: process.clone(),
        };
        Ok(Self { core, workers, maintenance, start, peers, reloading, reloader: None })
    }

    /// Rereads `file`, the source of the configuration, on SIGHUP. `signed` is the certificate that was issued at the start, if
    /// the file has none.
    #[must_use]
    pub fn reloading(mut self, file: ConfigFile<Config>, signed: Option<TlsConfig>) -> Self {
        self.reloading.signed = signed;
        let ProcessContext { readiness, shutdown, .. } = &self.reloading.process;
        self.reloader = Some(Reloader::new(file, readiness, shutdown));
        self
    }

    /// Returns the listening address, with the actual port if port 0 is configured.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.start.sockets.address()
    }

    /// Returns the listening address for peers.
    #[must_use]
    pub fn peers_addr(&self) -> Option<SocketAddr> {
        self.peers.as_ref().map(Sockets::address)
    }

    /// Completes when the gateway accepts clients, or ends without having accepted any.
    pub fn listening(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut listening = self.start.listening.subscribe();
        async move { _ = listening.wait_for(|listening| *listening).await }
    }

    /// Waits until the gateway can serve, for at most `listen.patience`, and serves until the stop. Runs maintenance on the
    /// current runtime and connections on separate threads.
    ///
    /// # Errors
    /// A thread or its runtime cannot start or ends by itself, or another gateway listens on the address.
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
        generation.stores = stores(&generation.backend, &handles);
        self.core.generation.store(Arc::new(generation));
        let mut peers = self.peers.into_iter().flat_map(Sockets::into_listeners);
        for (index, (runtime, (resolver, accepting))) in runtimes.into_iter().zip(self.workers).enumerate() {
            runtime.spawn(self.reloading.process.pulse.clone().beat());
            let next_hops = Connections::new(self.core.shutdown.clone());
            let worker =
                Worker { core: Arc::clone(&self.core), index, resolver, next_hops, dear: Dear::new() };
            let (sender, clients) = oneshot::channel();
            give.push(sender);
            let (peers, name) = (peers.next(), format!("gateway-{index}"));
            threads.push(
                thread::Builder::new()
                    .name(name)
                    .spawn(move || runtime.block_on(accept::work(clients, peers, worker, accepting)))?,
            );
        }
        self.reloading.certificates.iter_mut().for_each(Renewed::start);
        self.reloading.workers = handles;
        if let Some(reloader) = self.reloader {
            tokio::spawn(self.reloading.run(reloader));
        }
        let (maintenance, start) = (self.maintenance, self.start.run(give));
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
