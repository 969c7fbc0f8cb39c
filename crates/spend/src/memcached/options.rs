//! What an operator chooses about the shared store.

use super::address::{Address, Tls};
use super::votes::{MAJORITY, REPLICAS};
use crate::Marks;
use std::time::Duration;

/// The most addresses: they are endpoints of one store, not its servers.
const MOST_ADDRESSES: usize = 32;

/// How to reach and use the shared store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the records lie.
    pub replicas: Replicas,
    /// TLS to all addresses.
    pub tls: Option<Tls>,
    /// How commands travel.
    pub transport: Transport,
    /// How long a command may take. What takes longer is unknown, and its connection is closed.
    pub timeout: Duration,
    /// What takes longer has the connection's `TCP_INFO` read, for the exchange log.
    pub slow: Duration,
    /// How long connecting may take, and then proving the connection.
    pub connect_timeout: Duration,
    /// How often the canaries are read, and the endpoints proven.
    pub canary_interval: Duration,
    /// How far the store's clock may be ahead of this process's: less than the margin between the end of a token and
    /// that of its record.
    pub clock_tolerance: Duration,
    /// What to do when the store has lost records.
    pub on_loss: OnLoss,
    /// After an `add` without a reply, read the record and admit if this attempt wrote it. Safe only if every record
    /// has one copy: behind a quorum a minority's copy answers too, and two presentations could be admitted.
    pub ask_whose: bool,
    /// How tokens are bound to the memory that records them; `None` if they are not.
    pub marks: Option<Marks>,
    /// RAM for the cache of spent keys, in bytes for each epoch.
    pub cache_bytes: usize,
}

/// Where the records lie.
#[derive(Clone, Debug)]
pub enum Replicas {
    /// One set of records: addresses that lead to it, at least one.
    One(Vec<Address>),
    /// Three sets with the same records, for each the addresses that lead to it. Two of them decide, each by its own record
    /// and witness. Needs marks, and the pipelined transport.
    Three([Vec<Address>; 3]),
}

impl Replicas {
    /// The addresses, with the number of the replica that each leads to.
    pub fn addresses(&self) -> impl Iterator<Item = (usize, &Address)> {
        let lists = match self {
            Self::One(addresses) => std::slice::from_ref(addresses),
            Self::Three(lists) => lists,
        };
        lists
            .iter()
            .enumerate()
            .flat_map(|(replica, list)| list.iter().map(move |address| (replica, address)))
    }

    pub(crate) fn are_three(&self) -> bool {
        matches!(self, Self::Three(_))
    }

    pub(crate) fn count(&self) -> usize {
        if self.are_three() { REPLICAS } else { 1 }
    }

    /// How many decide.
    pub(crate) fn majority(&self) -> usize {
        if self.are_three() { MAJORITY } else { 1 }
    }

    /// Why these cannot be opened.
    pub(crate) fn refused(&self) -> Option<String> {
        let number = self.addresses().count();
        if number > MOST_ADDRESSES {
            return Some(format!("at most {MOST_ADDRESSES} addresses are used, and these are {number}"));
        }
        let mut all: Vec<String> = self.addresses().map(|(_, address)| address.to_string()).collect();
        all.sort_unstable();
        if self.are_three() && all.windows(2).any(|pair| pair[0] == pair[1]) {
            return Some("an address is in two replicas, whose votes would be one".to_owned());
        }
        let reached = |replica| self.addresses().any(|(leads_to, _)| leads_to == replica);
        (!(0..self.count()).all(reached)).then(|| "each replica needs an address".to_owned())
    }
}

/// What the time of an exchange is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// [`Options::timeout`].
    pub(crate) patience: Duration,
    /// [`Options::slow`].
    pub(crate) slow: Duration,
}

impl Options {
    pub(crate) fn limits(&self) -> Limits {
        Limits { patience: self.timeout, slow: self.slow }
    }
}

/// How commands travel.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Connections that carry the commands of all callers at once.
    Pipelined {
        /// Connections to each address, for each runtime.
        connections: usize,
        /// The most commands without an answer on one connection. What comes on top is refused at once.
        queue: usize,
    },
    /// A pool of connections that carry one command at a time.
    Pooled(Pool),
}

/// A pool of connections.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Connections to each address, for each runtime.
    pub size: usize,
    /// How long a command may wait for a connection.
    pub checkout_timeout: Duration,
    /// Send a `get` on a connection before each use. Costs a round trip.
    pub check_on_checkout: bool,
    /// How often each idle connection is proven again.
    pub idle_probe: Duration,
    /// A connection is replaced after this time.
    pub max_lifetime: Duration,
}

/// What to do when the store has lost records of an epoch, so that its spent tokens may be spent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnLoss {
    /// Continue, and report it in log, metrics and readiness.
    #[default]
    Warn,
    /// Refuse the epoch's tokens as unknown ([`Unknown::RecordsLost`](crate::Unknown::RecordsLost)).
    Refuse,
    /// Refuse the epoch's tokens as those of a retired key, so that clients come back with tokens of another.
    Retire,
}

/// How many connections carry `commands_per_second` of which each takes `latency`: by Little's law as many as are under
/// way on average, and three standard deviations more, for arrivals come in bursts.
///
/// ```
/// # use postern_spend::memcached::pool_size;
/// # use std::time::Duration;
/// // 5,000 a second at 1 ms each: 5 on average.
/// assert_eq!(pool_size(5_000.0, Duration::from_millis(1)), 12);
/// // The same at 45 ms: 225.
/// assert_eq!(pool_size(5_000.0, Duration::from_millis(45)), 270);
/// ```
#[must_use]
pub fn pool_size(commands_per_second: f64, latency: Duration) -> usize {
    let under_way = commands_per_second.max(0.0) * latency.as_secs_f64();
    // A sum of finite, non-negative numbers; the cast saturates.
    (under_way + 3.0 * under_way.sqrt()).ceil().max(1.0) as usize
}
