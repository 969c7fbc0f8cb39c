//! What a gateway makes of replies: the rules of `crates/spend/src/memcached/client.rs`, with its types.

use super::fleet::{Fleet, Key};
use super::route::Reply;
use postern_spend::memcached::OnLoss;
use postern_spend::{Hint, Spend, Unknown};
use postern_token::{UnixSeconds, Window};

/// The clock of the simulation begins here, so that gateways may be behind.
const EPOCH: u64 = 1_000_000;

/// What a command came to, as the gateway sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Back(Reply),
    /// Nothing in time: the record may be there or may yet come.
    Never,
}

/// What follows from an `add`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Verdict(Result<Spend, Unknown>),
    /// Reads whose attempt the record is.
    AskWhose,
}

/// Whether a token of this key is taken at all, by this gateway's clock.
pub(crate) fn takes(key: &Key, second: u64, behind: u64) -> Result<(), Unknown> {
    let now = UnixSeconds((EPOCH + second).saturating_sub(behind));
    let at = |second: u64| UnixSeconds(EPOCH.saturating_add(second));
    let window = Window { not_before: UnixSeconds(0), not_after: at(key.not_after) };
    if !window.contains(now) || now >= at(key.expires) {
        return Err(Unknown::EpochRetired);
    }
    Ok(())
}

/// What a gateway that knows of a loss of the key's records does.
pub(crate) fn permits(lost: bool, policy: OnLoss) -> Result<(), Unknown> {
    match (lost, policy) {
        (true, OnLoss::Refuse) => Err(Unknown::RecordsLost),
        (true, OnLoss::Retire) => Err(Unknown::EpochRetired),
        _ => Ok(()),
    }
}

pub(crate) fn hint(came: Came) -> Hint {
    match came {
        Came::Back(Reply::Hit(_)) => Hint::Spent,
        _ => Hint::NotFound,
    }
}

pub(crate) fn verdict(came: Came, lost: bool, policy: OnLoss) -> After {
    After::Verdict(match came {
        // The record was written before a loss that has been noticed since: it may be the second one.
        Came::Back(Reply::Stored) => permits(lost, policy).map(|()| Spend::Admitted),
        Came::Back(Reply::NotStored) => Ok(Spend::AlreadySpent),
        Came::Back(Reply::Error) => Err(Unknown::Rejected),
        Came::Back(Reply::Hit(_) | Reply::Miss) => Err(Unknown::Garbled),
        Came::Never => return After::AskWhose,
    })
}

/// After an `add` without an answer.
pub(crate) fn whose(came: Came, attempt: u8, fleet: &Fleet, lost: bool) -> Result<Spend, Unknown> {
    match came {
        Came::Back(Reply::Hit(other)) if other != attempt => Ok(Spend::AlreadySpent),
        Came::Back(Reply::Hit(_)) if fleet.ask_whose => {
            permits(lost, fleet.on_loss).map(|()| Spend::Admitted)
        }
        _ => Err(Unknown::TimedOut),
    }
}
