//! What happened in a run, in order: a line an event. The checker reads it, and knows nothing else.

use super::fault::Micros;
use parking_lot::Mutex;
use std::collections::BTreeMap;
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
    /// A gateway asks a caller for tokens of a key. `cannot`: why the store could spend none of them then.
    Asked {
        holder: usize,
        gateway: usize,
        key: usize,
        cannot: Option<&'static str>,
    },
    /// The issuer has signed a token, good until `ends`.
    Issued {
        token: usize,
        holder: usize,
        ends: Micros,
    },
    /// Its holder presents a token, or another caller, who has seen it.
    Presented {
        attempt: usize,
        token: usize,
        gateway: usize,
        holder: Option<usize>,
    },
    Ended {
        attempt: usize,
        token: usize,
        gateway: usize,
        verdict: Verdict,
    },
    /// A token is in its holder's wallet at the end.
    Kept {
        token: usize,
    },
    /// A token was dropped by its holder, without having been sent.
    GivenUp {
        token: usize,
        reason: &'static str,
    },
    /// A holder's own sums, at the end.
    Counted {
        holder: usize,
        sums: Sums,
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

/// The holder of tokens that follow no agent's rules: whoever took them presents them at once, at any gateway.
pub(crate) const STRANGERS: usize = 0;

/// What became of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) issued: u64,
    /// Answered 200.
    pub(crate) spent: u64,
    /// Not sent.
    pub(crate) held: u64,
    /// By reason.
    pub(crate) lost: BTreeMap<&'static str, u64>,
}

impl Sums {
    pub(crate) fn lose(&mut self, reason: &'static str) {
        *self.lost.entry(reason).or_default() += 1;
    }

    /// Tokens that are lost, for whatever reason.
    pub(crate) fn all_lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Issued is spent and held and lost.
    pub(crate) fn add_up(&self) -> bool {
        self.issued == self.spent + self.held + self.all_lost()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.issued += other.issued;
        self.spent += other.spent;
        self.held += other.held;
        for (reason, count) in &other.lost {
            *self.lost.entry(reason).or_default() += count;
        }
    }
}

/// The answer to one presentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
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
            Happening::Asked { holder, gateway, key, cannot } => {
                write!(f, "gateway {gateway} asks holder {holder} for a token of key {key}")?;
                cannot.map_or(Ok(()), |reason| write!(f, ", which cannot be spent: {reason}"))
            }
            Happening::Issued { token, holder, .. } => {
                write!(f, "token {token} is issued to holder {holder}")
            }
            Happening::Presented { attempt, token, gateway, holder } => {
                write!(f, "attempt {attempt}: token {token} at gateway {gateway}")?;
                holder.map_or(Ok(()), |holder| write!(f, " by its holder {holder}"))
            }
            Happening::Kept { token } => write!(f, "token {token} is in its wallet"),
            Happening::GivenUp { token, reason } => write!(f, "token {token} is given up: {reason}"),
            Happening::Counted { holder, sums } => write!(f, "holder {holder} counts {sums:?}"),
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
