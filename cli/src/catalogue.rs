//! The metrics of everything in this binary.

use postern_telemetry::catalogue::Metric;

/// A catalogue for each crate that records. Telemetry adds its own.
pub(crate) const CATALOGUES: [&[Metric]; 4] = [
    postern_admin::catalogue::METRICS,
    postern_gateway::catalogue::METRICS,
    postern_issuer::catalogue::METRICS,
    postern_client::catalogue::METRICS,
];
