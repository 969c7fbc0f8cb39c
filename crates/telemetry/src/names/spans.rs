//! Names of spans and of their attributes. Where OpenTelemetry has a name for a thing, it is used
//! (<https://opentelemetry.io/docs/specs/semconv/>).

pub use opentelemetry::trace::SpanKind as Kind;

/// A request, from its head to its answer.
pub const REQUEST: &str = "request";
/// Reading the request: target and token.
pub const PARSE: &str = "parse";
/// The hint: has the token been seen?
pub const CHECK: &str = "check";
/// The signature.
pub const VERIFY: &str = "verify";
/// The verdict.
pub const SPEND: &str = "spend";
/// Resolving and connecting.
pub const DIAL: &str = "dial";
/// The tunnel, which goes on after the request was answered.
pub const TUNNEL: &str = "tunnel";
/// A `get` of the shared store.
pub const STORE_GET: &str = "store get";
/// An `add` of the shared store.
pub const STORE_ADD: &str = "store add";

/// Every name of a span.
pub const SPANS: &[&str] = &[REQUEST, PARSE, CHECK, VERIFY, SPEND, DIAL, TUNNEL, STORE_GET, STORE_ADD];

/// How the request was answered: a value of [`Outcome`](super::Outcome).
pub const OUTCOME: &str = "postern.outcome";
/// Why the trace was kept: a value of [`TraceKept`](super::TraceKept).
pub const KEPT: &str = "postern.kept";
/// How the double-spend check ended: a value of [`CheckResult`](super::CheckResult).
pub const RESULT: &str = "postern.check.result";
/// Why the store gave no verdict: a value of [`UnknownReason`](super::UnknownReason).
pub const UNKNOWN_REASON: &str = "postern.store.unknown_reason";
/// Microseconds that a stage waited for a pooled connection.
pub const POOL_WAIT: &str = "postern.store.pool_wait_us";
/// How a store command ended: a value of [`StoreEnded`](super::StoreEnded).
pub const STORE_RESULT: &str = "postern.store.result";
/// Microseconds from the call to the command's last byte in the kernel's hands.
pub const STORE_QUEUED: &str = "postern.store.queued_us";
/// Microseconds from there to the first byte of the reply. 40,000 and no retransmission is Nagle's algorithm against
/// delayed acknowledgements.
pub const STORE_FIRST_BYTE: &str = "postern.store.write_to_first_byte_us";
/// What a slow command seems to have waited for.
pub const STORE_STALL: &str = "postern.store.stall";
/// The status of the answer.
pub const STATUS: &str = "http.response.status_code";
/// "memcached".
pub const DB_SYSTEM: &str = "db.system.name";
/// "get" or "add".
pub const DB_OPERATION: &str = "db.operation.name";
/// An address of the store, from the configuration.
pub const SERVER: &str = "server.address";
/// Smoothed round trip of a slow command's connection, in microseconds (TCP_INFO).
pub const TCP_RTT: &str = "tcp.rtt_us";
/// The shortest round trip seen of late, in microseconds.
pub const TCP_RTT_LEAST: &str = "tcp.rtt_least_us";
/// The variation of the smoothed one, in microseconds.
pub const TCP_RTT_VARIATION: &str = "tcp.rtt_variation_us";
/// Segments that the connection has sent again since it was opened.
pub const TCP_RETRANSMITS: &str = "tcp.retransmits";
/// Segments without an acknowledgement.
pub const TCP_UNACKNOWLEDGED: &str = "tcp.unacknowledged";
/// Segments that the kernel believes lost.
pub const TCP_LOST: &str = "tcp.lost";

/// Every name of an attribute.
pub const ATTRIBUTES: &[&str] = &[
    OUTCOME,
    KEPT,
    RESULT,
    UNKNOWN_REASON,
    POOL_WAIT,
    STORE_RESULT,
    STORE_QUEUED,
    STORE_FIRST_BYTE,
    STORE_STALL,
    STATUS,
    DB_SYSTEM,
    DB_OPERATION,
    SERVER,
    TCP_RTT,
    TCP_RTT_LEAST,
    TCP_RTT_VARIATION,
    TCP_RETRANSMITS,
    TCP_UNACKNOWLEDGED,
    TCP_LOST,
];
