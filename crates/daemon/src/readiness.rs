//! What has to be ready before a process may be sent traffic, and why it is not.

use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::watch;

/// What has to be ready before a process may be sent traffic. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Awaiting>);

#[derive(Debug, Default)]
struct Awaiting {
    gates: RwLock<Vec<Awaited>>,
    /// How often someone has looked.
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
    /// It works, but needs attention.
    Degraded(String),
    NotReady(String),
}

impl Readiness {
    /// An empty list, which is ready.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds something to wait for. It is not ready ("starting") until its gate is set.
    #[must_use]
    pub fn gate(&self, name: &'static str) -> Gate {
        let mut gates = self.0.gates.write();
        gates.push(Awaited { name, state: State::NotReady("starting".to_owned()) });
        Gate { readiness: self.clone(), index: gates.len() - 1 }
    }

    /// What is not ready, as "name: reason"; nothing when all is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        self.list(|state| match state {
            State::NotReady(reason) => Some(reason),
            State::Ready | State::Degraded(_) => None,
        })
    }

    /// What works but is degraded, as "name: reason".
    #[must_use]
    pub fn degraded(&self) -> Vec<String> {
        self.list(|state| match state {
            State::Degraded(reason) => Some(reason),
            State::Ready | State::NotReady(_) => None,
        })
    }

    /// Changes when someone looks at `/readyz`: a daemon that finds out only when it is used may then find out.
    #[must_use]
    pub fn looks(&self) -> watch::Receiver<u64> {
        self.0.looked.subscribe()
    }

    /// Someone looks, as `/readyz` does.
    pub fn look(&self) {
        self.0.looked.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn list(&self, reason: impl Fn(&State) -> Option<&String>) -> Vec<String> {
        let gates = self.0.gates.read();
        let named = |gate: &Awaited| reason(&gate.state).map(|reason| format!("{}: {reason}", gate.name));
        gates.iter().filter_map(named).collect()
    }
}

/// One thing that has to be ready.
#[derive(Clone, Debug)]
pub struct Gate {
    readiness: Readiness,
    index: usize,
}

impl Gate {
    /// It is ready.
    pub fn set_ready(&self) {
        self.set(State::Ready);
    }

    /// It works, but needs attention: `/readyz` stays 200 and gives the reason.
    pub fn set_degraded(&self, reason: impl Into<String>) {
        self.set(State::Degraded(reason.into()));
    }

    /// It is not, for a reason that an operator can act on. The reason is public to anyone who reaches the admin
    /// listener: no destination, client or token belongs in it.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        self.set(State::NotReady(reason.into()));
    }

    fn set(&self, state: State) {
        if let Some(gate) = self.readiness.0.gates.write().get_mut(self.index) {
            gate.state = state;
        }
    }
}
