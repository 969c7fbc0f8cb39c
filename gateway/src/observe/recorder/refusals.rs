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
    pending: u64,
    logged: Option<Instant>,
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
        class.pending += 1;
        if let Refusal::StoreUnknown(unknown) | Refusal::StoreDown(unknown) = refusal {
            class.reason = Some(unknown.reason());
        }
        if let Some((number, reason)) = class.due(now) {
            drop(class);
            log(outcome, number, reason);
        }
    }

    /// Logs every class that is due.
    pub(super) fn log_due(&self, now: Instant) {
        for (outcome, class) in Outcome::ALL.iter().zip(&self.0) {
            let due = class.lock().due(now);
            if let Some((number, reason)) = due {
                log(*outcome, number, reason);
            }
        }
    }
}

impl Class {
    /// What to log now.
    fn due(&mut self, now: Instant) -> Option<(u64, Option<&'static str>)> {
        let rested = self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= EVERY);
        if self.pending == 0 || !rested {
            return None;
        }
        self.logged = Some(now);
        Some((std::mem::take(&mut self.pending), self.reason.take()))
    }
}

fn log(outcome: Outcome, number: u64, reason: Option<&'static str>) {
    let outcome_name = outcome.as_str();
    match outcome {
        // These are failures of the gateway, not of the client. Missing keys are logged where they are fetched, and are
        // normal for a moment at every start.
        Outcome::StoreUnknown | Outcome::StoreDown | Outcome::NextHopDown | Outcome::TooMany => {
            tracing::warn!(outcome = outcome_name, number, reason, "requests refused");
        }
        _ => tracing::info!(outcome = outcome_name, number, reason, "requests refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_logged_at_once_and_the_others_together() {
        let (mut class, start) = (Class { pending: 1, ..Class::default() }, Instant::now());
        assert_eq!(class.due(start), Some((1, None)));
        class.pending = 500;
        assert_eq!(class.due(start + Duration::from_secs(9)), None);
        assert_eq!(class.due(start + Duration::from_secs(10)), Some((500, None)));
        assert_eq!(class.due(start + Duration::from_secs(60)), None, "there is nothing to log");
    }
}
