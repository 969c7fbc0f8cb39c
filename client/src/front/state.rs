//! State that all connections share, and what each holds beside its stream.

use crate::catalogue::AgentOutcome;
use crate::front::answer::Refusal;
use crate::hop::tunnel::{OpenError, Opener};
use crate::recorder::Answers;
use postern_daemon::drain::Shutdown;
use postern_daemon::exchange::Exchange;
use postern_daemon::places::Place;
use postern_daemon::readiness::Readiness;
use std::sync::Arc;

/// State shared by all connections.
pub(crate) struct AgentState {
    pub(crate) opener: Opener,
    pub(crate) answers: Arc<Answers>,
    pub(crate) shutdown: Shutdown,
    pub(crate) readiness: Readiness,
}

/// The place that a connection was admitted to, and the exchange in progress on it.
pub(crate) struct Admission {
    pub(crate) place: Place,
    pub(crate) exchange: Exchange,
}

impl AgentState {
    pub(crate) fn count(&self, outcome: AgentOutcome) {
        self.answers.count(outcome);
    }

    /// Logs a failed request, because a SOCKS5 reply has no room for a sentence. A gateway's answer about a target is
    /// not logged: it is private to the user.
    pub(crate) fn log_failure(&self, refusal: &Refusal) {
        if !matches!(refusal, Refusal::NoTunnel(OpenError::Passed(_)) | Refusal::Target(_)) {
            tracing::warn!("a SOCKS5 request failed: {refusal}");
        }
    }
}
