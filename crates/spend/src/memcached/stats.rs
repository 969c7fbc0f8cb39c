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
#[derive(Debug, Default)]
pub struct Totals {
    commands: [[AtomicU64; Ended::ALL.len()]; Verb::ALL.len()],
    /// Replays answered from this process's cache.
    pub cache_hits: AtomicU64,
    /// Commands that found no free connection in the pool.
    pub pool_waits: AtomicU64,
    /// Marks that this process planted and that came on offer.
    pub marks_planted: AtomicU64,
    /// Tokens that were spent for a mark other than the one on offer, whatever the verdict.
    pub older_marks: AtomicU64,
}

impl Totals {
    pub(crate) fn command(&self, command: &Command, result: &Result<Reply, Failure>) {
        self.commands[Verb::of(command) as usize][Ended::of(result) as usize].fetch_add(1, Relaxed);
    }

    /// Counts an `add` whose reply was not waited for.
    pub(crate) fn overtaken(&self) {
        self.commands[Verb::Add as usize][Ended::Overtaken as usize].fetch_add(1, Relaxed);
    }

    #[must_use]
    pub fn commands(&self, verb: Verb, ended: Ended) -> u64 {
        self.commands[verb as usize][ended as usize].load(Relaxed)
    }
}
