//! Names of spans and their attributes, from OpenTelemetry's semantic conventions where those define one
//! (<https://opentelemetry.io/docs/specs/semconv/>).

pub use postern_telemetry::traces::SpanKind as Kind;

/// The gateway's service name in traces.
pub(crate) const SERVICE: &str = "postern-gateway";

postern_telemetry::names! {
    /// All span names.
    pub SPANS;

    /// A request, from its head to its answer.
    REQUEST = "request";

    /// Parsing of the target and the token.
    PARSE = "parse";

    /// The lookup of the token's spent record.
    CHECK = "check";

    /// The verification of the signature.
    VERIFY = "verify";

    /// The atomic write that records the token as spent.
    SPEND = "spend";

    /// Name resolution and connection to the target.
    DIAL = "dial";

    /// The tunnel, which outlives the answered request.
    TUNNEL = "tunnel";

    /// A `get` command to the shared store.
    STORE_GET = "store get";

    /// An `add` command to the shared store.
    STORE_ADD = "store add";
}

postern_telemetry::names! {
    /// All attribute names.
    pub ATTRIBUTES;

    /// The result of the request: a value of [`Outcome`](super::labels::Outcome).
    OUTCOME = "postern.outcome";

    /// The reason for keeping the trace: a value of [`TraceKept`](postern_telemetry::own::TraceKept).
    KEPT = "postern.kept";

    /// The result of the double-spend check: a value of [`CheckResult`](super::labels::CheckResult).
    RESULT = "postern.check.result";

    /// The reason for a missing verdict of the store: a value of [`UNKNOWN_REASON`](super::labels::UNKNOWN_REASON).
    UNKNOWN_REASON = "postern.store.unknown_reason";

    /// Microseconds that a stage waited for a pooled connection.
    POOL_WAIT = "postern.store.pool_wait_us";

    /// The result of a store command: a value of [`STORE_ENDED`](super::labels::STORE_ENDED).
    STORE_RESULT = "postern.store.result";

    /// Microseconds from the call until the kernel has the command's last byte.
    STORE_QUEUED = "postern.store.queued_us";

    /// Microseconds from then until the first byte of the reply. About 40,000 without a retransmission indicates Nagle's
    /// algorithm waiting for a delayed acknowledgement.
    STORE_FIRST_BYTE = "postern.store.write_to_first_byte_us";

    /// The probable cause of a slow command's delay.
    STORE_STALL = "postern.store.stall";

    /// The HTTP status of the answer.
    STATUS = "http.response.status_code";

    /// The database system: "memcached".
    DB_SYSTEM = "db.system.name";

    /// The database operation: "get" or "add".
    DB_OPERATION = "db.operation.name";

    /// An address of the store, as configured.
    SERVER = "server.address";

    /// Smoothed round-trip time of a slow command's connection, in microseconds (TCP_INFO).
    TCP_RTT = "tcp.rtt_us";

    /// Lowest recent round-trip time, in microseconds.
    TCP_RTT_LEAST = "tcp.rtt_least_us";

    /// Variation of the smoothed round-trip time, in microseconds.
    TCP_RTT_VARIATION = "tcp.rtt_variation_us";

    /// Segments retransmitted since the connection was opened.
    TCP_RETRANSMITS = "tcp.retransmits";

    /// Unacknowledged segments.
    TCP_UNACKNOWLEDGED = "tcp.unacknowledged";

    /// Segments that the kernel presumes lost.
    TCP_LOST = "tcp.lost";
}
