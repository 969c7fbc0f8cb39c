//! One address of the store, and answering connections to it.

use super::address::Address;
use super::options::Options;
use super::protocol::{Command, Kind, NOT_CONNECTED, RecordKey, Reply};
use super::serial::SerialConnection;
use super::world::{World, random_bytes};
use crate::Unknown;
use parking_lot::Mutex;
use postern_net::Lookup;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The lifetime of a late lookup: longer than the watch pauses between two attempts, and short, because an address may belong to
/// another server a minute later, and two replicas that lead to one server would be one.
const LOOKUP_KEPT: Duration = Duration::from_secs(8);

pub(crate) struct Endpoint {
    pub(crate) address: Address,
    lookup: Lookup,
    pub(crate) replica: usize,
    pub(crate) options: Arc<Options>,
    /// The simulated network, in a simulation.
    pub(crate) world: Option<Arc<dyn World>>,
    pub(crate) connect_failures: AtomicU64,
    /// The reason of the last failed attempt to connect, or of the last lost connection.
    failure: Mutex<Unknown>,
    /// `true` if a loss was logged and the recovery was not.
    lost: AtomicBool,
}

#[derive(Clone, Debug)]
pub struct EndpointHealth {
    pub address: Address,
    /// The number of its replica; 0 if there is one.
    pub replica: usize,
    pub connections: usize,
    /// Commands of all clients without a reply, including those waiting to be written, but not those waiting for a pooled
    /// connection.
    pub outstanding: usize,
    /// The maximum of `outstanding`: the sizes of all clients' pools, or of their connections' queues.
    pub capacity: usize,
    /// Clients' failed attempts to connect since the store was opened: no connection in time, or no answer over it.
    pub connect_failures: u64,
    /// `true` if its replica rejects records, as one that is out of memory does.
    pub rejects: bool,
    /// The reason why no mark is planted at its replica.
    pub unfit: Option<Unfit>,
    /// The failure of the last connection; `None` while there is a connection.
    pub failure: Option<Unknown>,
}

/// The reason why a replica could lose records and keep their witnesses, so that spent tokens would be good again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A memcached drops records when it is full.
    Evicts,
    /// A router keeps records of one bucket on several servers.
    Parts,
    /// Nothing proves that a router keeps records of a bucket on one server.
    Hides,
}

impl Unfit {
    /// The predicate of a sentence about the address, with the remedy.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::Evicts => {
                "is a memcached that drops records when it is full, so no mark is planted there: start it with -M"
            }
            Self::Parts => {
                "is a router that keeps records of one bucket on several servers, so no mark is planted there: twemproxy needs \
                 hash_tag: \"||\", memcached's own proxy filter = \"stop\" and filter_conf = \"|#|\", and mcrouter a hash that \
                 stops at |#|, as it does by default"
            }
            Self::Hides => {
                "is a router that does not show whether it keeps records of a bucket on one server, so no mark is planted there: \
                 start the memcacheds behind it without -C, and let it pass gets"
            }
        }
    }
}

/// Returns reads of random, absent records, to test whether the store answers: they spread over the servers behind a router.
pub(crate) fn reads() -> [Command; 8] {
    std::array::from_fn(|_| Command::Get(RecordKey::new(Kind::Probe, &random_bytes())))
}

pub(crate) fn is_answer(replies: &[Reply]) -> bool {
    replies.iter().any(|reply| matches!(reply, Reply::Hit(_) | Reply::Miss))
}

/// Looks up addresses, all at once. Returns `true` if all are found within `patience`, so that attempts to connect need not wait
/// for a slow name server. The lookups go on.
pub(crate) async fn look_up(endpoints: impl Iterator<Item = &Arc<Endpoint>>, patience: Duration) -> bool {
    let look_up = |endpoint: &Arc<Endpoint>| {
        let endpoint = Arc::clone(endpoint);
        async move { endpoint.looks_up(patience).await }
    };
    endpoints.map(look_up).collect::<JoinSet<_>>().join_all().await.into_iter().all(|is_found| is_found)
}

impl Endpoint {
    pub(crate) fn new(
        (replica, address): (usize, &Address),
        options: &Arc<Options>,
        world: Option<&Arc<dyn World>>,
    ) -> Self {
        Self {
            address: address.clone(),
            lookup: Lookup::keeping(LOOKUP_KEPT),
            replica,
            options: Arc::clone(options),
            world: world.cloned(),
            connect_failures: AtomicU64::new(0),
            failure: Mutex::new(NOT_CONNECTED),
            lost: AtomicBool::new(false),
        }
    }

    async fn looks_up(&self, patience: Duration) -> bool {
        let Address::Tcp { host, port } = &self.address else { return true };
        let mut families = self.lookup.find(host, *port);
        timeout(patience, families.first(|_| Some(()))).await.is_ok() // an attempt reports why there is no address
    }

    /// Opens a connection that has carried nothing yet.
    pub(crate) async fn connect(&self) -> Result<SerialConnection, Unknown> {
        let Options { tls, connect_timeout, .. } = &*self.options;
        let connecting = async {
            match &self.world {
                None => self.address.connect(tls.as_ref(), &self.lookup, *connect_timeout).await,
                Some(world) => world.connect(&self.address).await,
            }
        };
        SerialConnection::open(connecting, *connect_timeout).await
    }

    /// Opens a connection and proves it with an answer from the store. Neither an accepted connection nor `version` is a proof:
    /// the kernel of a frozen server accepts connections, and mcrouter answers `version` itself.
    pub(crate) async fn connect_answering(&self) -> Result<SerialConnection, Unknown> {
        let connecting = async {
            let mut connection = self.connect().await?;
            let answers = connection.exchange(&reads()).await?;
            if is_answer(&answers) { Ok(connection) } else { Err(Unknown::Rejected) }
        };
        let connected = connecting.await;
        let connection =
            connected.inspect_err(|_| _ = self.connect_failures.fetch_add(1, Ordering::Relaxed))?;
        if self.lost.swap(false, Ordering::Relaxed) {
            tracing::info!(address = %self.address, "this address of the double-spend store answers again");
        }
        Ok(connection)
    }

    /// Records a lost connection or a failed attempt. Logs it once per outage.
    pub(crate) fn failed(&self, reason: Unknown) {
        *self.failure.lock() = reason;
        if !self.lost.swap(true, Ordering::Relaxed) {
            let until_then = if self.options.replicas.are_three() {
                "where its replica has no other address, the other two replicas decide until then, as long as both answer"
            } else {
                "checks that no other address can answer are refused until then"
            };
            tracing::warn!(address = %self.address, %reason, "a connection to the double-spend store is lost \
                and is opened again; {until_then}");
        }
    }

    /// Returns the last failure, which is the reason while there is no connection.
    pub(crate) fn failure(&self) -> Unknown {
        *self.failure.lock()
    }

    /// Returns `true` from a failure until the next connection is proven.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
