//! Health of the store in sentences for the operator: it serves clients, serves a part of them, or refuses them.
//!
//! Two sources decide: the results of the checks of the last ten seconds, and the observations of the store's watch. The
//! sentences contain the cause and the remedy.

mod shared;
#[cfg(test)]
mod tests;

use crate::gate::{Condition, Reason};
use postern_spend::Unknown;
use postern_spend::memcached::Health;
pub(crate) use shared::way_out;
use shared::{of_away, of_shared, percent, unfit};
use std::collections::VecDeque;

/// Samples of the last ten seconds, at four per second.
const SAMPLES: usize = 40;
/// Minimum number of checks from which "all refused" makes the store not ready: fewer may be an accident.
const FEW: u64 = 8;

/// Numbers of checks that needed a verdict, and of those that got none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) total: u64,
    pub(crate) refused: u64,
}

/// Sliding window over the monotonic totals of checks.
#[derive(Default)]
pub(crate) struct Recent(VecDeque<Checks>);

impl Recent {
    /// Adds a sample. Returns the difference to the oldest sample.
    pub(crate) fn tick(&mut self, total: Checks) -> Checks {
        self.0.push_back(total);
        if self.0.len() > SAMPLES {
            self.0.pop_front();
        }
        let oldest = self.0.front().copied().unwrap_or_default();
        Checks {
            total: total.total.saturating_sub(oldest.total),
            refused: total.refused.saturating_sub(oldest.refused),
        }
    }
}

/// Observations of the store at one moment.
#[derive(Clone)]
pub(crate) struct Findings {
    /// `Ok` if a spend could be answered.
    pub(crate) ready: Result<(), Unknown>,
    pub(crate) recent: Checks,
    /// Reason of the last check without a verdict.
    pub(crate) reason: Option<Unknown>,
    /// State of a shared store; `None` for an embedded one.
    pub(crate) health: Option<Health>,
    /// Addresses of servers that drop records when they are full.
    pub(crate) evicting: Vec<String>,
    /// One sentence per server that is nearly full.
    pub(crate) filling: Vec<String>,
    /// One sentence per server whose clock is too far from this machine's.
    pub(crate) skewed: Vec<String>,
}

impl Findings {
    /// Returns the worst condition, with a sentence for the operator.
    pub(crate) fn condition(&self) -> Condition {
        if let Err(reason) = self.ready {
            let text = format!(
                "{reason}: every request is refused with 503, and no token is read. {}",
                self.way_out(reason)
            );
            return Condition::NotReady(text);
        }
        let Checks { total, refused } = self.recent;
        let reason = self.reason.unwrap_or(Unknown::Rejected);
        if total >= FEW && refused == total {
            let text = format!(
                "none of the last {total} checks got a verdict, and all were refused with 503: {reason}. {}",
                way_out(reason)
            );
            return Condition::NotReady(text);
        }
        if let Some(health) = self.health.as_ref().filter(|health| health.is_voteless()) {
            return Condition::NotReady(of_away(health));
        }
        let mut found = Vec::new();
        if refused >= 2 && refused * 100 >= total {
            let share = percent(refused, total);
            let text = format!(
                "{share} of the checks of the last 10 s ({refused} of {total}) got no verdict and were refused with 503: \
                 {reason}. {}",
                way_out(reason)
            );
            found.push(Reason::new("refused", text));
        }
        found.extend(self.health.as_ref().map(of_shared).unwrap_or_default());
        if !self.evicting.is_empty() {
            let text = format!(
                "the memcached at {} drops records when it is full, so no mark is planted there any more: start it with -M",
                self.evicting.join(", ")
            );
            found.push(Reason::new("evicting", text));
        }
        found.extend(self.filling.iter().map(|text| Reason::new("filling", text)));
        if !self.skewed.is_empty() {
            // A mark stands, since checks get verdicts: that of the server, or those of two other replicas.
            let text = format!(
                "{}, so records of spent tokens end too early or too late there: set both clocks by NTP",
                self.skewed.join("; ")
            );
            found.push(Reason::new("clock", text));
        }
        Condition::of(found)
    }

    fn way_out(&self, reason: Unknown) -> String {
        match &self.health {
            Some(health) if health.overlaps => OVERLAPS.to_owned(),
            Some(health) if health.used_up && reason == Unknown::Unmarked => USED_UP.to_owned(),
            Some(health) if reason == Unknown::Unmarked => {
                let clocks = (!self.skewed.is_empty()).then(|| {
                    let skewed = self.skewed.join("; ");
                    format!("{skewed}, so witnesses end too early there, and no mark stands: set both clocks by NTP")
                });
                unfit(health).or(clocks).unwrap_or_else(|| way_out(reason).to_owned())
            }
            None if reason == Unknown::Unmarked => {
                "It offers one with the first key of the issuer".to_owned()
            }
            _ => way_out(reason).to_owned(),
        }
    }
}

const OVERLAPS: &str = "Two replicas of the store lead to the same servers, so their votes are one: give each of the three lists \
                        in store.memcached.replicas its own servers";

const USED_UP: &str = "The store has lost the records of a token key 256 times, and no further mark follows: mend it, then run \
                       `postern issuer key rotate`";

/// Formats a count as "1 token key" or "2 token keys".
pub(crate) fn plural(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
