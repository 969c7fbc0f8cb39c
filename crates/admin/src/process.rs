//! What the daemons of one process share.

use crate::live::Live;
use crate::status::Reports;
use postern_daemon::descriptors::Descriptors;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Readiness;
use postern_daemon::systemd::Pulse;

/// The stop switch, the readiness, the live page and the file descriptors that all daemons of a process share. Clones share
/// them.
#[derive(Clone, Debug, Default)]
pub struct ProcessContext {
    /// When to drain, reload and stop.
    pub shutdown: Shutdown,
    /// What has to be ready.
    pub readiness: Readiness,
    /// What the live page shows.
    pub live: Live,
    /// What its status command reads.
    pub reports: Reports,
    /// How many connections they may have.
    pub descriptors: Descriptors,
    /// Signs of life of its runtimes, for systemd.
    pub pulse: Pulse,
}
