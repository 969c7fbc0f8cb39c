//! Every metric of every daemon: its name, unit, help and labels; `labels` has the values those take. Nothing else in the
//! project spells a metric name, so that a dashboard can be checked against this file.

use metrics::Unit;

mod labels;
pub mod spans;
#[cfg(test)]
mod tests;

pub use labels::*;

/// How long each stage of the double-spend check took.
pub const CHECK_DURATION: &str = "postern_check_duration_seconds";
/// Requests that the gateway answered.
pub const REQUESTS: &str = "postern_requests_total";
/// Tunnels open now.
pub const TUNNELS_OPEN: &str = "postern_tunnels_open";
/// How long tunnels lasted.
pub const TUNNEL_DURATION: &str = "postern_tunnel_duration_seconds";
/// Bytes relayed.
pub const TUNNEL_BYTES: &str = "postern_tunnel_bytes_total";
/// Client connections open now.
pub const CONNECTIONS_OPEN: &str = "postern_connections_open";
/// Records in the embedded double-spend store.
pub const SPENT_RECORDS: &str = "postern_spent_records";
/// Commands to the shared double-spend store.
pub const STORE_COMMANDS: &str = "postern_store_commands_total";
/// Checks that the store gave no verdict for.
pub const STORE_UNKNOWN: &str = "postern_store_unknown_total";
/// Connections to each address of the shared store.
pub const STORE_CONNECTIONS: &str = "postern_store_connections";
/// Commands to each address of the shared store without an answer yet.
pub const STORE_OUTSTANDING: &str = "postern_store_outstanding_commands";
/// The most commands that each address of the shared store is sent before an answer.
pub const STORE_CAPACITY: &str = "postern_store_capacity_commands";
/// Commands that found every connection of the pool in use.
pub const STORE_POOL_WAITS: &str = "postern_store_pool_waits_total";
/// Replays answered from the memory of the process.
pub const STORE_CACHE_HITS: &str = "postern_store_cache_hits_total";
/// Keys known to be spent, held in the process.
pub const STORE_CACHE_KEYS: &str = "postern_store_cache_keys";
/// Canaries that were gone.
pub const STORE_CANARIES_LOST: &str = "postern_store_canaries_lost_total";
/// Token keys of which records were lost.
pub const STORE_KEYS_LOST: &str = "postern_store_keys_lost";
/// Token keys that the gateway knows.
pub const KEYS: &str = "postern_keys";
/// Age of the newest token key in use.
pub const KEY_AGE: &str = "postern_key_age_seconds";
/// When the last of the known token keys retires.
pub const KEYS_RETIRE: &str = "postern_keys_retire_timestamp_seconds";
/// When the issuer's keys were last fetched.
pub const KEYS_FETCHED: &str = "postern_keys_fetched_timestamp_seconds";
/// Requests that the issuer answered.
pub const ISSUER_REQUESTS: &str = "postern_issuer_requests_total";
/// Requests for a token.
pub const ISSUANCES: &str = "postern_issuances_total";
/// Tokens signed.
pub const TOKENS_ISSUED: &str = "postern_tokens_issued_total";
/// Requests that are being signed or wait for it.
pub const ISSUER_QUEUE: &str = "postern_issuer_queue_requests";
/// The most requests that may be signed or wait.
pub const ISSUER_QUEUE_LIMIT: &str = "postern_issuer_queue_limit_requests";
/// How long one blind signature took.
pub const ISSUER_SIGN_DURATION: &str = "postern_issuer_sign_duration_seconds";
/// Unspent tokens in the agent's wallet.
pub const WALLET_TOKENS: &str = "postern_wallet_tokens";
/// What became of the agent's tokens.
pub const AGENT_TOKENS: &str = "postern_agent_tokens_total";
/// Requests that the agent answered.
pub const AGENT_REQUESTS: &str = "postern_agent_requests_total";
/// Attempts to get an answer over a link.
pub const LINK_ATTEMPTS: &str = "postern_link_attempts_total";
/// Attempts that got none.
pub const LINK_LOST: &str = "postern_link_lost_total";
/// How long an answer over a link took.
pub const LINK_DURATION: &str = "postern_link_duration_seconds";
/// Requests of which a trace was kept.
pub const TRACES: &str = "postern_traces_total";
/// Spans, by what became of them.
pub const SPANS: &str = "postern_spans_total";
/// Warnings and errors that were not written.
pub const LOG_LINES_LEFT_OUT: &str = "postern_log_lines_left_out_total";
/// Always 1; the version is the label.
pub const BUILD_INFO: &str = "postern_build_info";

/// One metric, as it is described to Prometheus and in the docs.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The whole name, prefix, unit and `_total` included.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The unit, when it has one.
    pub unit: Option<Unit>,
    /// One sentence for people.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// The kinds of metric.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values in buckets; these are their upper bounds, in the metric's unit.
    Histogram(&'static [f64]),
}

/// From 10 µs to 1 s, fine on both sides of 40 ms: there a delayed acknowledgement shows as a wall between two
/// buckets, and a check that needs a fifth of it does not look the same.
pub const CHECK_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.03,
    0.038, 0.042, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// One signature: from 100 µs to 1 s.
pub const SIGN_BUCKETS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0];
/// Tunnels: from 10 ms to a day.
pub const TUNNEL_BUCKETS: &[f64] =
    &[0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

/// A link: from 10 µs on one machine to 10 s around the world, with both sides of 40 ms.
pub const LINK_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.038,
    0.042, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// What the process itself takes, under the names that Prometheus' client libraries agree on. The `metrics-process`
/// crate records them.
pub const PROCESS: &[&str] = &[
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
    "process_virtual_memory_bytes",
    "process_virtual_memory_max_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_threads",
];

/// All of them.
pub const ALL: &[Metric] = &[
    Metric {
        name: CHECK_DURATION,
        kind: Kind::Histogram(CHECK_BUCKETS),
        unit: Some(Unit::Seconds),
        help: "How long each stage of the double-spend check took, by how the check ended.",
        labels: &[CheckStage::LABEL, CheckResult::LABEL],
    },
    Metric {
        name: REQUESTS,
        kind: Kind::Counter,
        unit: None,
        help: "Requests that the gateway answered, by outcome.",
        labels: &[Outcome::LABEL],
    },
    Metric { name: TUNNELS_OPEN, kind: Kind::Gauge, unit: None, help: "Tunnels open now.", labels: &[] },
    Metric {
        name: TUNNEL_DURATION,
        kind: Kind::Histogram(TUNNEL_BUCKETS),
        unit: Some(Unit::Seconds),
        help: "How long tunnels lasted, by how they ended.",
        labels: &[TunnelEnd::LABEL],
    },
    Metric {
        name: TUNNEL_BYTES,
        kind: Kind::Counter,
        unit: Some(Unit::Bytes),
        help: "Bytes relayed: up is from the client to the target.",
        labels: &[Direction::LABEL],
    },
    Metric {
        name: CONNECTIONS_OPEN,
        kind: Kind::Gauge,
        unit: None,
        help: "Client connections open now, tunnels included.",
        labels: &[],
    },
    Metric {
        name: SPENT_RECORDS,
        kind: Kind::Gauge,
        unit: None,
        help: "Records in the embedded double-spend store.",
        labels: &[],
    },
    Metric {
        name: STORE_COMMANDS,
        kind: Kind::Counter,
        unit: None,
        help: "Commands to the shared double-spend store, by how they ended.",
        labels: &[StoreCommand::LABEL, StoreEnded::LABEL],
    },
    Metric {
        name: STORE_UNKNOWN,
        kind: Kind::Counter,
        unit: None,
        help: "Checks that the double-spend store gave no verdict for, by reason.",
        labels: &[UnknownReason::LABEL],
    },
    Metric {
        name: STORE_CONNECTIONS,
        kind: Kind::Gauge,
        unit: None,
        help: "Proven connections to the shared double-spend store, by address.",
        labels: &[ADDRESS_LABEL],
    },
    Metric {
        name: STORE_OUTSTANDING,
        kind: Kind::Gauge,
        unit: None,
        help: "Commands to the shared double-spend store without an answer yet, by address.",
        labels: &[ADDRESS_LABEL],
    },
    Metric {
        name: STORE_CAPACITY,
        kind: Kind::Gauge,
        unit: None,
        help: "The most commands that may be without an answer: connections of the pools, or places in the queues.",
        labels: &[ADDRESS_LABEL],
    },
    Metric {
        name: STORE_POOL_WAITS,
        kind: Kind::Counter,
        unit: None,
        help: "Commands that found every connection of the pool in use: the pool is too small when this grows.",
        labels: &[],
    },
    Metric {
        name: STORE_CACHE_HITS,
        kind: Kind::Counter,
        unit: None,
        help: "Replays refused from the process's own memory, without asking the shared store.",
        labels: &[],
    },
    Metric {
        name: STORE_CACHE_KEYS,
        kind: Kind::Gauge,
        unit: None,
        help: "Keys known to be spent that the process holds in memory.",
        labels: &[],
    },
    Metric {
        name: STORE_CANARIES_LOST,
        kind: Kind::Counter,
        unit: None,
        help: "Canary records that the shared store had lost: spent records were lost with them.",
        labels: &[],
    },
    Metric {
        name: STORE_KEYS_LOST,
        kind: Kind::Gauge,
        unit: None,
        help: "Token keys of which the shared store has lost records, so that spent tokens may be spent again.",
        labels: &[],
    },
    Metric {
        name: KEYS,
        kind: Kind::Gauge,
        unit: None,
        help: "Token keys that the gateway knows, by where in their life they are.",
        labels: &[KeyPhase::LABEL],
    },
    Metric {
        name: KEY_AGE,
        kind: Kind::Gauge,
        unit: Some(Unit::Seconds),
        help: "Age of the newest token key in use. 0 when none is, or its age is not known.",
        labels: &[],
    },
    Metric {
        name: KEYS_RETIRE,
        kind: Kind::Gauge,
        unit: Some(Unit::Seconds),
        help: "When the last of the known token keys retires, as a Unix time: nobody is admitted after that. 0 when none is known.",
        labels: &[],
    },
    Metric {
        name: KEYS_FETCHED,
        kind: Kind::Gauge,
        unit: Some(Unit::Seconds),
        help: "When the issuer's keys were last fetched, as a Unix time.",
        labels: &[],
    },
    Metric {
        name: ISSUER_REQUESTS,
        kind: Kind::Counter,
        unit: None,
        help: "Requests that the issuer answered, by outcome.",
        labels: &[IssuerOutcome::LABEL],
    },
    Metric {
        name: ISSUANCES,
        kind: Kind::Counter,
        unit: None,
        help: "Requests for a token, by token type and outcome.",
        labels: &[TokenTypeAsked::LABEL, IssuerOutcome::LABEL],
    },
    Metric {
        name: TOKENS_ISSUED,
        kind: Kind::Counter,
        unit: None,
        help: "Tokens signed, by token type.",
        labels: &[TYPE_LABEL],
    },
    Metric {
        name: ISSUER_SIGN_DURATION,
        kind: Kind::Histogram(SIGN_BUCKETS),
        unit: Some(Unit::Seconds),
        help: "How long one blind signature took on the signing pool, without the wait for it.",
        labels: &[],
    },
    Metric {
        name: ISSUER_QUEUE,
        kind: Kind::Gauge,
        unit: None,
        help: "Token requests that are being signed or wait for it.",
        labels: &[],
    },
    Metric {
        name: ISSUER_QUEUE_LIMIT,
        kind: Kind::Gauge,
        unit: None,
        help: "The most token requests that may be signed or wait: one more is answered 503.",
        labels: &[],
    },
    Metric {
        name: WALLET_TOKENS,
        kind: Kind::Gauge,
        unit: None,
        help: "Unspent tokens in the agent's wallet.",
        labels: &[],
    },
    Metric {
        name: AGENT_TOKENS,
        kind: Kind::Counter,
        unit: None,
        help: "Tokens of the agent, by what became of them: minted = held in the wallet + all others.",
        labels: &[TokenFate::LABEL],
    },
    Metric {
        name: AGENT_REQUESTS,
        kind: Kind::Counter,
        unit: None,
        help: "Requests that the agent answered, by outcome.",
        labels: &[AgentOutcome::LABEL],
    },
    Metric {
        name: LINK_ATTEMPTS,
        kind: Kind::Counter,
        unit: None,
        help: "Attempts to get an answer over a link: commands, fetches, connections.",
        labels: &[LinkKind::LABEL, ADDRESS_LABEL],
    },
    Metric {
        name: LINK_LOST,
        kind: Kind::Counter,
        unit: None,
        help: "Attempts over a link that got no answer: not connected, timed out, or broken off.",
        labels: &[LinkKind::LABEL, ADDRESS_LABEL],
    },
    Metric {
        name: LINK_DURATION,
        kind: Kind::Histogram(LINK_BUCKETS),
        unit: Some(Unit::Seconds),
        help: "How long an answer over a link took.",
        labels: &[LinkKind::LABEL, ADDRESS_LABEL],
    },
    Metric {
        name: TRACES,
        kind: Kind::Counter,
        unit: None,
        help: "Requests whose trace was kept, by why; over_limit are those that were not, for there were too many.",
        labels: &[TraceKept::LABEL],
    },
    Metric {
        name: SPANS,
        kind: Kind::Counter,
        unit: None,
        help: "Spans of kept traces, by what became of them.",
        labels: &[SpanEnded::LABEL],
    },
    Metric {
        name: LOG_LINES_LEFT_OUT,
        kind: Kind::Counter,
        unit: None,
        help: "Log lines that were left out, because the same place in the program had just written several.",
        labels: &[LogLevel::LABEL],
    },
    Metric {
        name: BUILD_INFO,
        kind: Kind::Gauge,
        unit: None,
        help: "Always 1; the label is the version that runs.",
        labels: &[VERSION_LABEL],
    },
];

/// Registers the help and unit of every metric with the recorder that is installed.
pub fn describe_all() {
    for metric in ALL {
        let unit = metric.unit.unwrap_or(Unit::Count);
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, unit, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, unit, metric.help),
            Kind::Histogram(_) => metrics::describe_histogram!(metric.name, unit, metric.help),
        }
    }
}
