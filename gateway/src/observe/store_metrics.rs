//! Metrics of a shared store, published a few times a second.

use crate::observe::catalogue;
use crate::observe::labels::{Replica, STORE_COMMAND, STORE_ENDED};
use crate::observe::recorder::Recorder;
use metrics::{counter, gauge};
use postern_spend::memcached::{Ended, Health, Totals, Verb};
use postern_telemetry::catalogue::ADDRESS;

#[derive(Default)]
pub(crate) struct StoreMetrics {
    /// Failed attempts to connect to each address at the previous publication.
    failures: Vec<u64>,
}

impl StoreMetrics {
    /// Publishes the counters, and records the connection attempts to each address that failed since the previous call.
    pub(crate) fn publish(&mut self, totals: &Totals, health: &Health, recorder: &Recorder) {
        for verb in Verb::ALL {
            for ended in Ended::ALL.into_iter().filter(|ended| ended.can_follow(verb)) {
                let labels = [(STORE_COMMAND.name, verb.as_str()), (STORE_ENDED.name, ended.as_str())];
                counter!(catalogue::STORE_COMMANDS, &labels).absolute(totals.commands(verb, ended));
            }
        }
        counter!(catalogue::STORE_POOL_WAITS).absolute(totals.pool_waits);
        counter!(catalogue::STORE_CACHE_HITS).absolute(totals.cache_hits);
        gauge!(catalogue::STORE_CACHE_KEYS).set(health.remembered as f64);
        gauge!(catalogue::STORE_REPLICAS_CLOSED).set(health.closed as f64);
        counter!(catalogue::STORE_MARKS_PLANTED).absolute(totals.marks_planted);
        gauge!(catalogue::STORE_BUCKETS_TORN).set(health.torn as f64);
        counter!(catalogue::STORE_OLDER_MARKS).absolute(totals.older_marks);
        gauge!(catalogue::STORE_BUCKETS_LACKING).set(health.lacking as f64);
        for (replica, label) in Replica::ALL.iter().enumerate().take(health.replicas()) {
            let is_away = f64::from(u8::from(health.away.contains(&replica)));
            gauge!(catalogue::STORE_REPLICAS_AWAY, Replica::LABEL => label.as_str()).set(is_away);
        }
        self.failures.resize(health.endpoints.len(), 0);
        for (index, (failures, endpoint)) in self.failures.iter_mut().zip(&health.endpoints).enumerate() {
            let labels = [(ADDRESS.name, endpoint.address.to_string())];
            gauge!(catalogue::STORE_CONNECTIONS, &labels).set(endpoint.connections as f64);
            gauge!(catalogue::STORE_OUTSTANDING, &labels).set(endpoint.outstanding as f64);
            gauge!(catalogue::STORE_CAPACITY, &labels).set(endpoint.capacity as f64);
            let before = std::mem::replace(failures, endpoint.connect_failures);
            // A reopened store counts from 0.
            recorder.lost(index, endpoint.connect_failures.saturating_sub(before));
        }
    }
}
