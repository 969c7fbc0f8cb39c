//! Names of spans and of their attributes. Where OpenTelemetry has a name for a thing, it is used
//! (<https://opentelemetry.io/docs/specs/semconv/>).

pub use postern_telemetry::traces::SpanKind as Kind;

/// What the gateway is called in traces.
pub(crate) const SERVICE: &str = "postern-gateway";

postern_telemetry::names! {
    /// Every name of a span.
    pub SPANS;

    /// A request, from its head to its answer.
    REQUEST = "request";

    /// Reading the request: target and token.
    PARSE = "parse";

    /// The check: is the token recorded as spent?
    CHECK = "check";

    /// The signature.
    VERIFY = "verify";

    /// The verdict.
    SPEND = "spend";

    /// Resolving and connecting.
    DIAL = "dial";

    /// The tunnel, which goes on after the request was answered.
    TUNNEL = "tunnel";

    /// A `get` of the shared store.
    STORE_GET = "store get";

    /// An `add` of the shared store.
    STORE_ADD = "store add";
}

postern_telemetry::names! {
    /// Every name of an attribute.
    pub ATTRIBUTES;

    /// How the request was answered: a value of [`Outcome`](super::labels::Outcome).
    OUTCOME = "postern.outcome";

    /// Why the trace was kept: a value of [`TraceKept`](postern_telemetry::own::TraceKept).
    KEPT = "postern.kept";

    /// How the double-spend check ended: a value of [`CheckResult`](super::labels::CheckResult).
    RESULT = "postern.check.result";

    /// Why the store gave no verdict: a value of [`UnknownReason`](super::labels::UnknownReason).
    UNKNOWN_REASON = "postern.store.unknown_reason";

    /// Microseconds that a stage waited for a pooled connection.
    POOL_WAIT = "postern.store.pool_wait_us";

    /// How a store command ended: a value of [`StoreEnded`](super::labels::StoreEnded).
    STORE_RESULT = "postern.store.result";

    /// Microseconds from the call to the command's last byte in the kernel's hands.
    STORE_QUEUED = "postern.store.queued_us";

    /// Microseconds from there to the first byte of the reply. 40,000 and no retransmission is Nagle's algorithm
    /// against delayed acknowledgements.
    STORE_FIRST_BYTE = "postern.store.write_to_first_byte_us";

    /// What a slow command seems to have waited for.
    STORE_STALL = "postern.store.stall";

    /// The status of the answer.
    STATUS = "http.response.status_code";

    /// "memcached".
    DB_SYSTEM = "db.system.name";

    /// "get" or "add".
    DB_OPERATION = "db.operation.name";

    /// An address of the store, from the configuration.
    SERVER = "server.address";

    /// Smoothed round trip of a slow command's connection, in microseconds (TCP_INFO).
    TCP_RTT = "tcp.rtt_us";

    /// The shortest round trip seen of late, in microseconds.
    TCP_RTT_LEAST = "tcp.rtt_least_us";

    /// The variation of the smoothed one, in microseconds.
    TCP_RTT_VARIATION = "tcp.rtt_variation_us";

    /// Segments that the connection has sent again since it was opened.
    TCP_RETRANSMITS = "tcp.retransmits";

    /// Segments without an acknowledgement.
    TCP_UNACKNOWLEDGED = "tcp.unacknowledged";

    /// Segments that the kernel believes lost.
    TCP_LOST = "tcp.lost";
}
