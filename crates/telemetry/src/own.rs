//! What telemetry records of itself.

use crate::catalogue::Label;

/// The version that runs.
pub const VERSION: Label = Label::open("version");

crate::catalogue! {
    /// Every metric of telemetry itself.
    pub METRICS;

    /// Requests with a kept trace; over_limit: one too many to keep.
    TRACES: Counter = "postern_traces_total" [TraceKept::SPEC];

    /// Spans of kept traces.
    SPANS: Counter = "postern_spans_total" [SpanEnded::SPEC];

    /// Log lines left out because the same place had just written several.
    LOG_LINES_LEFT_OUT: Counter = "postern_log_lines_left_out_total" [LogLevel::SPEC];

    /// Always 1; the label is the running version.
    BUILD_INFO: Gauge = "postern_build_info" [VERSION];
}

crate::label! {
    /// Why a request's trace was kept, or that it was not.
    pub TraceKept = "reason" {
        /// At random, by `sample_ratio`.
        Sampled = "sampled",
        /// The upstream had sampled it.
        Upstream = "upstream",
        /// It was slow.
        Slow = "slow",
        /// It ended in an unexpected error.
        Error = "error",
        /// It was slow or an error, and too many such were kept already.
        OverLimit = "over_limit",
    }
}

crate::label! {
    /// What became of a span.
    pub SpanEnded = "result" {
        /// The collector has it.
        Exported = "exported",
        /// The queue was full.
        QueueFull = "queue_full",
        /// The collector did not take it.
        Failed = "failed",
    }
}

crate::label! {
    /// How serious a log line is.
    pub LogLevel = "level" {
        /// Something failed.
        Error = "error",
        /// Something needs a look.
        Warn = "warn",
    }
}
