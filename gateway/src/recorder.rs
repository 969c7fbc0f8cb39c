//! What the gateway records, through handles made once: a lookup by name costs more than a verification is allowed to.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use postern_service::names::{self, CheckResult, CheckStage, Direction, Outcome, TunnelEnd};
use postern_service::relay::Relayed;
use postern_spend::Journal;
use std::time::{Duration, Instant};

/// The handles.
pub(crate) struct Recorder {
    outcomes: Vec<Counter>,
    checks: Vec<Histogram>,
    tunnels_open: Gauge,
    tunnels_ended: Vec<Histogram>,
    bytes_up: Counter,
    bytes_down: Counter,
    connections_open: Gauge,
}

/// How long each stage of one check took; a stage that was not reached has no time.
#[derive(Clone, Default)]
pub(crate) struct CheckTimes {
    pub(crate) get: Option<Duration>,
    pub(crate) verify: Option<Duration>,
    pub(crate) add: Option<Duration>,
    /// Parts of `get` and `add`.
    pub(crate) waits: Journal,
}

/// Counts something down when it is dropped, however the task that holds it ends.
pub(crate) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let checks = CheckStage::ALL.iter().flat_map(|stage| {
            CheckResult::ALL.iter().map(|result| {
                let labels = [(CheckStage::LABEL, stage.as_str()), (CheckResult::LABEL, result.as_str())];
                histogram!(names::CHECK_DURATION, &labels)
            })
        });
        Self {
            outcomes: Outcome::ALL
                .iter()
                .map(|outcome| counter!(names::REQUESTS, Outcome::LABEL => outcome.as_str()))
                .collect(),
            checks: checks.collect(),
            tunnels_open: gauge!(names::TUNNELS_OPEN),
            tunnels_ended: TunnelEnd::ALL
                .iter()
                .map(|end| histogram!(names::TUNNEL_DURATION, TunnelEnd::LABEL => end.as_str()))
                .collect(),
            bytes_up: counter!(names::TUNNEL_BYTES, Direction::LABEL => Direction::Up.as_str()),
            bytes_down: counter!(names::TUNNEL_BYTES, Direction::LABEL => Direction::Down.as_str()),
            connections_open: gauge!(names::CONNECTIONS_OPEN),
        }
    }

    pub(crate) fn answered(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].increment(1);
    }

    /// One check, from its first stage to its verdict.
    pub(crate) fn checked(&self, started: Instant, times: CheckTimes, result: CheckResult) {
        // Nobody waits for a pool that is not there.
        let waited = |wait: Duration| if wait.is_zero() { None } else { Some(wait) };
        let stages = [
            (CheckStage::PoolWait, waited(times.waits.pool)),
            (CheckStage::Health, waited(times.waits.health)),
            (CheckStage::Get, times.get),
            (CheckStage::Verify, times.verify),
            (CheckStage::Add, times.add),
        ];
        for (stage, time) in stages {
            if let Some(time) = time {
                self.check(stage, result).record(time);
            }
        }
        self.check(CheckStage::Total, result).record(started.elapsed());
    }

    fn check(&self, stage: CheckStage, result: CheckResult) -> &Histogram {
        &self.checks[stage as usize * CheckResult::ALL.len() + result as usize]
    }

    pub(crate) fn connection_opened(&self) -> Open {
        self.connections_open.increment(1.0);
        Open(self.connections_open.clone())
    }

    pub(crate) fn tunnel_opened(&self) -> Open {
        self.tunnels_open.increment(1.0);
        Open(self.tunnels_open.clone())
    }

    pub(crate) fn tunnel_closed(&self, lasted: Duration, relayed: &Relayed) {
        self.tunnels_ended[relayed.ended as usize].record(lasted);
        self.bytes_up.increment(relayed.up);
        self.bytes_down.increment(relayed.down);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_at_their_own_index() {
        assert!(Outcome::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
        assert!(CheckStage::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
        assert!(TunnelEnd::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
        assert!(CheckResult::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    }
}
