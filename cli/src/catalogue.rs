//! The metrics of every crate in this binary.

use postern_telemetry::catalogue::Metric;

/// One catalogue for each crate that records metrics, except telemetry's, which telemetry adds itself.
pub(crate) const CATALOGUES: &[&[Metric]] = &[
    postern_daemon::admin::catalogue::METRICS,
    #[cfg(feature = "servers")]
    postern_gateway::catalogue::METRICS,
    #[cfg(feature = "servers")]
    postern_issuer::catalogue::METRICS,
    postern_client::catalogue::METRICS,
];
