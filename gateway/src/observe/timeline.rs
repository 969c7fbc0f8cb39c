//! Timestamps of a request's stages, measured once for metrics, traces and the access log.

use crate::observe::labels::CheckResult;
use postern_spend::ExchangeLog;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Parse,
    Check,
    Verify,
    Spend,
    Dial,
}

impl Stage {
    pub(crate) const ALL: [Self; 5] = [Self::Parse, Self::Check, Self::Verify, Self::Spend, Self::Dial];
}

pub(crate) type Times = (Instant, Instant);

/// Timestamps of one request. Stages that were not reached have none.
pub(crate) struct Timeline {
    /// Time at which the request's head was complete.
    pub(crate) began: Instant,
    stages: [Option<Times>; Stage::ALL.len()],
    /// End of the last stage, which is the start of the next one and saves a read of the clock.
    last: Instant,
    /// Time and result of the double-spend check.
    pub(crate) judged: Option<(Instant, CheckResult)>,
    /// Store commands of the lookup; `spend_log` has those of the verdict.
    pub(crate) check_log: ExchangeLog,
    pub(crate) spend_log: ExchangeLog,
}

impl Timeline {
    pub(crate) fn begin() -> Self {
        let began = Instant::now();
        Self {
            began,
            stages: [None; Stage::ALL.len()],
            last: began,
            judged: None,
            check_log: ExchangeLog::default(),
            spend_log: ExchangeLog::default(),
        }
    }

    pub(crate) fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let done = work();
        self.end(stage);
        done
    }

    /// Records the end of a stage that began at the end of the previous one.
    pub(crate) fn end(&mut self, stage: Stage) {
        self.set(stage, (self.last, Instant::now()));
    }

    pub(crate) fn set(&mut self, stage: Stage, times: Times) {
        self.stages[stage as usize] = Some(times);
        self.last = self.last.max(times.1);
    }

    /// Records the check's result, timed at the end of its last stage, or now if it was abandoned in one.
    pub(crate) fn judge(&mut self, result: CheckResult) {
        let at = if result == CheckResult::Abandoned { Instant::now() } else { self.last };
        self.judged = Some((at, result));
    }

    pub(crate) fn of(&self, stage: Stage) -> Option<Times> {
        self.stages[stage as usize]
    }

    pub(crate) fn took(&self, stage: Stage) -> Option<Duration> {
        self.of(stage).map(|(from, to)| to - from)
    }

    /// Returns the check's duration, from the parsed request to its result; `None` without a result.
    pub(crate) fn check(&self) -> Option<Duration> {
        let (judged, _) = self.judged?;
        let (_, parsed) = self.of(Stage::Parse)?;
        Some(judged - parsed)
    }

    pub(crate) fn pool_wait(&self) -> Duration {
        self.check_log.pool + self.spend_log.pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_stand_at_their_own_index() {
        assert!(Stage::ALL.iter().enumerate().all(|(index, &stage)| index == stage as usize));
    }

    #[test]
    fn a_check_that_never_came_to_a_result_took_no_time() {
        let mut timeline = Timeline::begin();
        assert_eq!(timeline.check(), None);
        timeline.time(Stage::Parse, || ());
        assert_eq!(timeline.check(), None);
        timeline.judge(CheckResult::Admitted);
        assert!(timeline.check().is_some() && timeline.took(Stage::Verify).is_none());
    }
}
