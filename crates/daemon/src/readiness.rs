//! Conditions that must hold before a process receives traffic, and the reasons for those that do not.

use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::watch;

/// The conditions for traffic. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Awaiting>);

#[derive(Debug, Default)]
struct Awaiting {
    gates: RwLock<Vec<Awaited>>,
    /// Number of queries of the state, such as `/readyz`.
    looked: watch::Sender<u64>,
}

#[derive(Debug)]
struct Awaited {
    name: &'static str,
    state: State,
}

#[derive(Debug)]
enum State {
    Ready,
    /// Works, but needs attention.
    Degraded(String),
    NotReady(String),
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition. It is not ready ("starting") until its gate is set.
    #[must_use]
    pub fn gate(&self, name: &'static str) -> Gate {
        let mut gates = self.0.gates.write();
        gates.push(Awaited { name, state: State::NotReady("starting".to_owned()) });
        Gate { readiness: self.clone(), index: gates.len() - 1 }
    }

    /// Returns the conditions that are not ready, as "name: reason"; empty if all are ready.
    pub fn reasons(&self) -> Vec<String> {
        self.list(|state| match state {
            State::NotReady(reason) => Some(reason),
            State::Ready | State::Degraded(_) => None,
        })
    }

    /// Returns the conditions that are degraded, as "name: reason".
    pub fn degraded(&self) -> Vec<String> {
        self.list(|state| match state {
            State::Degraded(reason) => Some(reason),
            State::Ready | State::NotReady(_) => None,
        })
    }

    /// Returns a receiver that changes on each query of the state, such as `/readyz`, so that a daemon can test what it otherwise
    /// notices only in use.
    pub fn looks(&self) -> watch::Receiver<u64> {
        self.0.looked.subscribe()
    }

    /// Records a query of the state, such as `/readyz`.
    pub fn look(&self) {
        self.0.looked.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn list(&self, reason: impl Fn(&State) -> Option<&String>) -> Vec<String> {
        let gates = self.0.gates.read();
        let named = |gate: &Awaited| reason(&gate.state).map(|reason| format!("{}: {reason}", gate.name));
        gates.iter().filter_map(named).collect()
    }
}

/// Handle that sets the state of one condition.
#[derive(Clone, Debug)]
pub struct Gate {
    readiness: Readiness,
    index: usize,
}

impl Gate {
    pub fn set_ready(&self) {
        self.set(State::Ready);
    }

    /// Marks the condition degraded: it works, but needs attention. `/readyz` stays 200 and contains the reason.
    pub fn set_degraded(&self, reason: impl Into<String>) {
        self.set(State::Degraded(reason.into()));
    }

    /// Marks the condition not ready, for a reason that an operator can act on. The reason is public to anyone who reaches the
    /// admin listener: it must not contain a destination, client or token.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        self.set(State::NotReady(reason.into()));
    }

    fn set(&self, state: State) {
        if let Some(gate) = self.readiness.0.gates.write().get_mut(self.index) {
            gate.state = state;
        }
    }
}
