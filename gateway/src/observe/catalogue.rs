//! The gateway's metrics: names, help texts and labels. No other module contains a metric name.

use super::labels::{
    CheckResult, CheckStage, Direction, KeyPhase, LookupEnded, Outcome, Replica, STORE_COMMAND, STORE_ENDED,
    SharingRound, UNKNOWN_REASON,
};
use postern_proxy::relay::TunnelEnd;
use postern_telemetry::catalogue::ADDRESS;

/// Upper bounds of check durations in seconds, from 10 µs to 1 s. Narrow buckets around 40 ms isolate delayed acknowledgements
/// from checks that take, for example, a fifth of that.
pub const CHECK_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.03,
    0.038, 0.042, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// Upper bounds of tunnel durations in seconds, from 10 ms to one day.
pub const TUNNEL_BUCKETS: &[f64] =
    &[0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

postern_telemetry::catalogue! {
    /// Every metric of the gateway.
    pub METRICS;

    /// Duration of each stage of a double-spend check.
    CHECK_DURATION: Histogram(CHECK_BUCKETS) = "postern_check_duration_seconds" [CheckStage::SPEC, CheckResult::SPEC];

    /// Answered requests.
    REQUESTS: Counter = "postern_requests_total" [Outcome::SPEC];

    /// Answered requests of peers, which are in no other count.
    PEER_REQUESTS: Counter = "postern_peer_requests_total" [Outcome::SPEC];

    /// Open tunnels.
    TUNNELS_OPEN: Gauge = "postern_tunnels_open";

    /// Lifetime of tunnels.
    TUNNEL_DURATION: Histogram(TUNNEL_BUCKETS) = "postern_tunnel_duration_seconds" [TunnelEnd::SPEC];

    /// Bytes relayed; up is from client to target.
    TUNNEL_BYTES: Counter = "postern_tunnel_bytes_total" [Direction::SPEC];

    /// Open tunnels of UDP; `postern_tunnels_open` counts them as well.
    UDP_TUNNELS_OPEN: Gauge = "postern_udp_tunnels_open";

    /// Datagrams relayed; up is from client to target.
    DATAGRAMS: Counter = "postern_datagrams_total" [Direction::SPEC];

    /// Datagrams that the side they were for did not take.
    DATAGRAMS_DROPPED: Counter = "postern_datagrams_dropped_total" [Direction::SPEC];

    /// Open client connections, tunnels included.
    CONNECTIONS_OPEN: Gauge = "postern_connections_open";

    /// Look-ups of targets' names; `kept` came from the cache.
    LOOKUPS: Counter = "postern_lookups_total" [LookupEnded::SPEC];

    /// 1 if a next hop's URL is usable, else 0.
    NEXT_HOP_UP: Gauge = "postern_next_hop_up" [ADDRESS];

    /// Tunnels through a next hop's URL, open or being opened.
    NEXT_HOP_TUNNELS: Gauge = "postern_next_hop_tunnels" [ADDRESS];

    /// Tunnels that a next hop's URL failed to open; another URL may have opened them.
    NEXT_HOP_FAILURES: Counter = "postern_next_hop_failures_total" [ADDRESS];

    /// Rounds that shared this gateway's refusals with the fleet: at most one a second.
    SHARING_ROUNDS: Counter = "postern_limit_sharing_rounds_total" [SharingRound::SPEC];

    /// Records in the embedded store.
    SPENT_RECORDS: Gauge = "postern_spent_records";

    /// Commands to the shared store.
    STORE_COMMANDS: Counter = "postern_store_commands_total" [STORE_COMMAND, STORE_ENDED];

    /// Checks without a verdict from the store.
    STORE_UNKNOWN: Counter = "postern_store_unknown_total" [UNKNOWN_REASON];

    /// Usable connections to the shared store.
    STORE_CONNECTIONS: Gauge = "postern_store_connections" [ADDRESS];

    /// Unanswered commands to the shared store.
    STORE_OUTSTANDING: Gauge = "postern_store_outstanding_commands" [ADDRESS];

    /// Most commands that may be unanswered: pooled connections or places in queues.
    STORE_CAPACITY: Gauge = "postern_store_capacity_commands" [ADDRESS];

    /// Bytes that a memcached uses, read within the last minute; none behind a router.
    STORE_MEMORY: Gauge = "postern_store_memory_bytes" [ADDRESS];

    /// Bytes that a memcached may use (`-m`): beyond, it rejects new records.
    STORE_MEMORY_LIMIT: Gauge = "postern_store_memory_limit_bytes" [ADDRESS];

    /// Commands that found every pooled connection in use: growth means too small a pool.
    STORE_POOL_WAITS: Counter = "postern_store_pool_waits_total";

    /// Replays refused from this process's cache alone.
    STORE_CACHE_HITS: Counter = "postern_store_cache_hits_total";

    /// Spent keys in this process's cache.
    STORE_CACHE_KEYS: Gauge = "postern_store_cache_keys";

    /// Replicas that lost records and kept their witnesses, so that the mark was closed.
    STORE_REPLICAS_CLOSED: Gauge = "postern_store_replicas_closed";

    /// Marks that this gateway planted and that came on offer: one a key, one more after each loss.
    STORE_MARKS_PLANTED: Counter = "postern_store_marks_planted_total";

    /// Buckets, of 1,024, that no longer know the mark on offer: that share of its tokens is void.
    STORE_BUCKETS_TORN: Gauge = "postern_store_buckets_torn";

    /// Tokens spent for a mark other than the one on offer, whatever the verdict.
    STORE_OLDER_MARKS: Counter = "postern_store_older_marks_total";

    /// Buckets, of 1,024, in which some replica does not know the mark on offer.
    STORE_BUCKETS_LACKING: Gauge = "postern_store_buckets_lacking";

    /// 1 for a replica that does not answer or rejects records; of three also for one that lacks servers.
    STORE_REPLICAS_AWAY: Gauge = "postern_store_replicas_away" [Replica::SPEC];

    /// Token keys that the gateway knows.
    KEYS: Gauge = "postern_keys" [KeyPhase::SPEC];

    /// Age of the newest token key in use; 0 if none or unknown.
    KEY_AGE: Gauge = "postern_key_age_seconds";

    /// Time when the last known token key retires; 0 if none is known.
    KEYS_RETIRE: Gauge = "postern_keys_retire_timestamp_seconds";

    /// Time when the issuer's keys were last fetched.
    KEYS_FETCHED: Gauge = "postern_keys_fetched_timestamp_seconds";

    /// End of the TLS certificate that clients see; 0 without TLS.
    CERTIFICATE_ENDS: Gauge = "postern_certificate_ends_timestamp_seconds";

    /// End of the TLS certificate that peers see; 0 without `[peers]`.
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
