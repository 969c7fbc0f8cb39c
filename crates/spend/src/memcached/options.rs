//! What an operator chooses about the shared store.

use super::address::{Address, Tls};
use super::votes::{REPLICAS, majority};
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
    /// How long connecting may take, and then the first reads.
    pub connect_timeout: Duration,
    /// How often the watch looks after the marks.
    pub interval: Duration,
    /// How much earlier a witness ends than the records it stands for: a server's clock that is ahead removes it first.
    pub clock_tolerance: Duration,
    /// How tokens are bound to the memory that records them.
    pub marks: Marks,
    /// RAM for the cache of spent keys, in bytes for each epoch.
    pub cache_bytes: usize,
}

/// Where the records lie.
#[derive(Clone, Debug)]
pub enum Replicas {
    /// One set of records: addresses that lead to it, at least one.
    One(Vec<Address>),
    /// Three sets with the same records, for each the addresses that lead to it. Two of them decide, each by its own record
    /// and witness. Needs the pipelined transport.
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
        majority(self.count())
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
    /// How often each idle connection is proven again.
    pub idle_probe: Duration,
    /// A connection is replaced after this time.
    pub max_lifetime: Duration,
}
