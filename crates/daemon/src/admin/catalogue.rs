//! Metrics of links, and the kinds of links.

use postern_telemetry::catalogue::ADDRESS;

/// Upper bounds of link durations in seconds: from 10 µs on one machine to 10 s around the world, with bounds on both sides of 40
/// ms.
pub const LINK_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.038,
    0.042, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

postern_telemetry::catalogue! {
    /// All metrics of links.
    pub METRICS;

    /// Attempts to get an answer: commands, fetches, connections.
    LINK_ATTEMPTS: Counter = "postern_link_attempts_total" [LinkKind::SPEC, ADDRESS];

    /// Attempts without an answer: not connected, timed out, broken off.
    LINK_LOST: Counter = "postern_link_lost_total" [LinkKind::SPEC, ADDRESS];

    /// Response time over a link.
    LINK_DURATION: Histogram(LINK_BUCKETS) = "postern_link_duration_seconds" [LinkKind::SPEC, ADDRESS];
}

postern_telemetry::label! {
    /// The remote end of a link.
    pub LinkKind = "link" {
        /// An address of the shared double-spend store.
        Store = "store",
        /// The token issuer.
        Issuer = "issuer",
        /// The gateway.
        Gateway = "gateway",
    }
}
