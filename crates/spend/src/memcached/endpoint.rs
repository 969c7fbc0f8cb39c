//! One address of the store, and the way to a connection that may be trusted.

use super::EndpointHealth;
use super::address::{Address, Stream, Tls};
use super::probe::{self, Probes};
use super::published::Published;
use super::serial::SerialConnection;
use super::world::{World, instant, jittered, since};
use crate::Unknown;
use parking_lot::Mutex;
use postern_lookup::Lookup;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::sleep;

/// The first pause between two attempts to connect, and the longest: a store that is back is in use within a second.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// No longer: an address may be another server's a minute later, and two replicas that lead to one server would be one.
const LOOKUP_KEPT: Duration = Duration::from_secs(1);

/// An address of the store.
pub(crate) struct Endpoint {
    address: Address,
    lookup: Lookup,
    /// The number of the replica that it leads to.
    replica: usize,
    network: Network,
    /// The probes that prove a connection, from when the first were written. `None` where tokens are bound to the records
    /// that they are spent in, so that no connection can lead astray.
    probes: Option<Arc<Published<Arc<Probes>>>>,
    /// Wakes the watch, which finds out why a connection could not be proven.
    wake_watch: Arc<Notify>,
    /// Counts the times from which on new probes prove connections, and none that older ones have proven.
    generation: AtomicU64,
    connections: AtomicUsize,
    /// What carries clients' commands. `health` reads the load from here, so that a command updates no counter.
    carriers: Mutex<Vec<Weak<dyn Carrier>>>,
    /// Attempts of clients to connect, and those that failed.
    connects: AtomicU64,
    connect_failures: AtomicU64,
    /// Why the last attempt to connect failed, or the last connection.
    failure: Mutex<Unknown>,
    /// Whether its loss was logged and its return was not.
    lost: AtomicBool,
    /// Leads to other records than the other endpoints.
    foreign: AtomicBool,
    /// When a connection last led to other records than the probes', since these were written.
    strayed: Mutex<Option<Instant>>,
}

/// How connections are made.
pub(crate) struct Network {
    pub(crate) tls: Option<Tls>,
    /// How long one may take.
    pub(crate) patience: Duration,
    /// The network of a simulation, in the place of the machine's.
    pub(crate) world: Option<Arc<dyn World>>,
}

/// Carries commands to an endpoint: a pipeline or a pool.
pub(crate) trait Carrier: Send + Sync {
    /// Commands without a reply.
    fn outstanding(&self) -> usize;
    /// The most of them.
    fn capacity(&self) -> usize;
    /// Looks whether its connections still count as proven.
    fn look(&self);
}

impl Endpoint {
    pub(crate) fn new(
        (replica, address): (usize, Address),
        network: Network,
        probes: Option<Arc<Published<Arc<Probes>>>>,
        wake_watch: Arc<Notify>,
    ) -> Self {
        let connections = AtomicUsize::new(0);
        let failure = Mutex::new(Unknown::Unavailable(io::ErrorKind::NotConnected));
        let (lost, foreign) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            address,
            lookup: Lookup::keeping(LOOKUP_KEPT),
            replica,
            network,
            probes,
            wake_watch,
            generation: AtomicU64::new(0),
            connections,
            carriers: Mutex::default(),
            connects: AtomicU64::new(0),
            connect_failures: AtomicU64::new(0),
            failure,
            lost,
            foreign,
            strayed: Mutex::new(None),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn replica(&self) -> usize {
        self.replica
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.network.world.is_some()
    }

    /// A connection that is not proven yet.
    pub(crate) async fn connect(&self) -> Result<SerialConnection, Unknown> {
        let Network { tls, patience, world } = &self.network;
        match world {
            None => {
                let connecting = self.address.connect(tls.as_ref(), &self.lookup, *patience);
                SerialConnection::open(connecting, *patience).await
            }
            Some(world) => {
                let connecting = async { world.connect(&self.address).await.map(Stream::Simulated) };
                SerialConnection::open(connecting, *patience).await
            }
        }
    }

    /// A connection over which the store has just answered, and which leads to the same records as the others: it has read
    /// all of this process's probes, but for those of servers that are down. Neither an accepted connection nor `version`
    /// shows that: a frozen server's kernel accepts connections, and mcrouter answers `version` itself.
    pub(crate) async fn connect_proven(self: &Arc<Self>) -> Result<(Stream, Connected), Unknown> {
        let generation = self.generation.load(Ordering::Acquire); // before the probes, so that it is never too new
        let probes = match &self.probes {
            Some(probes) => Some(probes.wait().await),
            None => None,
        };
        self.connects.fetch_add(1, Ordering::Relaxed);
        let connected = match &probes {
            Some(probes) => self.connect_and_prove(probes).await,
            None => self.connect_and_read().await,
        };
        if connected.is_err() {
            self.connect_failures.fetch_add(1, Ordering::Relaxed);
        }
        Ok((connected?, self.connected(generation)))
    }

    async fn connect_and_read(&self) -> Result<Stream, Unknown> {
        let mut connection = self.connect().await?;
        let answers = connection.exchange(&probe::reads()).await?;
        if probe::is_answer(&answers) { Ok(connection.into_stream()) } else { Err(Unknown::Rejected) }
    }

    async fn connect_and_prove(&self, probes: &Arc<Probes>) -> Result<Stream, Unknown> {
        let mut connection = self.connect().await?;
        let proven = probes.prove(&connection.exchange(&probes.gets()).await?);
        // Probes that were replaced meanwhile may have been lost.
        let current = self.probes.as_ref().and_then(|current| current.get());
        let are_current = current.is_some_and(|current| Arc::ptr_eq(&current, probes));
        if proven == Err(Unknown::Unproven) && are_current {
            *self.strayed.lock() = Some(instant());
            self.wake_watch.notify_one();
        }
        proven.map(|()| connection.into_stream())
    }

    /// Counts a connection until the result is dropped.
    fn connected(self: &Arc<Self>, generation: u64) -> Connected {
        self.connections.fetch_add(1, Ordering::Relaxed);
        if self.lost.swap(false, Ordering::Relaxed) {
            tracing::info!(address = %self.address, "the double-spend store is back");
        }
        Connected { endpoint: Arc::clone(self), generation }
    }

    /// A connection failed or could not be made. Logs it once per outage.
    pub(crate) fn failed(&self, reason: Unknown) {
        *self.failure.lock() = reason;
        if !self.lost.swap(true, Ordering::Relaxed) {
            let meanwhile = match self.probes {
                Some(_) => "checks that no other address can answer are refused until then",
                None => "the other two replicas decide until then, as long as both answer",
            };
            tracing::warn!(address = %self.address, %reason, "a connection to the double-spend store is lost \
                and is opened again; {meanwhile}");
        }
    }

    /// Why there is no connection, when there is none.
    pub(crate) fn failure(&self) -> Unknown {
        *self.failure.lock()
    }

    /// A client's pipeline or pool, for as long as it lives.
    pub(crate) fn carried_by(&self, carrier: Weak<dyn Carrier>) {
        let mut carriers = self.carriers.lock();
        carriers.retain(|known| known.strong_count() > 0);
        carriers.push(carrier);
    }

    pub(crate) fn health(&self) -> EndpointHealth {
        let connections = self.connections();
        // The last reference may be one of these: it is dropped outside of the lock.
        let carriers: Vec<Arc<dyn Carrier>> = self.carriers.lock().iter().filter_map(Weak::upgrade).collect();
        EndpointHealth {
            address: self.address.clone(),
            replica: self.replica,
            connections,
            outstanding: carriers.iter().map(|carrier| carrier.outstanding()).sum(),
            capacity: carriers.iter().map(|carrier| carrier.capacity()).sum(),
            connects: self.connects.load(Ordering::Relaxed),
            connect_failures: self.connect_failures.load(Ordering::Relaxed),
            foreign: self.is_foreign(),
            strayed: self.strayed.lock().map(since),
            rejects: false,
            failure: (connections == 0).then(|| self.failure()),
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Acquire)
    }

    pub(crate) fn set_foreign(&self, foreign: bool) {
        self.foreign.store(foreign, Ordering::Release);
    }

    /// Whether a connection led to other records than the present probes.
    pub(crate) fn has_strayed(&self) -> bool {
        self.strayed.lock().is_some()
    }

    /// New probes were written: what connections lacked before may have been lost.
    pub(crate) fn forgive(&self) {
        *self.strayed.lock() = None;
    }

    /// The new probes may lie elsewhere than those that proved the present connections: none of these is used again.
    pub(crate) fn distrust(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        let carriers: Vec<Arc<dyn Carrier>> = self.carriers.lock().iter().filter_map(Weak::upgrade).collect();
        carriers.iter().for_each(|carrier| carrier.look());
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff(FIRST_PAUSE)
    }
}

/// A connection in use.
pub(crate) struct Connected {
    endpoint: Arc<Endpoint>,
    generation: u64,
}

impl Connected {
    /// Whether what proved it still counts.
    pub(crate) fn is_current(&self) -> bool {
        self.endpoint.generation.load(Ordering::Acquire) == self.generation
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.endpoint.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pauses that grow, each shortened at random by up to a half, so that a fleet does not come back in step.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) async fn wait(&mut self) {
        sleep(jittered(self.0)).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }

    pub(crate) fn reset(&mut self) {
        self.0 = FIRST_PAUSE;
    }
}
