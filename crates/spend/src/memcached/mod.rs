//! The store for a fleet: memcached servers, reached directly or through mcrouter or twemproxy.
//!
//! ```text
//! Client (one a runtime) ── transport ── endpoint ── mcrouter ── memcached
//!    │                      pipelined    one of several addresses
//!    │                      or pooled    of the same store
//!    └─ SharedStore: epochs, keys known spent, counters; one a process, watched by a thread of its own
//! ```
//!
//! * A spend is one `add` of a record with a value of its own; `STORED` is the only admission. The epoch's end is its
//!   absolute expiry.
//! * A connection is used only after it has read all of this process's probes, but for those of servers that are down:
//!   it leads to the same records as the others (`endpoint`, `probe`).
//! * Canaries reveal when the store has lost records, and hold when an epoch's records expire (`canary`, `watch`).
//! * Of tokens that a mark binds, the record's own server shows with the record that it has lost nothing (`bound`, `bucket`,
//!   `watch::marks`). Three replicas vote so, each for itself (`quorum`, `votes`), and need neither probes nor canaries.
//!
//! docs/how-it-works/spend-contract.md has what this keeps and what it cannot; docs/decisions/store-transport.md why
//! pipelined is the default.

mod address;
mod bound;
mod bucket;
mod cache;
mod canary;
mod checked;
mod client;
mod counting;
mod endpoint;
mod epochs;
mod failure;
mod inspect;
mod marked;
mod options;
mod pipelined;
mod pooled;
mod probe;
mod protocol;
mod published;
mod quorum;
mod serial;
pub(crate) mod stats;
mod undo;
mod verdicts;
mod votes;
mod watch;
mod watched;
pub(crate) mod world;

pub use address::{Address, AddressError, Tls};
pub use bucket::BUCKETS;
pub use client::Client;
pub use counting::{FleetCounters, Increment};
pub use inspect::{Memory, Server, inspect, release};
pub use options::{OnLoss, Options, Pool, Replicas, Transport, pool_size};
pub use protocol::KEY_PREFIXES;
pub use stats::{Ended, Totals, Verb};
#[cfg(feature = "simulation")]
pub use undo::{Undo, undo};
#[cfg(feature = "simulation")]
pub use world::seed;
pub use world::{Connecting, Connection, World};

use crate::binding::plants;
use crate::{Binding, Epoch, Unknown};
use client::ClientState;
use endpoint::{Endpoint, Network};
use epochs::Epochs;
use marked::Marked;
use parking_lot::Mutex;
use postern_token::{TokenKeyId, UnixSeconds};
use published::Published;
use stats::Counters;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use verdicts::Verdicts;
use watch::Watch;
use watched::Watched;

/// The shared store of one process.
///
/// It has a thread that proves the endpoints and reads the canaries; [`Memcached::client`] makes the connections that
/// spend. Dropping it ends the thread; clients then go on with what was known.
pub struct Memcached {
    store: Arc<SharedStore>,
    _watch: Watch,
}

/// What all clients of the store share.
struct SharedStore {
    options: Options,
    endpoints: Vec<Arc<Endpoint>>,
    epochs: Epochs,
    counters: Arc<Counters>,
    clients: Mutex<Vec<Weak<ClientState>>>,
    verdicts: Verdicts,
    watched: Watched,
    marked: Marked,
    /// What the watch's last round could not read.
    round: Mutex<Round>,
    /// Replicas that did not answer in it, or took no record.
    away: AtomicUsize,
    /// Replicas that answered a spend with an error, until the watch has written to them again.
    rejecting: [AtomicBool; votes::REPLICAS],
    /// Two replicas lead to the same servers.
    overlaps: AtomicBool,
    /// Wakes the watch.
    wake_watch: Arc<Notify>,
    /// Where a simulation runs it.
    world: Option<Arc<dyn World>>,
}

/// How the store is.
#[derive(Clone, Debug)]
pub struct Health {
    /// Whether a spend could be answered, through each of the clients.
    pub ready: Result<(), Unknown>,
    /// The token keys of which records were lost, so that tokens already spent may be spent again.
    pub lost: Vec<TokenKeyId>,
    /// Buckets, of [`BUCKETS`], that no longer know the mark on offer: that share of its tokens is void.
    pub torn: usize,
    /// Buckets in which some replica does not know the mark on offer. Their tokens are good as long as the others answer.
    pub lacking: usize,
    /// Two replicas lead to the same servers, so no mark is offered.
    pub overlaps: bool,
    /// Of three replicas, those that do not answer the watch, or reject records. The others decide, as long as they are two.
    pub away: usize,
    /// Each address.
    pub endpoints: Vec<EndpointHealth>,
    /// Keys known to be spent, held in this process.
    pub remembered: usize,
    /// How far the watch could read what it wrote, the last time it looked.
    pub round: Round,
    /// The age of its last round in which every record had an answer.
    pub watched: Duration,
    /// It is so old that a loss of records may have gone unnoticed.
    pub blind: bool,
}

/// The records that the watch read in one round, and those without an answer. They are distributed over the servers
/// behind a router as spent records are, so this is also the share of spends that get no verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Records requested.
    pub requested: usize,
    /// Those for which the store reported neither a hit nor a miss.
    pub unclear: usize,
}

/// How one address of the store is.
#[derive(Clone, Debug)]
pub struct EndpointHealth {
    /// The address.
    pub address: Address,
    /// The number of the replica that it leads to; 0 where there is one.
    pub replica: usize,
    /// Proven connections to it that can be used.
    pub connections: usize,
    /// Commands without a reply, of all clients: those that wait to be written too, but not those that wait for a
    /// connection of a pool.
    pub outstanding: usize,
    /// The most of them: the sizes of all clients' pools, or of their connections' queues.
    pub capacity: usize,
    /// Attempts of clients to connect since the store was opened.
    pub connects: u64,
    /// Those that failed: no connection in time, or one that could not be proven.
    pub connect_failures: u64,
    /// It leads to other records than the other endpoints.
    pub foreign: bool,
    /// How long ago a connection to it led to other records than the rest, as where a balancer spreads connections over
    /// routers with different lists of servers. Such a connection is not used.
    pub strayed: Option<Duration>,
    /// Its replica rejects records, as one does that is out of memory.
    pub rejects: bool,
    /// How the last connection failed; `None` while there is one.
    pub failure: Option<Unknown>,
}

impl Memcached {
    /// Opens the store. Does not wait for any connection: until there is one, everything is refused as unknown.
    ///
    /// # Errors
    /// When there is no address or too many, or no thread can be started.
    pub fn open(options: Options) -> io::Result<Self> {
        Self::open_in(options, None, Arc::default())
    }

    /// Opens the same store with other options, beside this one: as another gateway of a fleet has it, so spends through
    /// either count for both. What this one has counted, and the losses that it knows of, are the new one's, too.
    ///
    /// # Errors
    /// As [`Memcached::open`].
    pub fn reopen(&self, options: Options) -> io::Result<Self> {
        let reopened = Self::open_in(options, None, Arc::clone(&self.store.counters))?;
        reopened.learn_from(self);
        Ok(reopened)
    }

    /// Takes over which epochs `other` has lost records of.
    pub fn learn_from(&self, other: &Self) {
        for known in other.store.epochs.all() {
            if known.is_lost() || known.is_parted() {
                let epoch = self.store.epochs.enter(known.key, known.wanted);
                let _ = known.is_lost() && epoch.set_lost(); // it is in the log already
                let _ = known.is_parted() && epoch.set_parted();
            }
        }
    }

    /// Opens the store in a simulated network, on the present runtime. The watch is a task instead of a thread.
    ///
    /// # Errors
    /// When there is no address or too many.
    pub fn simulate(options: Options, world: Arc<dyn World>) -> io::Result<Self> {
        Self::open_in(options, Some(world), Arc::default())
    }

    fn open_in(options: Options, world: Option<Arc<dyn World>>, counters: Arc<Counters>) -> io::Result<Self> {
        let needs_more = options.replicas.are_three()
            && !(plants(options.marks.as_ref()) && matches!(options.transport, Transport::Pipelined { .. }));
        let without = "three replicas need marks that are planted, and the pipelined transport".to_owned();
        if let Some(message) = options.replicas.refused().or(needs_more.then_some(without)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let wake_watch = Arc::new(Notify::new());
        let probes = Arc::new(Published::default());
        let proven_by = (!options.replicas.are_three()).then(|| Arc::clone(&probes));
        let endpoint = |(replica, address): (usize, &Address)| {
            let (tls, patience) = (options.tls.clone(), options.connect_timeout);
            let network = Network { tls, patience, world: world.clone() };
            let leads_to = (replica, address.clone());
            Arc::new(Endpoint::new(leads_to, network, proven_by.clone(), Arc::clone(&wake_watch)))
        };
        let store = Arc::new(SharedStore {
            endpoints: options.replicas.addresses().map(endpoint).collect(),
            epochs: Epochs::new(options.cache_bytes),
            counters,
            clients: Mutex::default(),
            verdicts: Verdicts::default(),
            watched: Watched::new(options.canary_interval),
            marked: Marked::default(),
            round: Mutex::default(),
            away: AtomicUsize::new(0),
            rejecting: Default::default(),
            overlaps: AtomicBool::new(false),
            wake_watch,
            options,
            world,
        });
        Ok(Self { _watch: Watch::start(Arc::clone(&store), probes)?, store })
    }

    /// Connections for the present runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::start(&self.store)
    }

    /// Counters in the same servers, on a connection of their own, for the runtime that uses them.
    #[must_use]
    pub fn counters(&self) -> FleetCounters {
        FleetCounters::new(&self.store.endpoints)
    }

    /// How the store is now.
    #[must_use]
    pub fn health(&self) -> Health {
        let endpoints = &self.store.endpoints;
        let epochs = self.store.epochs.all();
        Health {
            ready: self.store.serves(),
            lost: epochs.iter().filter(|epoch| epoch.may_admit_again()).map(|epoch| epoch.key).collect(),
            torn: self.store.marked.torn(),
            lacking: self.store.marked.lacking(),
            overlaps: self.store.overlaps.load(Ordering::Relaxed),
            away: self.store.away.load(Ordering::Relaxed),
            endpoints: endpoints.iter().map(|endpoint| self.store.health_of(endpoint)).collect(),
            remembered: epochs.iter().map(|epoch| epoch.remembered()).sum(),
            round: *self.store.round.lock(),
            watched: self.store.watched.age(),
            blind: self.store.watched.is_blind(),
        }
    }

    /// What is at each address now, as [`inspect()`] reads it, one after the other. Those that do not answer are left out.
    pub async fn servers(&self) -> Vec<(Address, Server)> {
        let Options { replicas, tls, connect_timeout, .. } = &self.store.options;
        let mut servers = Vec::new();
        for (_, address) in replicas.addresses() {
            if let Ok(server) = inspect(address, tls.as_ref(), *connect_timeout).await {
                servers.push((address.clone(), server));
            }
        }
        servers
    }

    /// Why every token of a key is refused now, where that is known.
    #[must_use]
    pub fn refuses(&self, key: TokenKeyId, now: UnixSeconds) -> Option<Unknown> {
        let epoch = self.store.epochs.find(key)?;
        if epoch.expires().is_some_and(|expires| now >= expires) {
            return Some(Unknown::EpochRetired);
        }
        self.store.permits(&epoch, epoch.is_bound()).err()
    }

    /// What was counted since the store was opened.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.store.counters.totals()
    }

    /// Watches the marks of these epochs' keys, for which tokens are requested, and of no others. Those that are new to the
    /// store are begun with a mark, if [`Options::marks`] says so.
    pub fn offer(&self, epochs: &[Epoch]) {
        if self.store.options.marks.is_none() {
            return;
        }
        epochs.iter().for_each(|epoch| drop(self.store.enter(epoch)));
        if self.store.marked.watch(&epochs.iter().map(|epoch| epoch.key).collect::<Vec<_>>()) {
            self.store.wake_watch.notify_one(); // no token of that key can be requested before
        }
    }

    /// What binds the tokens of a key.
    #[must_use]
    pub fn binding(&self, key: TokenKeyId) -> Binding {
        match self.store.options.marks {
            None => Binding::Unmarked,
            Some(_) => self.store.marked.binding(key).unwrap_or(Binding::Unknown),
        }
    }

    /// Forgets what this process remembers of expired epochs.
    pub fn drop_expired(&self, now: UnixSeconds) -> usize {
        self.store.epochs.drop_expired(now)
    }
}

impl fmt::Debug for Memcached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memcached").field("health", &self.health()).finish_non_exhaustive()
    }
}
