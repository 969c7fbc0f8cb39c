//! One address of the store, and the way to a connection that may be trusted.

use super::address::{Address, Stream, Tls};
use super::protocol::{Command, Kind, RecordKey, Reply};
use super::serial::SerialConnection;
use super::world::{World, jittered, random_bytes};
use crate::Unknown;
use parking_lot::Mutex;
use postern_lookup::Lookup;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
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
    /// Whether the others decide while it is away.
    votes: bool,
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
}

/// How one address of the store is.
#[derive(Clone, Debug)]
pub struct EndpointHealth {
    /// The address.
    pub address: Address,
    /// The number of the replica that it leads to; 0 where there is one.
    pub replica: usize,
    /// Connections to it that can be used.
    pub connections: usize,
    /// Commands without a reply, of all clients: those that wait to be written too, but not those that wait for a
    /// connection of a pool.
    pub outstanding: usize,
    /// The most of them: the sizes of all clients' pools, or of their connections' queues.
    pub capacity: usize,
    /// Attempts of clients to connect since the store was opened.
    pub connects: u64,
    /// Those that failed: no connection in time, or no answer over it.
    pub connect_failures: u64,
    /// Its replica rejects records, as one does that is out of memory.
    pub rejects: bool,
    /// Its replica has a memcached that drops records when it is full.
    pub evicts: bool,
    /// Its replica has a router that keeps records of one bucket on several servers.
    pub parts: bool,
    /// How the last connection failed; `None` while there is one.
    pub failure: Option<Unknown>,
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
}

/// Reads of records that are not there, to see whether the store answers: they spread over the servers behind a router.
pub(crate) fn reads() -> [Command; 8] {
    std::array::from_fn(|_| Command::Get(RecordKey::new(Kind::Probe, &random_bytes())))
}

/// Whether one of the servers answered.
pub(crate) fn is_answer(replies: &[Reply]) -> bool {
    replies.iter().any(|reply| matches!(reply, Reply::Hit(_) | Reply::Miss))
}

impl Endpoint {
    pub(crate) fn new((replica, address): (usize, Address), network: Network, votes: bool) -> Self {
        Self {
            address,
            lookup: Lookup::keeping(LOOKUP_KEPT),
            replica,
            network,
            votes,
            connections: AtomicUsize::new(0),
            carriers: Mutex::default(),
            connects: AtomicU64::new(0),
            connect_failures: AtomicU64::new(0),
            failure: Mutex::new(Unknown::Unavailable(io::ErrorKind::NotConnected)),
            lost: AtomicBool::new(false),
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

    /// A connection that has carried nothing yet.
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

    /// A connection over which the store has just answered. Neither an accepted connection nor `version` shows that: a frozen
    /// server's kernel accepts connections, and mcrouter answers `version` itself.
    pub(crate) async fn connect_proven(self: &Arc<Self>) -> Result<(Stream, Connected), Unknown> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        let connected = self.connect_and_read().await;
        if connected.is_err() {
            self.connect_failures.fetch_add(1, Ordering::Relaxed);
        }
        Ok((connected?, self.connected()))
    }

    async fn connect_and_read(&self) -> Result<Stream, Unknown> {
        let mut connection = self.connect().await?;
        let answers = connection.exchange(&reads()).await?;
        if is_answer(&answers) { Ok(connection.into_stream()) } else { Err(Unknown::Rejected) }
    }

    /// Counts a connection until the result is dropped.
    fn connected(self: &Arc<Self>) -> Connected {
        self.connections.fetch_add(1, Ordering::Relaxed);
        if self.lost.swap(false, Ordering::Relaxed) {
            tracing::info!(address = %self.address, "this address of the double-spend store answers again");
        }
        Connected(Arc::clone(self))
    }

    /// A connection failed or could not be made. Logs it once per outage.
    pub(crate) fn failed(&self, reason: Unknown) {
        *self.failure.lock() = reason;
        if !self.lost.swap(true, Ordering::Relaxed) {
            let meanwhile = if self.votes {
                "where its replica has no other address, the other two replicas decide until then, as long as both answer"
            } else {
                "checks that no other address can answer are refused until then"
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
            rejects: false,
            evicts: false,
            parts: false,
            failure: (connections == 0).then(|| self.failure()),
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff(FIRST_PAUSE)
    }
}

/// A connection in use.
pub(crate) struct Connected(Arc<Endpoint>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
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
