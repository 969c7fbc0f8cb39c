//! The events of a run, in order, one line per event. They are the checker's only input.

use super::fault::Micros;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<Vec<Event>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Micros,
    pub(crate) happening: Happening,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A fault begins. `server` is the affected server, if it is only one.
    Fault { number: usize, server: Option<usize>, text: String },
    /// A fault ends.
    Healed { number: usize, server: Option<usize> },
    /// Records are missing from this event on: those of this server, or of any server.
    Lost { server: Option<usize> },
    /// A router considers a server down.
    Down { router: usize, server: usize },
    /// A router uses a server again.
    Up { router: usize, server: usize },
    /// A gateway requests tokens of a key from a caller. `cannot` is the reason for which the store could spend none of them.
    Asked { holder: usize, gateway: usize, key: usize, cannot: Option<&'static str> },
    /// The issuer signs a token, valid until `ends`.
    Issued { token: usize, holder: usize, ends: Micros },
    /// A token is presented by its holder or, if `holder` is `None`, by another caller who has seen it.
    Presented { attempt: usize, token: usize, gateway: usize, holder: Option<usize> },
    /// A presentation is answered, or its caller has left.
    Ended { attempt: usize, token: usize, gateway: usize, verdict: Verdict },
    /// A token is in its holder's wallet at the end.
    Kept { token: usize },
    /// A holder has no token, and has none signed because of too many new challenges.
    Refrains { holder: usize },
    /// An agent's request gets no tunnel, or its user leaves.
    Unserved,
    /// A holder drops a token that it has not sent.
    GivenUp { token: usize, reason: &'static str },
    /// A holder's own sums, at the end.
    Counted { holder: usize, sums: Sums },
    /// A gateway starts or stops refusing every token of a key. `refuses` is the reason.
    Says { gateway: usize, key: usize, refuses: Option<&'static str> },
    /// A gateway's readiness changes. `refuses` is the reason for which the gateway is not ready.
    Serves { gateway: usize, refuses: Option<&'static str> },
    /// All faults are over from this event on, and fresh tokens should be admitted.
    Settled,
}

/// Holder of tokens that follow no agent's rules: they are presented at once, at any gateway.
pub(crate) const STRANGERS: usize = 0;

/// Counts of tokens by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) issued: u64,
    /// Tokens answered with 200.
    pub(crate) spent: u64,
    /// Tokens that were not sent.
    pub(crate) held: u64,
    /// Lost tokens by reason.
    pub(crate) lost: BTreeMap<&'static str, u64>,
}

impl Sums {
    pub(crate) fn lose(&mut self, reason: &'static str) {
        *self.lost.entry(reason).or_default() += 1;
    }

    pub(crate) fn all_lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// `true` if issued equals spent, held and lost.
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

/// Answer to one presentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    Spent,
    Refused(&'static str),
    /// The caller left, or the gateway's process ended.
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
            Happening::Refrains { holder } => {
                write!(f, "holder {holder} has no token signed for the challenge")
            }
            Happening::Unserved => write!(f, "a request gets no tunnel"),
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
