//! Counters since the store was opened, for the daemon to publish. They have no metric names and no labels.

use super::protocol::{Command, Failure, Reply};
use crate::Unknown;
use crate::exchange_log::{Ended, Verb};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

impl Verb {
    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::Get(_) => Self::Get,
            Command::Add { .. } => Self::Add,
        }
    }
}

impl Ended {
    pub(crate) fn of(result: &Result<Reply, Failure>) -> Self {
        match result {
            Ok(Reply::Stored) => Self::Stored,
            Ok(Reply::NotStored) => Self::NotStored,
            Ok(Reply::Hit(_)) => Self::Hit,
            Ok(Reply::Miss) => Self::Miss,
            Ok(Reply::ServerError) => Self::ServerError,
            Err(Failure::NotSent(_)) => Self::Refused,
            Err(Failure::Sent(Unknown::TimedOut)) => Self::TimedOut,
            Err(Failure::Sent(_)) => Self::Broken,
        }
    }
}

/// The counters of one store, shared by all its users.
#[derive(Default)]
pub(crate) struct Counters {
    commands: [[AtomicU64; Ended::ALL.len()]; Verb::ALL.len()],
    pub(crate) cache_hits: AtomicU64,
    pub(crate) pool_waits: AtomicU64,
    pub(crate) marks_planted: AtomicU64,
    pub(crate) older_marks: AtomicU64,
}

impl Counters {
    pub(crate) fn command(&self, command: &Command, result: &Result<Reply, Failure>) {
        self.commands[Verb::of(command) as usize][Ended::of(result) as usize].fetch_add(1, Relaxed);
    }

    /// Counts an `add` whose reply was not waited for.
    pub(crate) fn overtaken(&self) {
        self.commands[Verb::Add as usize][Ended::Overtaken as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            commands: self
                .commands
                .each_ref()
                .map(|counts| counts.each_ref().map(|count| count.load(Relaxed))),
            cache_hits: self.cache_hits.load(Relaxed),
            pool_waits: self.pool_waits.load(Relaxed),
            marks_planted: self.marks_planted.load(Relaxed),
            older_marks: self.older_marks.load(Relaxed),
        }
    }
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    commands: [[u64; Ended::ALL.len()]; Verb::ALL.len()],
    /// Replays answered from this process's cache.
    pub cache_hits: u64,
    /// Commands that found no free connection in the pool.
    pub pool_waits: u64,
    /// Marks that this process planted and that came on offer.
    pub marks_planted: u64,
    /// Tokens that were spent for a mark other than the one on offer, whatever the verdict.
    pub older_marks: u64,
}

impl Totals {
    /// Returns the number of commands that ended this way.
    #[must_use]
    pub fn commands(&self, verb: Verb, ended: Ended) -> u64 {
        self.commands[verb as usize][ended as usize]
    }
}
