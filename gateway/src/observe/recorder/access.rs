//! Recording of a request after its answer: the rest of its trace, and the optional access log, one line per request with its
//! outcome and durations; client and target only with `access = "full"`. Log of refusals.

use crate::config::AccessLog;
use crate::observe::labels::Outcome;
use crate::observe::spans;
use crate::observe::timeline::{Stage, Timeline};
use crate::request::deny::Refusal;
use parking_lot::Mutex;
use postern_proxy::relay::Relayed;
use postern_telemetry::traces::Trace;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Minimum interval between two lines of a class; its first refusal is logged immediately.
const EVERY: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Who {
    client: Option<SocketAddr>,
    target: Option<String>,
}

pub(super) struct Line {
    outcome: Outcome,
    check: Option<Duration>,
    dial: Option<Duration>,
    who: Who,
}

impl Who {
    /// Returns the client and the target, or neither unless the operator enabled them; `None` if nothing is logged.
    pub(crate) fn of(
        log: AccessLog,
        client: Option<SocketAddr>,
        target: impl FnOnce() -> Option<String>,
    ) -> Option<Self> {
        match log {
            AccessLog::Off => None,
            AccessLog::Anonymous => Some(Self::default()),
            AccessLog::Full => Some(Self { client, target: target() }),
        }
    }
}

impl Line {
    pub(super) fn new(outcome: Outcome, timeline: &Timeline, who: Who) -> Self {
        Self { outcome, check: timeline.check(), dial: timeline.took(Stage::Dial), who }
    }

    /// Writes the line of a request that was answered before its target was read.
    pub(super) fn write_turned_away(outcome: Outcome) {
        Self { outcome, check: None, dial: None, who: Who::default() }.write(None);
    }

    /// Writes the line, of a tunnel with its end and duration.
    fn write(self, tunnel: Option<(&Relayed, Duration)>) {
        let Who { client, target } = self.who;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(
            target: "postern::access",
            outcome = self.outcome.as_str(),
            check_us = self.check.map(micros),
            dial_us = self.dial.map(micros),
            ended = tunnel.map(|(relayed, _)| relayed.ended.as_str()),
            lasted_ms = tunnel.map(|(_, lasted)| micros(lasted) / 1000),
            up = tunnel.map(|(relayed, _)| relayed.up),
            down = tunnel.map(|(relayed, _)| relayed.down),
            client = client.map(tracing::field::display),
            destination = target.map(tracing::field::display),
            "access"
        );
    }
}

/// The unfinished trace and access-log line of an answered request. If dropped early, the request is logged without tunnel
/// fields.
///
/// The fields are boxed because every open tunnel has an account, and most accounts are empty.
pub(crate) struct Account {
    pub(super) trace: Option<Box<Trace>>,
    pub(super) line: Option<Box<Line>>,
}

impl Account {
    pub(crate) fn tunnel_ended(mut self, began: Instant, relayed: &Relayed) {
        let ended = Instant::now();
        if let Some(mut trace) = self.trace.take() {
            // Traces contain no byte counts: sizes and times of one tunnel together can reveal its content.
            let root = trace.root();
            trace.span(spans::TUNNEL, root, (began, ended), spans::Kind::Internal, Vec::new());
            trace.send();
        }
        if let Some(line) = self.line.take() {
            line.write(Some((relayed, ended - began)));
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            line.write(None);
        }
    }
}

/// Refusals that are not logged yet, by outcome: one line per class and interval, so that a flood of requests causes no flood of
/// lines.
pub(crate) struct Refusals(Vec<Mutex<Class>>);

#[derive(Clone, Copy, Default)]
struct Class {
    pending: u64,
    logged: Option<Instant>,
    /// Latest reason for a missing verdict of the store.
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

    /// Logs every class that is due, with the number of its requests since the last line.
    pub(crate) fn log_due(&self, now: Instant) {
        for (outcome, class) in Outcome::ALL.iter().zip(&self.0) {
            let due = class.lock().due(now);
            if let Some((number, reason)) = due {
                log(*outcome, number, reason);
            }
        }
    }
}

impl Class {
    /// Returns the count and the reason to log if the class is due, and resets them.
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
        // Failures of the gateway, not of the client. Missing keys are logged where they are fetched, and are normal for a moment
        // after each start.
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
