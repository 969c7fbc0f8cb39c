//! Defects that can be reintroduced to prove that the simulation finds them: fixed ones of the store, and some of the
//! simulation's own callers.

use postern_spend::memcached::{Undo, undo};
use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A fixed defect of the store that ships.
    Store(Undo),
    /// A gateway requests tokens although its store can spend none.
    AsksInVain,
    /// An agent sends a gateway one token after another, whatever the answers are.
    SendsInVain,
    /// An agent does not count a token whose connection broke as lost.
    ForgetsTokens,
    /// An agent has tokens signed for four new marks a day at most.
    FourMarksADay,
}

thread_local!(static PUT_BACK: Cell<Option<Defect>> = const { Cell::new(None) });

/// Sets the defect of the following runs on this thread.
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
