//! The metrics of everything in this binary.

use postern_telemetry::catalogue::Metric;

/// A catalogue for each crate that records. Telemetry adds its own.
pub(crate) const CATALOGUES: &[&[Metric]] = &[
    postern_admin::catalogue::METRICS,
    #[cfg(feature = "servers")]
    postern_gateway::catalogue::METRICS,
    #[cfg(feature = "servers")]
    postern_issuer::catalogue::METRICS,
    postern_client::catalogue::METRICS,
];
