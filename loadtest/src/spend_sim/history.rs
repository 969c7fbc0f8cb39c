//! What happened in a run, in order: a line an event. The checker reads it, and knows nothing else.

use super::network::Micros;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<Vec<Event>>>);

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Micros,
    pub(crate) happening: Happening,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A fault begins or ends: of this server, if it is one of a server.
    Fault {
        number: usize,
        server: Option<usize>,
        text: String,
    },
    Healed {
        number: usize,
        server: Option<usize>,
    },
    /// From here on records are missing where they were: those of this server, or of any.
    Lost {
        server: Option<usize>,
    },
    /// A router takes a server for down, or for up again.
    Down {
        router: usize,
        server: usize,
    },
    Up {
        router: usize,
        server: usize,
    },
    Presented {
        attempt: usize,
        token: usize,
        gateway: usize,
    },
    Ended {
        attempt: usize,
        token: usize,
        gateway: usize,
        verdict: Verdict,
    },
    /// What a gateway says of a key changes: why it refuses every token of it, if it does.
    Says {
        gateway: usize,
        key: usize,
        refuses: Option<&'static str>,
    },
    /// Whether a gateway expects verdicts changes.
    Serves {
        gateway: usize,
        refuses: Option<&'static str>,
    },
    /// From here on every fault is over, and fresh tokens should be admitted.
    Settled,
}

/// The answer to one presentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// `though_lost`: the gateway knew that records of the key were lost.
    Admitted {
        though_lost: bool,
    },
    Spent,
    Refused(&'static str),
    /// The caller went away, or the gateway did.
    Dropped,
}

impl History {
    pub(crate) fn add(&self, at: Micros, happening: Happening) {
        self.0.lock().push(Event { at, happening });
    }

    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10.3} ", self.at as f64 / 1_000.0)?;
        match &self.happening {
            Happening::Fault { number, text, .. } => write!(f, "fault {number}: {text}"),
            Happening::Healed { number, .. } => write!(f, "fault {number} is over"),
            Happening::Lost { server: Some(server) } => write!(f, "records of server {server} are lost"),
            Happening::Lost { server: None } => write!(f, "records are lost"),
            Happening::Down { router, server } => write!(f, "router {router} takes server {server} for down"),
            Happening::Up { router, server } => write!(f, "router {router} uses server {server} again"),
            Happening::Presented { attempt, token, gateway } => {
                write!(f, "attempt {attempt}: token {token} at gateway {gateway}")
            }
            Happening::Ended { attempt, token, gateway, verdict } => {
                write!(f, "attempt {attempt}: token {token} at gateway {gateway}: {verdict:?}")
            }
            Happening::Says { gateway, key, refuses } => match refuses {
                Some(reason) => write!(f, "gateway {gateway} refuses key {key}: {reason}"),
                None => write!(f, "gateway {gateway} admits key {key}"),
            },
            Happening::Serves { gateway, refuses } => match refuses {
                Some(reason) => write!(f, "gateway {gateway} is not ready: {reason}"),
                None => write!(f, "gateway {gateway} is ready"),
            },
            Happening::Settled => write!(f, "settled"),
        }
    }
}
