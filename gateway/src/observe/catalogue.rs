//! Every metric of the gateway: its name, help and labels. Nothing else in the gateway spells one.

use super::labels::{
    CheckResult, CheckStage, Direction, KeyPhase, LookupEnded, Outcome, Replica, SharingRound, StoreCommand,
    StoreEnded, UnknownReason,
};
use postern_proxy::relay::TunnelEnd;
use postern_telemetry::catalogue::ADDRESS;

/// From 10 µs to 1 s, fine on both sides of 40 ms: there a delayed acknowledgement shows as a wall between two
/// buckets, and a check that needs a fifth of it does not look the same.
pub const CHECK_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.03,
    0.038, 0.042, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// Tunnels: from 10 ms to a day.
pub const TUNNEL_BUCKETS: &[f64] =
    &[0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

postern_telemetry::catalogue! {
    /// Every metric of the gateway.
    pub METRICS;

    /// How long each stage of the double-spend check took, by how the check ended.
    CHECK_DURATION: Histogram(CHECK_BUCKETS) = "postern_check_duration_seconds" [CheckStage::SPEC, CheckResult::SPEC];

    /// Requests that the gateway answered, by outcome.
    REQUESTS: Counter = "postern_requests_total" [Outcome::SPEC];

    /// Requests of peers that the gateway answered, by outcome; they are in no other count of requests, for they bring no token.
    PEER_REQUESTS: Counter = "postern_peer_requests_total" [Outcome::SPEC];

    /// Tunnels open now.
    TUNNELS_OPEN: Gauge = "postern_tunnels_open";

    /// How long tunnels lasted, by how they ended.
    TUNNEL_DURATION: Histogram(TUNNEL_BUCKETS) = "postern_tunnel_duration_seconds" [TunnelEnd::SPEC];

    /// Bytes relayed: up is from the client to the target.
    TUNNEL_BYTES: Counter = "postern_tunnel_bytes_total" [Direction::SPEC];

    /// Client connections open now, tunnels included.
    CONNECTIONS_OPEN: Gauge = "postern_connections_open";

    /// Look-ups of targets' names, by how they ended. Equal ones in flight are one question to the name server, and found
    /// names are kept for their time to live.
    LOOKUPS: Counter = "postern_lookups_total" [LookupEnded::SPEC];

    /// Whether a URL of a next hop can be used, as tunnels and checks have found it: 1 or 0.
    NEXT_HOP_UP: Gauge = "postern_next_hop_up" [ADDRESS];

    /// Tunnels through a URL of a next hop that are open, or being opened.
    NEXT_HOP_TUNNELS: Gauge = "postern_next_hop_tunnels" [ADDRESS];

    /// Tunnels that a URL of a next hop did not open by its own fault: not reached, broken off, credentials refused, silent.
    /// Another URL of the same next hop may have opened them.
    NEXT_HOP_FAILURES: Counter = "postern_next_hop_failures_total" [ADDRESS];

    /// Rounds in which this gateway shared what it refused with the fleet, by how they ended. There is
    /// one a second at most, and none while nothing is refused.
    SHARING_ROUNDS: Counter = "postern_limit_sharing_rounds_total" [SharingRound::SPEC];

    /// Records in the embedded double-spend store.
    SPENT_RECORDS: Gauge = "postern_spent_records";

    /// Commands to the shared double-spend store, by how they ended.
    STORE_COMMANDS: Counter = "postern_store_commands_total" [StoreCommand::SPEC, StoreEnded::SPEC];

    /// Checks that the double-spend store gave no verdict for, by reason.
    STORE_UNKNOWN: Counter = "postern_store_unknown_total" [UnknownReason::SPEC];

    /// Connections to the shared double-spend store that can be used, by address.
    STORE_CONNECTIONS: Gauge = "postern_store_connections" [ADDRESS];

    /// Commands to the shared double-spend store without an answer yet, by address.
    STORE_OUTSTANDING: Gauge = "postern_store_outstanding_commands" [ADDRESS];

    /// The most commands that may be without an answer: connections of the pools, or places in the queues.
    STORE_CAPACITY: Gauge = "postern_store_capacity_commands" [ADDRESS];

    /// Bytes that a memcached of the shared double-spend store uses, by address, as it said within the last minute. None behind a router.
    STORE_MEMORY: Gauge = "postern_store_memory_bytes" [ADDRESS];

    /// Bytes that it may use (`-m`): beyond, it rejects every new record.
    STORE_MEMORY_LIMIT: Gauge = "postern_store_memory_limit_bytes" [ADDRESS];

    /// Commands that found every connection of the pool in use: the pool is too small when this grows.
    STORE_POOL_WAITS: Counter = "postern_store_pool_waits_total";

    /// Replays refused from the process's own cache, without a command to the shared store.
    STORE_CACHE_HITS: Counter = "postern_store_cache_hits_total";

    /// Keys known to be spent that the process holds in its cache.
    STORE_CACHE_KEYS: Gauge = "postern_store_cache_keys";

    /// Replicas of the shared store that have lost records and kept the witnesses beside them, so that their mark was closed.
    STORE_REPLICAS_CLOSED: Gauge = "postern_store_replicas_closed";

    /// Marks that this gateway planted in the shared store and that came on offer: one a key, and one more after each loss.
    STORE_MARKS_PLANTED: Counter = "postern_store_marks_planted_total";

    /// Buckets of the shared store, of 1,024, that no longer know the mark on offer: that share of its tokens is void.
    STORE_BUCKETS_TORN: Gauge = "postern_store_buckets_torn";

    /// Tokens that were spent for a mark other than the one on offer, whatever the verdict: those that clients still held
    /// when it changed.
    STORE_OLDER_MARKS: Counter = "postern_store_older_marks_total";

    /// Buckets of the shared store, of 1,024, in which some replica does not know the mark on offer.
    STORE_BUCKETS_LACKING: Gauge = "postern_store_buckets_lacking";

    /// 1 for a replica of the shared store that does not answer, or rejects records; of three also for one that lacks servers. Two
    /// decide; of what two cannot answer nothing is admitted.
    STORE_REPLICAS_AWAY: Gauge = "postern_store_replicas_away" [Replica::SPEC];

    /// Token keys that the gateway knows, by where in their life they are.
    KEYS: Gauge = "postern_keys" [KeyPhase::SPEC];

    /// Age of the newest token key in use. 0 when none is, or its age is not known.
    KEY_AGE: Gauge = "postern_key_age_seconds";

    /// When the last of the known token keys retires, as a Unix time: no token is accepted after that. 0 when
    /// none is known.
    KEYS_RETIRE: Gauge = "postern_keys_retire_timestamp_seconds";

    /// When the issuer's keys were last fetched, as a Unix time.
    KEYS_FETCHED: Gauge = "postern_keys_fetched_timestamp_seconds";

    /// When the TLS certificate ends that clients are shown, as a Unix time. 0 without TLS.
    CERTIFICATE_ENDS: Gauge = "postern_certificate_ends_timestamp_seconds";

    /// When the TLS certificate ends that peers are shown, as a Unix time. 0 without `[peers]`.
    PEERS_CERTIFICATE_ENDS: Gauge = "postern_peers_certificate_ends_timestamp_seconds";
}

#[cfg(test)]
mod tests {
    use super::CHECK_BUCKETS;

    #[test]
    fn forty_milliseconds_fall_between_two_buckets_of_their_own() {
        let below =
            CHECK_BUCKETS.iter().filter(|bound| **bound < 0.04).max_by(|a, b| a.total_cmp(b)).unwrap();
        let above =
            CHECK_BUCKETS.iter().filter(|bound| **bound > 0.04).min_by(|a, b| a.total_cmp(b)).unwrap();
        assert!(*below >= 0.035 && *above <= 0.045, "{below} {above}");
        assert_eq!(CHECK_BUCKETS.first(), Some(&0.000_01));
        assert_eq!(CHECK_BUCKETS.last(), Some(&1.0));
    }
}
