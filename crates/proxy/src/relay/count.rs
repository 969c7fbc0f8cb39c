//! Counts of a relay: its bytes while it runs, and how it ended.

use postern_telemetry::metrics::ReadableCounter;

postern_telemetry::label! {
    /// How a tunnel ended.
    pub TunnelEnd = "ended" {
        /// Both sides were done.
        Finished = "finished",
        /// A side broke off.
        Broken = "broken",
        /// No byte moved for too long.
        Idle = "idle",
        /// It had lasted for as long as a tunnel may.
        Expired = "expired",
        /// The proxy stopped: it was still open at the drain's deadline.
        Cut = "cut",
    }
}

/// How a relay ended, and what went through it.
#[derive(Debug)]
pub struct Relayed {
    /// How it ended.
    pub ended: TunnelEnd,
    /// Bytes from the client to the target.
    pub up: u64,
    /// Bytes from the target to the client.
    pub down: u64,
}

/// Counts bytes as they are relayed: a tunnel that lasts for hours must not show only at its end.
#[derive(Debug)]
pub struct Meter {
    /// From the client to the target.
    pub up: ReadableCounter,
    /// From the target to the client.
    pub down: ReadableCounter,
}
