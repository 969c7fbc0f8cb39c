//! The store for a fleet: memcached servers, reached directly or through mcrouter or twemproxy.
//!
//! ```text
//! Client (one per runtime) ─ transport ── endpoint ── mcrouter ── memcached
//!    │                      pipelined    an address of one
//!    │                      or pooled    of the replicas
//!    └─ SharedStore: epochs, keys known spent, counters; one per process, watched by a separate thread
//! ```
//!
//! * The store is one replica, or three. A spend sends each replica an `add` of the record and a `get` of the witness next to it
//!   in one write (`voting`, `bucket`); a majority of one or two decides (`votes`).
//! * The witness shows that its server still has everything written since its mark was offered. Where it is missing, the token
//!   is void. The watch detects this, plants the next mark and offers it (`watch`).
//!
//! docs/how-it-works/spend-contract.md states the guarantees and their limits; docs/decisions/store-transport.md why pipelined
//! is the default.

mod address;
mod bucket;
mod client;
mod counting;
mod endpoint;
mod epochs;
mod inspect;
mod marked;
mod options;
mod pipelined;
mod pooled;
mod protocol;
mod serial;
pub(crate) mod stats;
mod verdicts;
mod votes;
mod voting;
mod watch;
pub(crate) mod world;

pub use crate::exchange_log::{Ended, Verb};
pub use address::{Address, AddressError, Connection, Tls};
pub use bucket::BUCKETS;
pub use client::{Client, Round};
pub use counting::{FleetCounters, Increment};
pub use endpoint::{EndpointHealth, Unfit};
use inspect::inspect_over;
pub use inspect::{Memory, Server, inspect, release};
pub use options::{Options, Replicas, Transport};
pub use protocol::KEY_PREFIXES;
pub use stats::Totals;
pub use world::{Connecting, World};
#[cfg(feature = "simulation")]
pub use world::{Undo, seed, undo};

use crate::{Epoch, Unknown};
use client::{Away, Seen, SharedStore};
use endpoint::{Endpoint, look_up};
use epochs::Epochs;
use marked::Marked;
use parking_lot::Mutex;
use postern_token::{Mark, TokenKeyId, UnixSeconds};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use verdicts::Verdicts;
use votes::REPLICAS;
use watch::Watch;
use world::since;

/// The maximum number of addresses: they are endpoints of one store, not its servers.
const MOST_ADDRESSES: usize = 32;
/// The time for which a closed mark is reported: longer than a persistent cause takes to recur.
const LATELY: Duration = Duration::from_secs(3_600);
/// The longest wait for the lookups of the addresses whose servers are inspected.
const LOOKUP: Duration = Duration::from_secs(20);

/// The shared store of one process.
///
/// It owns the thread that maintains the marks; [`Memcached::client`] opens the connections that spend. Dropping it ends the
/// thread; clients then continue with the last known state.
pub struct Memcached {
    store: Arc<SharedStore>,
    _watch: Watch,
}

#[derive(Clone, Debug)]
pub struct Health {
    /// `Ok` if a spend could be answered through each of the clients.
    pub ready: Result<(), Unknown>,
    /// Buckets, of [`BUCKETS`], that no longer know the mark on offer: this share of its tokens is void.
    pub torn: usize,
    /// Buckets in which some replica does not know the mark on offer. Their tokens are valid as long as the other replicas
    /// answer.
    pub lacking: usize,
    /// These replicas.
    pub lacking_at: Vec<usize>,
    /// `true` if two replicas lead to the same servers.
    pub overlaps: bool,
    /// `true` if a key has had all of its marks and its tokens are void: it has to be rotated.
    pub used_up: bool,
    /// Replicas that do not answer the watch, or reject records; of three also those that lack servers, so that some records
    /// cannot be read there. The others decide, if they are two.
    pub away: Vec<usize>,
    /// Number of these that have no vote at all: they do not answer, or reject every record.
    pub voteless: usize,
    /// Replicas with a mark closed within the last hour: they lost records and kept the witnesses next to them.
    pub closed: usize,
    pub endpoints: Vec<EndpointHealth>,
    /// Keys known to be spent that this process remembers.
    pub remembered: usize,
    /// Reads by the watch of the first replica in its last rounds, and those without an answer.
    pub round: Round,
}

impl Health {
    /// Returns `true` if a replica rejects records and fewer than a majority have a vote, so that no spend can be answered. If too
    /// few answer at all, `ready` reports it, once that has lasted.
    #[must_use]
    pub fn is_voteless(&self) -> bool {
        let (replicas, rejects) = (self.replicas(), self.endpoints.iter().any(|endpoint| endpoint.rejects));
        rejects && replicas.saturating_sub(self.voteless) < replicas / 2 + 1
    }

    #[must_use]
    pub fn replicas(&self) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.replica + 1).max().unwrap_or(1)
    }
}

impl Memcached {
    /// Opens the store without waiting for a connection: until there is one, everything is refused as unknown.
    ///
    /// # Errors
    /// There is no address or there are too many, or no thread can be started.
    pub fn open(options: Options) -> io::Result<Self> {
        Self::open_in(options, None, Arc::default())
    }

    /// Opens the same store with other options in addition to this one. Spends through either count for both, as between two
    /// gateways of a fleet. The new store continues this one's counters.
    pub fn reopen(&self, options: Options) -> io::Result<Self> {
        Self::open_in(options, None, Arc::clone(&self.store.counters))
    }

    /// Opens the store in a simulated network, on the current runtime. The watch is a task instead of a thread.
    pub fn simulate(options: Options, world: Arc<dyn World>) -> io::Result<Self> {
        Self::open_in(options, Some(world), Arc::default())
    }

    fn open_in(options: Options, world: Option<Arc<dyn World>>, counters: Arc<Totals>) -> io::Result<Self> {
        let addresses = options.replicas.addresses().count();
        if !(1..=MOST_ADDRESSES).contains(&addresses) {
            let message = format!("1 to {MOST_ADDRESSES} addresses are used, and these are {addresses}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let options = Arc::new(options);
        let endpoint = |address| Arc::new(Endpoint::new(address, &options, world.as_ref()));
        let store = Arc::new(SharedStore {
            endpoints: options.replicas.addresses().map(endpoint).collect(),
            epochs: Epochs::new(options.cache_bytes),
            counters,
            clients: Mutex::default(),
            verdicts: Verdicts::default(),
            marked: Marked::default(),
            seen: Seen::default(),
            wake_watch: Arc::default(),
            options,
            world,
        });
        Ok(Self { _watch: Watch::start(Arc::clone(&store))?, store })
    }

    /// Opens connections for the current runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::start(&self.store)
    }

    /// Returns counters in the same servers, on a separate connection, for the runtime that uses them.
    #[must_use]
    pub fn counters(&self) -> FleetCounters {
        FleetCounters::new(&self.store.endpoints)
    }

    #[must_use]
    pub fn health(&self) -> Health {
        let Memcached { store, .. } = self;
        let (seen, away) = (&store.seen, *store.seen.away.lock());
        let (lacking, lacking_at) = store.marked.lacking();
        Health {
            ready: store.serves(),
            torn: store.marked.torn(),
            lacking,
            lacking_at: (0..REPLICAS).filter(|replica| lacking_at[*replica]).collect(),
            overlaps: seen.overlaps.load(Relaxed),
            used_up: seen.used_up.load(Relaxed),
            away: (0..REPLICAS).filter(|replica| away[*replica].is_some()).collect(),
            voteless: away.iter().filter(|away| **away == Some(Away::Wholly)).count(),
            closed: seen.closed.lock().iter().flatten().filter(|closed| since(**closed) < LATELY).count(),
            endpoints: store.endpoints_health(),
            remembered: store.epochs.remembered(),
            round: *seen.round.lock(),
        }
    }

    /// Inspects the server at each address, one after another, as [`inspect()`] does. Omits those that do not answer.
    pub async fn servers(&self) -> Vec<(Address, Server)> {
        let (mut servers, patience) = (Vec::new(), self.store.options.connect_timeout);
        look_up(self.store.endpoints.iter(), LOOKUP).await;
        for endpoint in &self.store.endpoints {
            if let Ok(connection) = endpoint.connect().await
                && let Ok(server) = inspect_over(connection, patience).await
            {
                servers.push((endpoint.address.clone(), server));
            }
        }
        servers
    }

    /// Returns `true` if the epoch of a key is known to be over, so that all of its tokens are refused.
    #[must_use]
    pub fn has_retired(&self, key: TokenKeyId, now: UnixSeconds) -> bool {
        self.store.epochs.find(key).is_some_and(|epoch| now >= epoch.expires())
    }

    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.store.counters
    }

    /// Sets the keys whose marks are watched: those of these epochs, for which tokens are requested, and no others. A key
    /// without a mark is given one.
    pub fn offer(&self, epochs: &[Epoch]) {
        for Epoch { key, expires, .. } in epochs {
            self.store.epochs.enter(*key, *expires);
        }
        if self.store.marked.watch(&epochs.iter().map(|epoch| epoch.key).collect::<Vec<_>>()) {
            self.store.wake_watch.notify_one(); // until then no token of that key can be requested
        }
    }

    #[must_use]
    pub fn binding(&self, key: TokenKeyId) -> Option<Mark> {
        self.store.marked.binding(key)
    }

    /// Forgets expired epochs, and returns their number.
    pub fn drop_expired(&self, now: UnixSeconds) -> usize {
        self.store.epochs.drop_expired(now)
    }
}
