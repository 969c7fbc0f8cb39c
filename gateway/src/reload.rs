//! Reload of the configuration while the gateway serves. It changes everything except [`FIXED`].
//!
//! A reload builds the next [`Generation`] and tests it. Then new requests use it, and requests in progress finish with the
//! previous one. If a part cannot be built, or does not work where the previous one does, nothing changes.

use crate::config::{Config, Peers};
use crate::error::StartError;
use crate::keys::refresh::Supply;
use crate::observe::recorder::slow;
use crate::observe::spans::SERVICE;
use crate::settings::{Settings, check};
use crate::state::{Core, Generation, stores};
use postern_config::{Fixed, differ};
use postern_daemon::admin::ProcessContext;
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{Renewed, ServerTls, TlsConfig, keep_signed};
use postern_spend::{Backend, Epoch, Store, Unknown};
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

/// Keys that take effect only after a restart.
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

/// Maximum time for the store to serve with the new settings, if it serves with the current ones: longer than the lookup of its
/// names while a name server is down.
const PROVING: Duration = Duration::from_secs(15);
/// Maximum time for the store to have marks for the keys in use: longer than the wait for a server that is down.
const BINDING: Duration = Duration::from_secs(20);
/// Polling interval for both.
const LOOK: Duration = Duration::from_millis(10);
/// Polling interval for the last use of replaced state.
const USED: Duration = Duration::from_millis(100);

pub(crate) struct Reloading {
    pub(crate) core: Arc<Core>,
    pub(crate) config: Config,
    /// Certificate that was issued at the start, if the file has none.
    pub(crate) signed: Option<TlsConfig>,
    /// Those of the listeners for clients and for peers.
    pub(crate) certificates: [Renewed; 2],
    /// Channel to the maintenance of the issuer's keys.
    pub(crate) supplies: mpsc::UnboundedSender<Supply>,
    pub(crate) workers: Vec<Handle>,
    pub(crate) process: ProcessContext,
}

/// Everything that can fail to be built, not yet in force.
struct Prepared {
    generation: Generation,
    tracer: Option<Tracer>,
    supply: Option<Supply>,
    /// TLS of the client listener; the outer `None` if `[tls]` is unchanged.
    tls: Option<Option<ServerTls>>,
    /// TLS of the peer listener; the outer `None` if `[peers]` is unchanged.
    peers: Option<Option<ServerTls>>,
}

impl Reloading {
    /// Rereads the configuration on each reload request, until the stop.
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

    /// Builds everything in which `new` differs from the current configuration.
    async fn prepare(&self, new: &Config) -> Result<Prepared, String> {
        let present = self.core.generation.load_full();
        let prepared = self.build(new, &present).map_err(|error| error.to_string())?;
        self.serves(&prepared.generation, &present).await?;
        Ok(prepared)
    }

    fn build(&self, new: &Config, present: &Generation) -> Result<Prepared, StartError> {
        let old = &self.config;
        let traces = differ(&old.tracing, &new.tracing);
        let tracer = traces.then(|| Tracer::start(&new.tracing, SERVICE)).transpose()?;
        let (descriptors, before) = (self.process.descriptors, Some(&present.settings));
        let settings = Settings::of(new, &self.core.key_types, descriptors, before)?;
        let [clients, peers] = &self.certificates;
        let tls = differ(&old.tls, &new.tls).then(|| clients.open(new.tls.as_ref())).transpose();
        let tls = tls.map_err(StartError::tls("tls"))?;
        let opened = differ(&old.peers, &new.peers)
            .then(|| peers.open(new.peers.as_ref().map(Peers::tls).as_ref()))
            .transpose();
        let of_peers = opened.map_err(StartError::tls("peers"))?;
        let is_other = differ(&old.issuer, &new.issuer);
        let supply = is_other.then(|| Supply::of(settings.source.clone(), &self.process.live));
        let store = self.store(new, &settings, tracer.as_ref(), present)?;
        let listeners = [
            tls.as_ref().map_or_else(|| clients.current(), Option::as_ref),
            of_peers.as_ref().map_or_else(|| peers.current(), Option::as_ref),
        ];
        let generation = Generation::new(settings, store, listeners);
        Ok(Prepared { generation, tracer, supply, tls, peers: of_peers })
    }

    /// Returns the store with the settings of `new`: the current store, unless a setting of its access has changed.
    fn store(
        &self,
        new: &Config,
        settings: &Settings,
        tracer: Option<&Tracer>,
        present: &Generation,
    ) -> Result<(Arc<Backend>, Vec<Store>), StartError> {
        let old = &self.config;
        // A new tracer changes the threshold of slow commands.
        let is_other =
            differ(&old.store, &new.store) || differ(&old.challenge, &new.challenge) || tracer.is_some();
        let (Backend::Memcached(memcached), true) = (&*present.backend, is_other) else {
            return Ok((Arc::clone(&present.backend), present.stores.clone()));
        };
        let slow = tracer.map_or_else(|| self.core.recorder.slow(), slow);
        let backend = Arc::new(settings.store.open(self.workers.len(), slow, Some(memcached))?);
        let stores = stores(&backend, &self.workers);
        Ok((backend, stores))
    }

    /// Waits until the store serves with the new settings, and has marks for all keys for which it has marks now. Succeeds if
    /// it does not serve with the current settings either: then nothing is lost.
    async fn serves(&self, next: &Generation, present: &Generation) -> Result<(), String> {
        if Arc::ptr_eq(&next.backend, &present.backend) {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            let (keyring, now) = (self.core.keyring.load_full(), UnixSeconds::now());
            let epochs: Vec<_> = keyring.unretired(now).collect();
            next.backend.offer(&epochs);
            let ready = next.backend.ready();
            let is_bound =
                |generation: &Generation, epoch: &Epoch| generation.backend.binding(epoch.key).is_some();
            // Clients hold tokens of each key, not only of the newest.
            let loses = |epoch| is_bound(present, epoch) && !is_bound(next, epoch);
            if ready.is_ok() && !epochs.iter().any(loses) {
                return Ok(());
            }
            // One whose marks are still to be looked at serves.
            let serves = |ready: &Result<(), Unknown>| matches!(ready, Ok(()) | Err(Unknown::Unmarked));
            if !serves(&present.backend.ready()) {
                return Ok(());
            }
            let limit = if serves(&ready) { BINDING } else { PROVING };
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

    /// Puts everything into force. Cannot fail.
    fn put_in_force(&mut self, new: Config, prepared: Prepared) {
        let Prepared { generation, tracer, supply, tls, peers } = prepared;
        let (core, shutdown) = (&self.core, &self.core.shutdown);
        if let Backend::Embedded(store) = &*generation.backend {
            store.sync(new.store.fsync);
            store.bind(generation.settings.offer.marks());
        }
        let generation = Arc::new(generation);
        let before = core.generation.swap(Arc::clone(&generation));
        tokio::spawn(release(before, |before| Arc::strong_count(before) == 1, shutdown.clone()));
        if let Some(tracer) = tracer {
            let before = core.recorder.tracer.swap(Arc::new(tracer));
            let is_unused = |before: &Arc<Tracer>| Arc::strong_count(before) == 1 && before.is_alone();
            tokio::spawn(release(before, is_unused, shutdown.clone()));
        }
        if let Some(supply) = supply {
            let _ = self.supplies.send(supply); // the receiver ends only with the gateway
        }
        for (certificate, tls) in self.certificates.iter_mut().zip([tls, peers]) {
            tls.into_iter().for_each(|tls| certificate.replace(tls));
        }
        log::set_format(new.log.format);
        shutdown.set_deadline(new.drain.deadline.get());
        self.config = new;
    }
}

/// Drops replaced state as soon as nothing uses it, at the stop at the latest, on a thread that may block.
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
