//! What a shared store has counted, published under the names of the registry.

use crate::observe::catalogue;
use crate::observe::labels::{Replica, StoreCommand, StoreEnded};
use metrics::{Counter, Gauge, counter, gauge};
use postern_spend::Backend;
use postern_spend::memcached::{Ended, EndpointHealth, Health, Totals, Verb};
use postern_telemetry::catalogue::ADDRESS;

/// Handles, made once; none when the store is not shared.
pub(crate) struct StoreMetrics(Option<Handles>);

struct Handles {
    commands: Vec<(Verb, Ended, Counter)>,
    endpoints: Vec<EndpointHandles>,
    pool_waits: Counter,
    cache_hits: Counter,
    cache_keys: Gauge,
    replicas_closed: Gauge,
    marks_planted: Counter,
    buckets_torn: Gauge,
    older_marks: Counter,
    replicas_away: Vec<Gauge>,
    buckets_lacking: Gauge,
}

/// Of one address.
struct EndpointHandles {
    connections: Gauge,
    outstanding: Gauge,
    capacity: Gauge,
    /// Failed attempts to connect that were seen already.
    failures: u64,
}

impl EndpointHandles {
    fn new(address: String) -> Self {
        let labels = [(ADDRESS.name, address)];
        Self {
            connections: gauge!(catalogue::STORE_CONNECTIONS, &labels),
            outstanding: gauge!(catalogue::STORE_OUTSTANDING, &labels),
            capacity: gauge!(catalogue::STORE_CAPACITY, &labels),
            failures: 0,
        }
    }
}

impl StoreMetrics {
    pub(crate) fn new(backend: &Backend) -> Self {
        let Backend::Memcached(memcached) = backend else { return Self(None) };
        let commands = Verb::ALL.iter().flat_map(|verb| Ended::ALL.map(|ended| (*verb, ended)));
        let commands = commands.filter(|(verb, ended)| ended.can_follow(*verb));
        let health = memcached.health();
        let replicas = Replica::ALL.iter().take(health.replicas());
        let away =
            |replica: &Replica| gauge!(catalogue::STORE_REPLICAS_AWAY, &[(Replica::LABEL, replica.as_str())]);
        let endpoints =
            health.endpoints.iter().map(|endpoint| EndpointHandles::new(endpoint.address.to_string()));
        Self(Some(Handles {
            commands: commands.map(|(verb, ended)| (verb, ended, command(verb, ended))).collect(),
            endpoints: endpoints.collect(),
            pool_waits: counter!(catalogue::STORE_POOL_WAITS),
            cache_hits: counter!(catalogue::STORE_CACHE_HITS),
            cache_keys: gauge!(catalogue::STORE_CACHE_KEYS),
            replicas_closed: gauge!(catalogue::STORE_REPLICAS_CLOSED),
            marks_planted: counter!(catalogue::STORE_MARKS_PLANTED),
            buckets_torn: gauge!(catalogue::STORE_BUCKETS_TORN),
            older_marks: counter!(catalogue::STORE_OLDER_MARKS),
            replicas_away: replicas.map(away).collect(),
            buckets_lacking: gauge!(catalogue::STORE_BUCKETS_LACKING),
        }))
    }

    /// Publishes what was counted. Returns for each address, by its place, the attempts to connect that have failed
    /// since the last time.
    pub(crate) fn publish(&mut self, totals: &Totals, health: &Health) -> Vec<(usize, u64)> {
        let Some(handles) = &mut self.0 else { return Vec::new() };
        for (verb, ended, counter) in &handles.commands {
            counter.absolute(totals.commands(*verb, *ended));
        }
        handles.pool_waits.absolute(totals.pool_waits);
        handles.cache_hits.absolute(totals.cache_hits);
        handles.cache_keys.set(health.remembered as f64);
        handles.replicas_closed.set(health.closed as f64);
        handles.marks_planted.absolute(totals.marks_planted);
        handles.buckets_torn.set(health.torn as f64);
        handles.older_marks.absolute(totals.older_marks);
        for (replica, handle) in handles.replicas_away.iter().enumerate() {
            handle.set(f64::from(u8::from(health.away.contains(&replica))));
        }
        handles.buckets_lacking.set(health.lacking as f64);
        let publish = |(handles, endpoint): (&mut EndpointHandles, &EndpointHealth)| {
            handles.connections.set(endpoint.connections as f64);
            handles.outstanding.set(endpoint.outstanding as f64);
            handles.capacity.set(endpoint.capacity as f64);
            let before = std::mem::replace(&mut handles.failures, endpoint.connect_failures);
            endpoint.connect_failures.saturating_sub(before) // a store that was opened anew counts from 0
        };
        handles.endpoints.iter_mut().zip(&health.endpoints).map(publish).enumerate().collect()
    }
}

fn command(verb: Verb, ended: Ended) -> Counter {
    let command = match verb {
        Verb::Get => StoreCommand::Get,
        Verb::Add => StoreCommand::Add,
    };
    let labels = [(StoreCommand::LABEL, command.as_str()), (StoreEnded::LABEL, result_of(ended).as_str())];
    counter!(catalogue::STORE_COMMANDS, &labels)
}

/// The label of a command's end.
pub(crate) fn result_of(ended: Ended) -> StoreEnded {
    match ended {
        Ended::Stored => StoreEnded::Stored,
        Ended::NotStored => StoreEnded::NotStored,
        Ended::Hit => StoreEnded::Hit,
        Ended::Miss => StoreEnded::Miss,
        Ended::ServerError => StoreEnded::ServerError,
        Ended::TimedOut => StoreEnded::TimedOut,
        Ended::Broken => StoreEnded::Broken,
        Ended::Refused => StoreEnded::Refused,
        Ended::Overtaken => StoreEnded::Overtaken,
    }
}
