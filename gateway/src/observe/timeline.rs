//! When the stages of one request began and ended: measured once, for metrics, traces and the access log alike.

use crate::observe::labels::CheckResult;
use postern_spend::ExchangeLog;
use std::time::{Duration, Instant};

/// A stage that is measured.
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

/// From one moment to another.
pub(crate) type Times = (Instant, Instant);

/// One request's times. A stage that was not reached has none.
pub(crate) struct Timeline {
    /// When its head had been read.
    pub(crate) began: Instant,
    stages: [Option<Times>; Stage::ALL.len()],
    /// When the last stage so far ended: the next one begins there, and the clock need not be read again.
    last: Instant,
    /// When the double-spend check had its result, and which.
    pub(crate) judged: Option<(Instant, CheckResult)>,
    /// What the hint and the verdict did at the store.
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

    /// Does the work of a stage, timed from the end of the one before.
    pub(crate) fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let done = work();
        self.end(stage);
        done
    }

    /// A stage ends now. It began at the end of the one before.
    pub(crate) fn end(&mut self, stage: Stage) {
        self.set(stage, (self.last, Instant::now()));
    }

    pub(crate) fn set(&mut self, stage: Stage, times: Times) {
        self.stages[stage as usize] = Some(times);
        self.last = self.last.max(times.1);
    }

    /// The double-spend check has its result: with the end of its last stage, or now, if it was cut off in one.
    pub(crate) fn judge(&mut self, result: CheckResult) {
        let at = if result == CheckResult::Abandoned { Instant::now() } else { self.last };
        self.judged = Some((at, result));
    }

    pub(crate) fn of(&self, stage: Stage) -> Option<Times> {
        self.stages[stage as usize]
    }

    /// How long a stage took.
    pub(crate) fn took(&self, stage: Stage) -> Option<Duration> {
        self.of(stage).map(|(from, to)| to - from)
    }

    /// When the check began: when the request had been parsed.
    fn presented(&self) -> Option<Instant> {
        self.of(Stage::Parse).map(|(_, to)| to)
    }

    /// How long the check took: from the parsed request to its result. None when there was none.
    pub(crate) fn check(&self) -> Option<Duration> {
        let (judged, _) = self.judged?;
        Some(judged - self.presented()?)
    }

    /// How long the check waited for pooled connections.
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
