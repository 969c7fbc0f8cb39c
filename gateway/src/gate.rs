//! The gates of readiness: what each reports, and when its changes are logged.

use postern_daemon::readiness::Gate;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The condition that a gate reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Ready,
    Degraded(String),
    NotReady(String),
}

/// How long a condition has to last before it is logged, so that starts and short interruptions are not.
const SETTLED: Duration = Duration::from_secs(1);

/// Whether something can serve: ready or degraded.
pub(crate) type Served = watch::Receiver<bool>;

/// A gate whose changes are logged, once each.
pub(crate) struct LoggedGate {
    name: &'static str,
    gate: Gate,
    served: watch::Sender<bool>,
    /// The kind that was logged last; the present kind, and since when.
    logged: Kind,
    present: (Kind, Instant),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ready,
    Degraded,
    NotReady,
}

impl LoggedGate {
    pub(crate) fn new(name: &'static str, gate: Gate) -> Self {
        let served = watch::Sender::new(false);
        Self { name, gate, served, logged: Kind::Ready, present: (Kind::Ready, Instant::now()) }
    }

    pub(crate) fn served(&self) -> Served {
        self.served.subscribe()
    }

    /// Sets the gate, and logs a condition that has lasted.
    pub(crate) fn set(&mut self, condition: Condition) {
        let now = Instant::now();
        let kind = match &condition {
            Condition::Ready => Kind::Ready,
            Condition::Degraded(_) => Kind::Degraded,
            Condition::NotReady(_) => Kind::NotReady,
        };
        if self.present.0 != kind {
            self.present = (kind, now);
        }
        if self.logged != kind && now.saturating_duration_since(self.present.1) >= SETTLED {
            self.logged = kind;
            let name = self.name;
            match &condition {
                Condition::Ready => tracing::info!("{name}: in order again"),
                Condition::Degraded(reason) => tracing::warn!("degraded: {name}: {reason}"),
                Condition::NotReady(reason) => tracing::warn!("not ready: {name}: {reason}"),
            }
        }
        match condition {
            Condition::Ready => self.gate.set_ready(),
            Condition::Degraded(reason) => self.gate.set_degraded(reason),
            Condition::NotReady(reason) => self.gate.set_not_ready(reason),
        }
        let serves = kind != Kind::NotReady;
        self.served.send_if_modified(|served| std::mem::replace(served, serves) != serves);
    }
}
