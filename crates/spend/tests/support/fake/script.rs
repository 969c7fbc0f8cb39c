//! A test's instructions to the fake, and their outcome.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A step of the fake's reaction to one command.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes; `{key}` is the key that was asked for.
    Send(Vec<u8>),
    /// Sends what an honest server would.
    Honest,
    /// Sends these bytes one at a time, with a pause before each.
    Slowly(Vec<u8>, Duration),
    Pause(Duration),
    /// Waits for [`Fake::go_on`].
    Wait,
    /// Answers nothing more on this connection.
    Silence,
    /// Sends these bytes again and again, for as long as they are taken.
    Endlessly(Vec<u8>),
    /// Closes the connection.
    Close,
    /// Closes it with a reset.
    Reset,
}

pub fn send(bytes: &[u8]) -> Step {
    Step::Send(bytes.to_vec())
}

/// The default reply for spent records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    AtOnce,
    /// After other tasks had many turns, now and then a millisecond later.
    Late,
    /// Cut anywhere, with pauses between.
    InPieces,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Add,
    Version,
    Settings,
}

/// The outcome of a planned misbehaviour.
#[derive(Debug, Default)]
pub struct Acted {
    pub(super) begun: AtomicBool,
    /// The client closed the connection.
    pub(super) dropped: AtomicBool,
    /// The client used the connection again.
    pub(super) reused: AtomicBool,
    pub(super) pushed: AtomicU64,
    /// Every step was done.
    pub(super) done: AtomicBool,
}

impl Acted {
    pub fn begun(&self) -> bool {
        self.begun.load(SeqCst)
    }

    pub fn dropped(&self) -> bool {
        self.dropped.load(SeqCst)
    }

    pub fn reused(&self) -> bool {
        self.reused.load(SeqCst)
    }

    pub fn done(&self) -> bool {
        self.done.load(SeqCst)
    }

    /// Bytes that were taken from the fake for this one command.
    pub fn pushed(&self) -> u64 {
        self.pushed.load(SeqCst)
    }
}

pub(super) struct Plan {
    pub(super) verb: Verb,
    /// Commands of this verb that are answered honestly before.
    pub(super) after: usize,
    /// True if an `add` takes effect all the same.
    pub(super) writes: bool,
    pub(super) steps: Vec<Step>,
    pub(super) acted: Arc<Acted>,
}

pub(super) type Records = Arc<Mutex<HashMap<String, Vec<u8>>>>;
pub(super) type Elsewhere = (Selection, Records);
/// Selects keys.
pub(super) type Selection = fn(&str) -> bool;

pub(super) struct State {
    pub(super) records: Records,
    /// Keys of a server that is down: a `get` is told as a miss, as some routers do, an `add` fails.
    pub(super) away: Mutex<Option<Selection>>,
    /// Every command for records is answered by an error.
    pub(super) fails: AtomicBool,
    /// Keys that lie elsewhere, and where.
    pub(super) elsewhere: Option<Elsewhere>,
    pub(super) plans: Mutex<VecDeque<Plan>>,
    /// The names of the sentinels of all marks that were planted here.
    pub(super) sentinels: Mutex<HashSet<String>>,
    pub(super) manner: Mutex<Manner>,
    pub(super) accepted: AtomicUsize,
    pub(super) open: AtomicUsize,
    /// The most connections at once.
    pub(super) limit: AtomicUsize,
    pub(super) go_on: tokio::sync::Semaphore,
    /// Something came that is neither of the commands the store speaks.
    pub(super) confused: AtomicBool,
}
