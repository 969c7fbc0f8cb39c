//! What a shared store has counted, published under the names of the registry.

use metrics::{Counter, Gauge, counter, gauge};
use postern_service::names::{self, StoreCommand, StoreEnded};
use postern_spend::Backend;
use postern_spend::memcached::{Ended, Health, Totals, Verb};

/// Handles, made once; none when the store is not shared.
pub(crate) struct StoreMetrics(Option<Handles>);

struct Handles {
    commands: Vec<(Verb, Ended, Counter)>,
    connections: Vec<Gauge>,
    pool_waits: Counter,
    cache_hits: Counter,
    cache_keys: Gauge,
    canaries_lost: Counter,
    keys_lost: Gauge,
}

impl StoreMetrics {
    pub(crate) fn new(backend: &Backend) -> Self {
        let Backend::Memcached(memory) = backend else { return Self(None) };
        let commands = Verb::ALL.iter().flat_map(|verb| Ended::ALL.map(|ended| (*verb, ended)));
        let commands = commands.filter(|(verb, ended)| ended.can_follow(*verb));
        let connections =
            memory.health().doors.into_iter().map(
                |door| gauge!(names::STORE_CONNECTIONS, names::ADDRESS_LABEL => door.address.to_string()),
            );
        Self(Some(Handles {
            commands: commands.map(|(verb, ended)| (verb, ended, command(verb, ended))).collect(),
            connections: connections.collect(),
            pool_waits: counter!(names::STORE_POOL_WAITS),
            cache_hits: counter!(names::STORE_CACHE_HITS),
            cache_keys: gauge!(names::STORE_CACHE_KEYS),
            canaries_lost: counter!(names::STORE_CANARIES_LOST),
            keys_lost: gauge!(names::STORE_KEYS_LOST),
        }))
    }

    pub(crate) fn publish(&self, totals: &Totals, health: &Health) {
        let Some(handles) = &self.0 else { return };
        for (verb, ended, counter) in &handles.commands {
            counter.absolute(totals.commands(*verb, *ended));
        }
        for (gauge, door) in handles.connections.iter().zip(&health.doors) {
            gauge.set(door.connections as f64);
        }
        handles.pool_waits.absolute(totals.pool_waits);
        handles.cache_hits.absolute(totals.cache_hits);
        handles.cache_keys.set(health.remembered as f64);
        handles.canaries_lost.absolute(totals.canaries_lost);
        handles.keys_lost.set(health.lost.len() as f64);
    }
}

fn command(verb: Verb, ended: Ended) -> Counter {
    let command = match verb {
        Verb::Get => StoreCommand::Get,
        Verb::Add => StoreCommand::Add,
    };
    let result = match ended {
        Ended::Stored => StoreEnded::Stored,
        Ended::NotStored => StoreEnded::NotStored,
        Ended::Hit => StoreEnded::Hit,
        Ended::Miss => StoreEnded::Miss,
        Ended::ServerError => StoreEnded::ServerError,
        Ended::TimedOut => StoreEnded::TimedOut,
        Ended::Broken => StoreEnded::Broken,
        Ended::Refused => StoreEnded::Refused,
    };
    let labels = [(StoreCommand::LABEL, command.as_str()), (StoreEnded::LABEL, result.as_str())];
    counter!(names::STORE_COMMANDS, &labels)
}
