//! Defects that are put back to show that the simulation finds them: mended ones of the store, and some of the callers that
//! the simulation has of its own.

use postern_spend::memcached::{Undo, undo};
use std::cell::Cell;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Of the store that ships.
    Store(Undo),
    /// A gateway asks for tokens although its store can spend none.
    AsksInVain,
    /// An agent sends a gateway one token after the other, whatever it answers.
    SendsInVain,
    /// An agent does not notice that a token's connection broke.
    ForgetsTokens,
}

thread_local!(static PUT_BACK: Cell<Option<Defect>> = const { Cell::new(None) });

/// From now on runs on this thread have this defect, or none.
pub(crate) fn put_back(defect: Option<Defect>) {
    PUT_BACK.set(defect);
    undo(match defect {
        Some(Defect::Store(defect)) => Some(defect),
        _ => None,
    });
}

pub(crate) fn is_put_back(defect: Defect) -> bool {
    PUT_BACK.get() == Some(defect)
}
