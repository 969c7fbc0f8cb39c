//! Readiness gates that log their changes.

use postern_daemon::readiness::Gate;
use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};
use tokio::sync::watch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Ready,
    Degraded(Vec<Reason>),
    NotReady(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    /// Unlike `text`, the same as long as only numbers change.
    kind: String,
    pub(crate) text: String,
}

impl Reason {
    pub(crate) fn new(kind: impl Into<String>, text: impl Into<String>) -> Self {
        Self { kind: kind.into(), text: text.into() }
    }
}

impl Condition {
    /// Returns the condition with these reasons; ready without any.
    pub(crate) fn of(reasons: Vec<Reason>) -> Self {
        if reasons.is_empty() { Self::Ready } else { Self::Degraded(reasons) }
    }

    /// Returns the kinds of its reasons; one that is empty for the other conditions.
    fn kinds(&self) -> Vec<String> {
        match self {
            Self::Degraded(reasons) => reasons.iter().map(|reason| reason.kind.clone()).collect(),
            Self::Ready | Self::NotReady(_) => vec![String::new()],
        }
    }
}

/// Minimum duration of a reason before it is logged, so starts and short interruptions are not.
const SETTLED: Duration = Duration::from_secs(1);

/// `true` while a gate is ready or degraded.
pub(crate) type Served = watch::Receiver<bool>;

/// A condition and the kind of one of its reasons.
type Seen = (Discriminant<Condition>, String);

/// A gate that logs each change, and each further reason, once.
pub(crate) struct LoggedGate {
    name: &'static str,
    gate: Gate,
    served: watch::Sender<bool>,
    /// Logged since the condition was another one.
    logged: HashSet<Seen>,
    /// Present reasons, and the time at which each began.
    present: HashMap<Seen, Instant>,
}

impl LoggedGate {
    pub(crate) fn new(name: &'static str, gate: Gate) -> Self {
        let ready = (discriminant(&Condition::Ready), String::new());
        let served = watch::Sender::new(false);
        Self { name, gate, served, logged: HashSet::from([ready]), present: HashMap::new() }
    }

    pub(crate) fn served(&self) -> Served {
        self.served.subscribe()
    }

    /// Sets the gate. Logs a condition if one of its reasons is new and has lasted for [`SETTLED`].
    pub(crate) fn set(&mut self, condition: Condition) {
        let is_new = self.is_new(&condition, Instant::now());
        let (name, serves) = (self.name, !matches!(condition, Condition::NotReady(_)));
        match condition {
            Condition::Ready => {
                if is_new {
                    tracing::info!("{name}: in order again");
                }
                self.gate.set_ready();
            }
            Condition::Degraded(reasons) => {
                let reasons: Vec<String> = reasons.into_iter().map(|reason| reason.text).collect();
                let reason = reasons.join("; ");
                if is_new {
                    tracing::warn!("degraded: {name}: {reason}");
                }
                self.gate.set_degraded(reason);
            }
            Condition::NotReady(reason) => {
                if is_new {
                    tracing::warn!("not ready: {name}: {reason}");
                }
                self.gate.set_not_ready(reason);
            }
        }
        self.served.send_if_modified(|served| std::mem::replace(served, serves) != serves);
    }

    /// Returns `true` if the condition is to be logged, which counts as done.
    fn is_new(&mut self, condition: &Condition, now: Instant) -> bool {
        let of = discriminant(condition);
        let seen: HashSet<Seen> = condition.kinds().into_iter().map(|kind| (of, kind)).collect();
        self.present.retain(|reason, _| seen.contains(reason));
        for reason in &seen {
            self.present.entry(reason.clone()).or_insert(now);
        }
        let is_settled = |since: &Instant| now.saturating_duration_since(*since) >= SETTLED;
        let mut settled = self.present.iter().filter(|(_, since)| is_settled(since));
        let is_new = settled.any(|(reason, _)| !self.logged.contains(reason));
        if is_new {
            self.logged.retain(|(logged, _)| *logged == of);
            self.logged.extend(seen);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_daemon::readiness::Readiness;

    #[test]
    fn each_kind_of_reason_is_logged_once_while_a_gate_is_degraded() {
        let mut gate = LoggedGate::new("store", Readiness::default().gate("store"));
        let degraded = |kinds: &[&str]| {
            Condition::of(kinds.iter().map(|kind| Reason::new(*kind, "for a number of reasons")).collect())
        };
        let mut now = Instant::now();
        let mut logs = |condition: Condition| {
            let at_once = gate.is_new(&condition, now);
            now += SETTLED;
            let later = gate.is_new(&condition, now);
            assert!(!at_once || !later);
            at_once || later
        };
        assert!(!logs(degraded(&[])), "it is ready at first");
        assert!(logs(degraded(&["away"])));
        assert!(!logs(degraded(&["away"])));
        assert!(logs(degraded(&["away", "filling"])));
        assert!(!logs(degraded(&["filling"])), "a reason less is no news");
        assert!(!logs(degraded(&["away", "filling"])));
        assert!(logs(Condition::NotReady("all".to_owned())));
        assert!(logs(degraded(&["away"])));
        assert!(logs(Condition::Ready));
        assert!(!gate.is_new(&degraded(&["away"]), now), "it may be short");
        assert!(!gate.is_new(&Condition::Ready, now + SETTLED));
    }
}
