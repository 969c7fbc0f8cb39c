//! The servers and what they remember. A record is two bytes: which life of its server it was written in, and which
//! attempt wrote it. So tens of millions of tokens fit, and a server that comes back empty forgets by beginning another
//! life.

use super::fleet::{Fleet, Servers};
use super::queue::{Nanos, mixed};
use super::route::Reply;
use std::ops::Range;

/// How a server is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    pub(crate) region: usize,
    pub(crate) alive: bool,
    /// It does nothing before.
    pub(crate) busy_until: Nanos,
    /// What its replies take on top.
    pub(crate) slow: Nanos,
    /// Seconds by which its clock is ahead.
    pub(crate) ahead: u64,
    /// Which life it is in; records of earlier ones are gone. 0 means no record.
    life: u8,
    /// How often it died, however it came back.
    pub(crate) deaths: u32,
    /// When it died last.
    pub(crate) died: Nanos,
    /// How long it worked, all in all.
    pub(crate) worked: Nanos,
}

/// A command to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Add,
}

/// The name of a record: a token, or a canary of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Token(u32),
    Canary { key: u8, number: u8 },
}

/// Canaries of a key that are read in every round, as `crates/spend/src/memcached/canary.rs` has them.
pub(crate) const EPOCH_MARKER: u8 = 64;
/// The attempt of a canary that was lost and written again.
pub(crate) const REWRITTEN: u8 = u8::MAX;

pub(crate) struct Stores {
    pub(crate) servers: Vec<Server>,
    /// The first server of each replica of each store, and how many there are.
    replicas: Vec<Vec<(usize, usize)>>,
    /// Records of a name: one for each replica, or, where a router may pass over servers, one for each server.
    width: usize,
    by_server: bool,
    tokens: Vec<u16>,
    canaries: Vec<u16>,
}

impl Stores {
    pub(crate) fn new(fleet: &Fleet) -> Self {
        let mut servers = Vec::new();
        let mut replicas = Vec::new();
        for store in &fleet.stores {
            let mut of_memory = Vec::new();
            for replica in store {
                of_memory.push((servers.len(), replica.servers));
                let (region, life) = (replica.region, 1);
                let server = Server {
                    region,
                    life,
                    alive: true,
                    busy_until: 0,
                    slow: 0,
                    ahead: 0,
                    deaths: 0,
                    died: 0,
                    worked: 0,
                };
                servers.extend(std::iter::repeat_n(server, replica.servers));
            }
            replicas.push(of_memory);
        }
        let by_server = fleet.eject.is_some();
        let width = if by_server { servers.len() } else { replicas.iter().map(Vec::len).sum() };
        let canaries = vec![record(1, 0); fleet.keys.len() * usize::from(EPOCH_MARKER) * width];
        Self { servers, replicas, width, by_server, tokens: Vec::new(), canaries }
    }

    /// Room for the records of tokens up to this one.
    pub(crate) fn grow(&mut self, tokens: usize) {
        self.tokens.resize(tokens * self.width, 0);
    }

    pub(crate) fn replica_count(&self, store: usize) -> usize {
        self.replicas[store].len()
    }

    /// The servers of a replica.
    pub(crate) fn servers_of(&self, store: usize, replica: usize) -> Range<usize> {
        let (first, count) = self.replicas[store][replica];
        first..first + count
    }

    pub(crate) fn named(&self, servers: Servers) -> Range<usize> {
        let all = self.servers_of(servers.store, servers.replica);
        servers.server.map_or(all.clone(), |server| all.start + server..all.start + server + 1)
    }

    /// The server that owns a name's record in a replica.
    pub(crate) fn owner(&self, store: usize, replica: usize, name: Name) -> usize {
        let (first, count) = self.replicas[store][replica];
        let hash = match name {
            Name::Token(token) => mixed(u64::from(token) << 1),
            Name::Canary { key, number } => mixed(u64::from(key) << 9 | u64::from(number) << 1 | 1),
        };
        first + (hash % count as u64) as usize
    }

    /// Executes a command. `expires` is the second in which the key's records go.
    pub(crate) fn serve(
        &mut self,
        (server, store, replica): (usize, usize, usize),
        (verb, name, attempt): (Verb, Name, u8),
        expires: u64,
        second: u64,
    ) -> Reply {
        let life = self.servers[server].life;
        let gone =
            second.saturating_add(self.servers[server].ahead) >= expires && matches!(name, Name::Token(_));
        let place = self.place(server, store, replica);
        let slot = match name {
            Name::Token(token) => &mut self.tokens[token as usize * self.width + place],
            Name::Canary { key, number } => {
                let canary = usize::from(key) * usize::from(EPOCH_MARKER) + usize::from(number);
                &mut self.canaries[canary * self.width + place]
            }
        };
        let there = (*slot >> 8) as u8 == life && !gone;
        match (verb, there) {
            (Verb::Get, true) => Reply::Hit(*slot as u8),
            (Verb::Get, false) => Reply::Miss,
            (Verb::Add, true) => Reply::NotStored,
            (Verb::Add, false) => {
                // A record that expires before it is written is stored, and never found.
                *slot = if gone { 0 } else { record(life, attempt) };
                Reply::Stored
            }
        }
    }

    fn place(&self, server: usize, store: usize, replica: usize) -> usize {
        if self.by_server {
            return server;
        }
        self.replicas[..store].iter().map(Vec::len).sum::<usize>() + replica
    }
}

fn record(life: u8, attempt: u8) -> u16 {
    u16::from(life) << 8 | u16::from(attempt)
}

impl Server {
    pub(crate) fn die(&mut self, now: Nanos) {
        self.alive = false;
        self.deaths += 1;
        self.died = now;
    }

    pub(crate) fn come_back(&mut self, now: Nanos, empty: bool) {
        self.alive = true;
        self.busy_until = now;
        // A run with 255 empty returns of one server would bring the first life's records back.
        self.life = self.life.checked_add(u8::from(empty)).expect("fewer than 255 lives of a server");
    }
}
