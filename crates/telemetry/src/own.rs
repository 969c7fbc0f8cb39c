//! Metrics of telemetry itself.

use crate::catalogue::Label;

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
    /// The reason that a request's trace was kept, or that it was not.
    pub TraceKept = "reason" {
        /// At random, by `sample_ratio`.
        Sampled = "sampled",
        /// The upstream sampled the request.
        Upstream = "upstream",
        /// The request was slow.
        Slow = "slow",
        /// The request ended in an unexpected error.
        Error = "error",
        /// Not kept: slow, an error or sampled upstream, beyond the limit.
        OverLimit = "over_limit",
    }
}

crate::label! {
    /// The result of exporting a span.
    pub SpanEnded = "result" {
        /// The collector accepted the span.
        Exported = "exported",
        /// The queue was full.
        QueueFull = "queue_full",
        /// The collector did not accept the span.
        Failed = "failed",
    }
}

crate::label! {
    /// The severity of a log line.
    pub LogLevel = "level" {
        /// Something failed.
        Error = "error",
        /// Something needs attention.
        Warn = "warn",
    }
}
