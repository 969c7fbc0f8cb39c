//! The store for a fleet: memcached servers, reached directly or through mcrouter or twemproxy.
//!
//! ```text
//! Client (one a runtime) ── transport ── endpoint ── mcrouter ── memcached
//!    │                      pipelined    an address of one
//!    │                      or pooled    of the replicas
//!    └─ SharedStore: epochs, keys known spent, counters; one a process, watched by a thread of its own
//! ```
//!
//! * The store is one replica, or three. A spend is, at each, an `add` of the record and a `get` of the witness beside it in
//!   one write (`quorum`, `bucket`); a majority of one or two decides (`votes`).
//! * The witness shows that its server still has what was written since its mark was offered. Where it is missing, the token
//!   is void. The watch finds that out, plants the next mark and offers it (`watch`).
//!
//! docs/how-it-works/spend-contract.md has what this keeps and what it cannot; docs/decisions/store-transport.md why
//! pipelined is the default.

mod address;
mod bucket;
mod cache;
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
mod protocol;
mod quorum;
mod serial;
pub(crate) mod stats;
mod undo;
mod verdicts;
mod votes;
mod watch;
pub(crate) mod world;

pub use crate::exchange_log::{Ended, Verb};
pub use address::{Address, AddressError, Connection, Tls};
pub use bucket::BUCKETS;
pub use client::{Client, Round};
pub use counting::{FleetCounters, Increment};
pub use endpoint::EndpointHealth;
pub use inspect::{Memory, Server, inspect, release};
pub use options::{Options, Pool, Replicas, Transport};
pub use protocol::KEY_PREFIXES;
pub use stats::Totals;
#[cfg(feature = "simulation")]
pub use undo::{Undo, undo};
#[cfg(feature = "simulation")]
pub use world::seed;
pub use world::{Connecting, World};

use crate::{Binding, Epoch, Unknown};
use client::SharedStore;
use endpoint::{Endpoint, Network};
use epochs::Epochs;
use marked::Marked;
use parking_lot::Mutex;
use postern_token::{TokenKeyId, UnixSeconds};
use stats::Counters;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verdicts::Verdicts;
use watch::Watch;
use world::since;

/// For how long a mark that was closed is told of: longer than a cause that lasts takes to show again.
const LATELY: Duration = Duration::from_secs(3_600);

/// The shared store of one process.
///
/// It has a thread that looks after the marks; [`Memcached::client`] makes the connections that spend. Dropping it ends the
/// thread; clients then go on with what was known.
pub struct Memcached {
    store: Arc<SharedStore>,
    _watch: Watch,
}

/// How a router is made to keep each bucket on one server.
pub const WHOLE_BUCKETS: &str = "twemproxy needs hash_tag: \"||\", memcached's own proxy filter = \"stop\" and \
                                 filter_conf = \"|#|\", and mcrouter a hash that stops at |#|, as it does by default";

/// How the store is.
#[derive(Clone, Debug)]
pub struct Health {
    /// Whether a spend could be answered, through each of the clients.
    pub ready: Result<(), Unknown>,
    /// Buckets, of [`BUCKETS`], that no longer know the mark on offer: that share of its tokens is void.
    pub torn: usize,
    /// Buckets in which some replica does not know the mark on offer. Their tokens are good as long as the others answer.
    pub lacking: usize,
    /// Two replicas lead to the same servers.
    pub overlaps: bool,
    /// Two addresses of one replica lead to different records.
    pub apart: bool,
    /// Replicas that do not answer the watch, or reject records; of three also those that lack servers, so that a part of the
    /// records cannot be read there. The others decide, as long as they are two.
    pub away: Vec<usize>,
    /// Replicas of which a mark was closed within an hour: they lost records and kept the witnesses beside them.
    pub closed: usize,
    /// Each address.
    pub endpoints: Vec<EndpointHealth>,
    /// Keys known to be spent, held in this process.
    pub remembered: usize,
    /// How far the watch could read what it asked for, of the first replica, the last times it looked.
    pub round: Round,
}

impl Health {
    /// The number of replicas.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.replica + 1).max().unwrap_or(1)
    }
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
    /// either count for both. What this one has counted is the new one's, too.
    ///
    /// # Errors
    /// As [`Memcached::open`].
    pub fn reopen(&self, options: Options) -> io::Result<Self> {
        Self::open_in(options, None, Arc::clone(&self.store.counters))
    }

    /// Opens the store in a simulated network, on the present runtime. The watch is a task instead of a thread.
    ///
    /// # Errors
    /// When there is no address or too many.
    pub fn simulate(options: Options, world: Arc<dyn World>) -> io::Result<Self> {
        Self::open_in(options, Some(world), Arc::default())
    }

    fn open_in(options: Options, world: Option<Arc<dyn World>>, counters: Arc<Counters>) -> io::Result<Self> {
        let votes = options.replicas.are_three();
        let needs_more = votes && !matches!(options.transport, Transport::Pipelined { .. });
        let pipelined = "three replicas need the pipelined transport".to_owned();
        if let Some(message) = options.replicas.refused().or(needs_more.then_some(pipelined)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let endpoint = |(replica, address): (usize, &Address)| {
            let (tls, patience) = (options.tls.clone(), options.connect_timeout);
            let network = Network { tls, patience, world: world.clone() };
            Arc::new(Endpoint::new((replica, address.clone()), network, votes))
        };
        let store = Arc::new(SharedStore {
            endpoints: options.replicas.addresses().map(endpoint).collect(),
            epochs: Epochs::new(options.cache_bytes),
            counters,
            clients: Mutex::default(),
            verdicts: Verdicts::default(),
            marked: Marked::default(),
            round: Mutex::default(),
            away: Mutex::default(),
            rejecting: Default::default(),
            evicting: Default::default(),
            parting: Default::default(),
            closed: Default::default(),
            overlaps: AtomicBool::new(false),
            apart: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            wake_watch: Arc::default(),
            options,
            world,
        });
        Ok(Self { _watch: Watch::start(Arc::clone(&store))?, store })
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
        let store = &self.store;
        Health {
            ready: store.serves(),
            torn: store.marked.torn(),
            lacking: store.marked.lacking(),
            overlaps: store.overlaps.load(Ordering::Relaxed),
            apart: store.apart.load(Ordering::Relaxed),
            away: (0..votes::REPLICAS).filter(|replica| store.away.lock()[*replica]).collect(),
            closed: store.closed.lock().iter().flatten().filter(|closed| since(**closed) < LATELY).count(),
            endpoints: store.endpoints.iter().map(|endpoint| store.health_of(endpoint)).collect(),
            remembered: store.epochs.remembered(),
            round: *store.round.lock(),
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
        (now >= epoch.expires()).then_some(Unknown::EpochRetired)
    }

    /// What was counted since the store was opened.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.store.counters.totals()
    }

    /// Watches the marks of these epochs' keys, for which tokens are requested, and of no others. A key without a mark is given
    /// one.
    pub fn offer(&self, epochs: &[Epoch]) {
        for Epoch { key, expires, .. } in epochs {
            self.store.epochs.enter(*key, *expires);
        }
        if self.store.marked.watch(&epochs.iter().map(|epoch| epoch.key).collect::<Vec<_>>()) {
            self.store.wake_watch.notify_one(); // no token of that key can be requested before
        }
    }

    /// What binds the tokens of a key.
    #[must_use]
    pub fn binding(&self, key: TokenKeyId) -> Binding {
        self.store.marked.binding(key)
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
