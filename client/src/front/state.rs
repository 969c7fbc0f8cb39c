//! State that all connections share.

use crate::catalogue::AgentOutcome;
use crate::config::Listen;
use crate::front::answer::Refusal;
use crate::hop::tunnel::{OpenError, Opener};
use crate::recorder::Answers;
use postern_daemon::descriptors::Descriptors;
use postern_daemon::drain::Shutdown;
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::seldom::Seldom;
use postern_daemon::sources::SourceLimits;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Silence after which a stream of UDP ends.
pub(crate) const UDP_IDLE: Duration = Duration::from_mins(2);

pub(crate) struct AgentState {
    pub(crate) opener: Arc<Opener>,
    pub(crate) answers: Arc<Answers>,
    pub(crate) shutdown: Shutdown,
    pub(crate) limit: Limit,
    pub(crate) sources: SourceLimits,
    pub(crate) places: Places,
    /// Places of targets of UDP, and of associations with targets.
    pub(crate) udp_places: UdpPlaces,
    /// Empty: nothing that a program does is limited by its rate.
    pub(crate) rates: Rates,
}

/// The limits on connections and on an association's targets, shared by clones. Each connection takes at most two file
/// descriptors, its own and that of UDP or to the gateway; each target at most one.
#[derive(Clone)]
pub(crate) struct Limit {
    most: Arc<AtomicUsize>,
    udp_targets: Arc<AtomicUsize>,
    descriptors: Descriptors,
}

impl Limit {
    pub(crate) fn new(wanted: &Listen, descriptors: Descriptors) -> Self {
        let limit = Self { most: Arc::default(), udp_targets: Arc::default(), descriptors };
        limit.set(wanted);
        limit
    }

    /// Sets the limits to those of `wanted`, or to what the file descriptors allow.
    pub(crate) fn set(&self, wanted: &Listen) {
        let most = self.descriptors.connections("[listen] connections", wanted.connections, 2);
        self.most.store(most, Ordering::Relaxed);
        self.udp_targets.store(wanted.udp_targets, Ordering::Relaxed);
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn udp_targets(&self) -> usize {
        self.udp_targets.load(Ordering::Relaxed)
    }
}

/// A count of the places that UDP has: half of all at most, so that a scan leaves the others to connections.
#[derive(Default)]
pub(crate) struct UdpPlaces(Arc<AtomicUsize>);

/// A place of UDP, until dropped.
pub(crate) struct UdpPlace(Arc<AtomicUsize>);

impl UdpPlaces {
    pub(crate) fn take(&self, limit: &Limit) -> Option<UdpPlace> {
        let half = limit.most().div_ceil(2);
        let more = |taken: usize| (taken < half).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(UdpPlace(Arc::clone(&self.0)))
    }
}

impl Drop for UdpPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AgentState {
    pub(crate) fn count(&self, outcome: AgentOutcome) {
        self.answers.count(outcome);
    }

    /// Logs a failed request, one a second, because a SOCKS5 reply has no room for a message. A gateway's answer about a target is
    /// not logged: it is private to the user.
    pub(crate) fn log_failure(&self, what: &str, refusal: &Refusal) {
        static REPORTED: Seldom = Seldom::every(Duration::from_secs(1));
        if matches!(refusal, Refusal::NoTunnel(OpenError::Passed(_)) | Refusal::Target(_)) {
            return;
        }
        match REPORTED.due(Instant::now()) {
            Some(1) => tracing::warn!("a {what} of SOCKS5 failed: {refusal}"),
            Some(number) => tracing::warn!("{number} requests of SOCKS5 failed, the last one: {refusal}"),
            None => {}
        }
    }
}
