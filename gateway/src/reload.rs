//! What a reload of the configuration changes while the gateway serves: everything but [`FIXED`].
//!
//! A reload makes the next [`Generation`] and lets it prove itself; then new requests use it, and those under way finish with
//! the one before. What cannot be made, or does not work where the one before does, leaves everything as it was.

use crate::backend;
use crate::check::{StartError, check};
use crate::config::{Config, Peers};
use crate::keys::offer::Offer;
use crate::keys::refresh::Supply;
use crate::keys::source;
use crate::observe::recorder::slow;
use crate::observe::spans::SERVICE;
use crate::state::{Certificates, Core, Generation};
use postern_admin::ProcessContext;
use postern_config::{Fixed, differ};
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{ListenerTls, Renewed, ServerTls, TlsConfig, keep_signed};
use postern_spend::{Backend, Binding, Epoch, Store};
use postern_telemetry::log;
use postern_telemetry::traces::Tracer;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval, sleep};

const OTHER_SOCKETS: &str = "the sockets are bound at the start";
const OTHER_MEMORY: &str = "a token could open two tunnels";

/// The keys that wait for a restart.
pub const FIXED: [Fixed; 8] = [
    Fixed { key: "listen.address", why: OTHER_SOCKETS },
    Fixed { key: "listen.admin", why: OTHER_SOCKETS },
    Fixed { key: "peers.address", why: OTHER_SOCKETS },
    Fixed { key: "listen.workers", why: "a closed socket resets waiting clients" },
    Fixed { key: "store.kind", why: OTHER_MEMORY },
    Fixed { key: "store.path", why: OTHER_MEMORY },
    Fixed { key: "store.memcached.addresses", why: OTHER_MEMORY },
    Fixed { key: "store.memcached.replicas", why: OTHER_MEMORY },
];

/// How long the store may take to serve by another way, where it serves by the present one.
const PROVING: Duration = Duration::from_secs(5);
/// How long it may take to have marks for the keys in use: longer than a server is waited for that is away.
const BINDING: Duration = Duration::from_secs(20);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How often it is looked at whether anything still uses what a reload has replaced.
const USED: Duration = Duration::from_millis(100);

/// What a reload reaches.
pub(crate) struct Reloading {
    pub(crate) core: Arc<Core>,
    /// What is in force.
    pub(crate) config: Config,
    /// The certificate, where it is not the file's.
    pub(crate) signed: Option<TlsConfig>,
    pub(crate) certificates: Certificates,
    /// To the maintenance of the issuer's keys.
    pub(crate) supplies: mpsc::UnboundedSender<Supply>,
    /// The workers' runtimes.
    pub(crate) workers: Vec<Handle>,
    pub(crate) process: ProcessContext,
}

/// All that can fail, made and not yet in force.
struct Prepared {
    generation: Generation,
    tracer: Option<Tracer>,
    supply: Option<Supply>,
    /// Of the listener, where `[tls]` has changed.
    tls: Option<Option<ServerTls>>,
    /// Of the one for peers, where `[peers]` has changed.
    peers: Option<Option<ServerTls>>,
}

impl Reloading {
    /// Reads the configuration again on each request for it, until the stop.
    pub(crate) async fn run(mut self, mut reloader: Reloader<Config>) {
        let shutdown = self.core.shutdown.clone();
        let reloading = async {
            loop {
                reloader.requested().await;
                let Some(reading) = reloader.read(&FIXED, check) else { continue };
                let mut new = reading.config.clone();
                let prepared = match keep_signed(&mut new.tls, self.signed.as_ref()) {
                    Ok(()) => self.prepare(&new).await,
                    Err(error) => Err(error.to_string()),
                };
                match prepared {
                    Ok(prepared) => {
                        self.put_in_force(new, prepared);
                        reloader.applied(reading);
                    }
                    Err(reason) => reloader.refused(&reason),
                }
            }
        };
        shutdown.until_stopped(reloading).await;
    }

    /// Makes everything that `new` asks for and that the present configuration does not.
    async fn prepare(&self, new: &Config) -> Result<Prepared, String> {
        let old = &self.config;
        let sentence = |error: StartError| error.to_string();
        let traces = differ(&old.tracing, &new.tracing);
        let tracer = traces.then(|| Tracer::start(&new.tracing, SERVICE)).transpose();
        let tracer = tracer.map_err(|error| sentence(error.into()))?;
        let supplies = differ(&old.issuer, &new.issuer);
        let supply = supplies.then(|| Supply::of(new, &self.process.live)).transpose();
        let supply = supply.map_err(|error| sentence(error.into()))?;
        let Certificates { clients, peers } = &self.certificates;
        let tls = differ(&old.tls, &new.tls).then(|| clients.open(new.tls.as_ref())).transpose();
        let tls = tls.map_err(|error| sentence(error.into()))?;
        let opened = differ(&old.peers, &new.peers)
            .then(|| peers.open(new.peers.as_ref().map(Peers::tls).as_ref()))
            .transpose();
        let of_peers = opened.map_err(|error| sentence(StartError::Peers(error)))?;
        let present = self.core.generation.load_full();
        let types = source::types(&new.issuer).map_err(|error| sentence(error.into()))?;
        let offer = Offer::new(&new.challenge, types, self.core.key_types.clone());
        let offer = offer.map_err(|error| sentence(error.into()))?;
        let (backend, stores) = self.store(new, &offer, tracer.as_ref(), &present)?;
        let listener = |opened: &Option<Option<ServerTls>>, present: &Renewed| {
            let tls = opened.as_ref().map_or_else(|| present.current(), Option::as_ref);
            tls.map(|tls| ListenerTls::new(tls, new.listen.http2))
        };
        let generation = Generation {
            offer,
            backend,
            stores,
            check_timing: new.store.memcached.hint,
            http2: new.listen.http2,
            require_host: new.listen.require_host,
            balancers: new.listen.proxy_protocol.clone(),
            tls: listener(&tls, clients),
            peers: listener(&of_peers, peers),
        };
        self.serves(&generation, &present).await?;
        Ok(Prepared { generation, tracer, supply, tls, peers: of_peers })
    }

    /// The store by the way that `new` says: the present one, unless something about that way has changed.
    fn store(
        &self,
        new: &Config,
        offer: &Offer,
        tracer: Option<&Tracer>,
        present: &Generation,
    ) -> Result<(Arc<Backend>, Vec<Store>), String> {
        let old = &self.config;
        let is_same =
            !differ(&old.store, &new.store) && !differ(&old.challenge, &new.challenge) && tracer.is_none(); // how slow a command is that is looked into
        let Backend::Memcached(memcached) = &*present.backend else {
            return Ok((Arc::clone(&present.backend), present.stores.clone()));
        };
        if is_same {
            return Ok((Arc::clone(&present.backend), present.stores.clone()));
        }
        let slow = tracer.map_or_else(|| self.core.recorder.slow(), slow);
        let config = &new.store.memcached;
        let reopened = backend::reopen(memcached, config, offer.marks(), self.workers.len(), slow);
        let backend = reopened.map_err(|error| StartError::from(error).to_string())?;
        let backend = Arc::new(Backend::Memcached(backend));
        let stores = backend::stores(&backend, &self.workers);
        Ok((backend, stores))
    }

    /// Waits until the store serves by another way. Where the present way does not serve either there is nothing to lose.
    async fn serves(&self, next: &Generation, present: &Generation) -> Result<(), String> {
        if Arc::ptr_eq(&next.backend, &present.backend) {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            let (keyring, now) = (self.core.keyring.load_full(), UnixSeconds::now());
            let epochs: Vec<_> = keyring.unretired(now).collect();
            next.backend.offer(&epochs);
            let ready = next.backend.ready().await;
            let is_bound = |generation: &Generation, epoch: &Epoch| {
                generation.backend.binding(epoch.key) != Binding::Unknown
            };
            // Clients hold tokens of each key, not of the newest alone.
            let loses = |epoch| is_bound(present, epoch) && !is_bound(next, epoch);
            if ready.is_ok() && !epochs.iter().any(loses) {
                return Ok(());
            }
            if present.backend.ready().await.is_err() {
                return Ok(());
            }
            let limit = if ready.is_ok() { BINDING } else { PROVING };
            if began.elapsed() > limit {
                let reason =
                    ready.err().map_or("a key of it has no mark yet".to_owned(), |error| error.to_string());
                return Err(format!(
                    "[store] or [challenge]: the store serves as it is reached now, and not as the file says: {reason}"
                ));
            }
            sleep(LOOK).await;
        }
    }

    /// From here on nothing can fail.
    fn put_in_force(&mut self, new: Config, prepared: Prepared) {
        let Prepared { generation, tracer, supply, tls, peers } = prepared;
        let (core, shutdown) = (&self.core, &self.core.shutdown);
        core.settings.replace(&new);
        if let Backend::Embedded(store) = &*generation.backend {
            store.sync(backend::fsync(&new.store));
            store.bind(generation.offer.marks());
        }
        let generation = Arc::new(generation);
        let before = core.generation.swap(Arc::clone(&generation));
        tokio::spawn(release(before, |before| Arc::strong_count(before) == 1, shutdown.clone()));
        if let Some(tracer) = tracer {
            let before = core.recorder.trace_by(tracer);
            let is_unused = |before: &Arc<Tracer>| Arc::strong_count(before) == 1 && before.is_alone();
            tokio::spawn(release(before, is_unused, shutdown.clone()));
        }
        if let Some(supply) = supply {
            let _ = self.supplies.send(supply); // it has ended only with the gateway
        }
        if let Some(tls) = tls {
            self.certificates.clients.replace(tls);
        }
        if let Some(tls) = peers {
            self.certificates.peers.replace(tls);
        }
        core.recorder.log_accesses(new.log.access);
        log::set_format(new.log.format);
        shutdown.set_deadline(new.drain.deadline.get());
        self.config = new;
    }
}

/// Drops what was replaced as soon as nothing uses it, on a thread that may wait for it to end.
async fn release<T: Send + 'static>(replaced: T, is_unused: impl Fn(&T) -> bool, shutdown: Shutdown) {
    let unused = async {
        let mut looks = interval(USED);
        while !is_unused(&replaced) {
            looks.tick().await;
        }
    };
    let _ = shutdown.until_stopped(unused).await;
    let _ = spawn_blocking(move || drop(replaced)).await;
}
