//! The options of the shared store.

use super::address::{Address, Tls};
use super::votes::{REPLICAS, majority};
use crate::Marks;
use std::time::Duration;

#[derive(Clone)]
pub struct Options {
    pub replicas: Replicas,
    pub tls: Option<Tls>,
    pub transport: Transport,
    /// The timeout of a command. A command that exceeds it is unknown, and its connection is closed.
    pub timeout: Duration,
    /// The duration above which an exchange is slow: the exchange log then includes the connection's `TCP_INFO`.
    pub slow: Duration,
    /// The timeout for connecting, and then for the first reads.
    pub connect_timeout: Duration,
    /// The interval between two rounds of the watch.
    pub interval: Duration,
    /// The time by which a witness ends before the records it stands for, so that a server whose clock is ahead removes it
    /// first.
    pub clock_tolerance: Duration,
    /// The binding of tokens to the memory that records them.
    pub marks: Marks,
    /// Memory for the cache of spent keys, in bytes per epoch.
    pub cache_bytes: usize,
}

#[derive(Clone)]
pub enum Replicas {
    /// One set of records: addresses that lead to it, at least one.
    One(Vec<Address>),
    /// Three sets with the same records, and the addresses that lead to each. Two of them decide, each by its own record and
    /// witness. Requires the pipelined transport.
    Three([Vec<Address>; 3]),
}

impl Replicas {
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

    /// Returns the number of replicas that decide.
    pub(crate) fn majority(&self) -> usize {
        majority(self.count())
    }
}

#[derive(Clone)]
pub enum Transport {
    /// One connection per address and runtime that carries the commands of all callers at once.
    Pipelined {
        /// The maximum number of commands without a reply. Further commands are refused immediately.
        queue: usize,
    },
    /// A pool of connections that carry one exchange at a time.
    Pooled {
        /// Connections per address and runtime.
        size: usize,
        /// The timeout for getting a connection.
        checkout_timeout: Duration,
    },
}
