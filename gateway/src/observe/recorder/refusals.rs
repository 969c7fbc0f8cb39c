//! Refusals in the log: a line for each class, and not for each request, which a flood would make a flood of lines.

use crate::observe::labels::Outcome;
use crate::request::deny::Refusal;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Logs the first refusal of a class immediately, then at most once every `EVERY`.
const EVERY: Duration = Duration::from_secs(10);

/// Refusals that are not logged yet.
pub(super) struct Refusals(Vec<Mutex<Class>>);

#[derive(Clone, Copy, Default)]
struct Class {
    untold: u64,
    told: Option<Instant>,
    /// Why the store gave no verdict, the last time.
    reason: Option<&'static str>,
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self(Outcome::ALL.iter().map(|_| Mutex::default()).collect())
    }

    pub(super) fn refused(&self, refusal: &Refusal, now: Instant) {
        let outcome = refusal.outcome();
        let mut class = self.0[outcome as usize].lock();
        class.untold += 1;
        if let Refusal::StoreUnknown(unknown) | Refusal::StoreDown(unknown) = refusal {
            class.reason = Some(unknown.reason());
        }
        if let Some((number, reason)) = class.due(now) {
            drop(class);
            tell(outcome, number, reason);
        }
    }

    /// Logs every class that is due.
    pub(super) fn tell(&self, now: Instant) {
        for (outcome, class) in Outcome::ALL.iter().zip(&self.0) {
            let due = class.lock().due(now);
            if let Some((number, reason)) = due {
                tell(*outcome, number, reason);
            }
        }
    }
}

impl Class {
    /// What to log now.
    fn due(&mut self, now: Instant) -> Option<(u64, Option<&'static str>)> {
        let rested = self.told.is_none_or(|told| now.saturating_duration_since(told) >= EVERY);
        if self.untold == 0 || !rested {
            return None;
        }
        self.told = Some(now);
        Some((std::mem::take(&mut self.untold), self.reason.take()))
    }
}

fn tell(outcome: Outcome, number: u64, reason: Option<&'static str>) {
    let outcome_name = outcome.as_str();
    match outcome {
        // These are failures of the gateway, not of the client. Missing keys are logged where they are fetched, and are
        // normal for a moment at every start.
        Outcome::StoreUnknown | Outcome::StoreDown | Outcome::TooMany => {
            tracing::warn!(outcome = outcome_name, number, reason, "requests refused");
        }
        _ => tracing::info!(outcome = outcome_name, number, reason, "requests refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_together() {
        let (mut class, start) = (Class { untold: 1, ..Class::default() }, Instant::now());
        assert_eq!(class.due(start), Some((1, None)));
        class.untold = 500;
        assert_eq!(class.due(start + Duration::from_secs(9)), None);
        assert_eq!(class.due(start + Duration::from_secs(10)), Some((500, None)));
        assert_eq!(class.due(start + Duration::from_secs(60)), None, "there is nothing to tell");
    }
}
