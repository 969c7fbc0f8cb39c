//! The store commands of one call, and where the time of each exchange went.

mod stall;

use crate::memcached::world::instant;
pub use postern_tcp_info::TcpFacts;
use smallvec::SmallVec;
pub use stall::Stall;
use std::time::{Duration, Instant};

/// The most exchanges of one call that are listed. A check and a spend make two; a command without a reply adds a
/// third, and endpoints that are down add more.
const MOST: usize = 4;

/// What one call waited for, and its exchanges with the store. Entries accumulate, so a retry counts too, and one
/// exchange log can serve several calls.
///
/// Some 700 bytes without anything on the heap; a new one is made by writing three of its fields.
#[derive(Clone, Debug, Default)]
pub struct ExchangeLog {
    /// The wait for a connection of the pool.
    pub pool: Duration,
    /// Never more than its inline room, whose last place is for one that is under way and will be left out.
    exchanges: SmallVec<[Exchange; MOST + 1]>,
}

/// A command of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// The hint.
    Get,
    /// The verdict.
    Add,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// `STORED`.
    Stored,
    /// `NOT_STORED`.
    NotStored,
    /// A record was read.
    Hit,
    /// No record was found.
    Miss,
    /// `SERVER_ERROR`.
    ServerError,
    /// No reply in time.
    TimedOut,
    /// The connection broke, or what came was no reply.
    Broken,
    /// Not sent: no connection, a full queue, no free connection in time.
    Refused,
    /// Sent, and decided by other replicas before its reply came.
    Overtaken,
}

impl Verb {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Get, Self::Add];
}

impl Ended {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Stored,
        Self::NotStored,
        Self::Hit,
        Self::Miss,
        Self::ServerError,
        Self::TimedOut,
        Self::Broken,
        Self::Refused,
        Self::Overtaken,
    ];

    /// Whether a command of this kind can end so.
    #[must_use]
    pub const fn can_follow(self, verb: Verb) -> bool {
        match self {
            Self::Stored | Self::NotStored | Self::Overtaken => matches!(verb, Verb::Add),
            Self::Hit | Self::Miss => matches!(verb, Verb::Get),
            Self::ServerError | Self::TimedOut | Self::Broken | Self::Refused => true,
        }
    }
}

/// One command and its reply, or one attempt at it: a retry through another endpoint is an exchange of its own.
///
/// Each moment is there when it came, in this order: `began`, `written`, `first_byte`, `finished`.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The command.
    pub verb: Verb,
    /// How it ended. [`Ended::TimedOut`] also when the caller gave up first.
    pub ended: Ended,
    /// The endpoint, as an index of [`Health::endpoints`](crate::memcached::Health::endpoints). `None` when nothing was
    /// sent because no endpoint was up.
    pub endpoint: Option<u8>,
    /// When the call began.
    pub began: Instant,
    /// When the last byte of the command, and of those that were sent in one write with it, had been given to the
    /// kernel. `None` when it was not, or when the reply came before that.
    pub written: Option<Instant>,
    /// When the first byte of the reply was read. Of pipelined commands: when the read returned that brought the reply
    /// to its end.
    pub first_byte: Option<Instant>,
    /// When the caller had the reply or the error.
    pub finished: Instant,
    /// The connection as the kernel saw it when the reply was read or given up: only of an exchange that took longer
    /// than [`Options::slow`](crate::memcached::Options::slow), and only over TCP.
    pub tcp: Option<TcpFacts>,
}

impl ExchangeLog {
    /// The exchanges, in the order in which they ended: at most four, the first ones.
    #[must_use]
    pub fn exchanges(&self) -> &[Exchange] {
        &self.exchanges[..self.exchanges.len().min(MOST)]
    }

    /// An exchange begins now.
    pub(crate) fn begin(&mut self, verb: Verb, endpoint: Option<u8>) -> Entry<'_> {
        let began = instant();
        // In its place from the beginning: copying it there would cost more than all the rest.
        self.exchanges.push(Exchange {
            verb,
            ended: Ended::TimedOut,
            endpoint,
            began,
            written: None,
            first_byte: None,
            finished: began,
            tcp: None,
        });
        Entry { log: self, began }
    }

    /// Adds the exchanges of another log, which were under way meanwhile.
    pub(crate) fn append(&mut self, other: Self) {
        self.pool += other.pool;
        self.exchanges.extend(other.exchanges.into_iter().take(MOST));
        self.keep_most();
    }

    fn keep_most(&mut self) {
        self.exchanges.truncate(MOST);
    }
}

/// An exchange that is under way. It has its end when this is dropped, and so also when the caller gives up half-way.
pub(crate) struct Entry<'a> {
    log: &'a mut ExchangeLog,
    /// When the call began.
    pub(crate) began: Instant,
}

impl Entry<'_> {
    pub(crate) fn end(mut self, ended: Ended) {
        self.change(|exchange| exchange.ended = ended);
    }

    /// Records how long the caller waited for a connection.
    pub(crate) fn waited_for_pool(&mut self, time: Duration) {
        self.log.pool += time;
    }

    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Exchange)) {
        // Always there: the last is this one until the entry is dropped.
        if let Some(exchange) = self.log.exchanges.last_mut() {
            change(exchange);
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.change(|exchange| exchange.finished = instant());
        self.log.keep_most();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(number: usize) -> ExchangeLog {
        let mut log = ExchangeLog::default();
        for index in 0..number {
            log.begin(Verb::Add, u8::try_from(index).ok()).end(Ended::Stored);
        }
        log
    }

    fn endpoints(log: &ExchangeLog) -> Vec<Option<u8>> {
        log.exchanges().iter().map(|exchange| exchange.endpoint).collect()
    }

    #[test]
    fn the_first_are_listed() {
        let log = log(MOST + 2);
        assert_eq!(endpoints(&log), [Some(0), Some(1), Some(2), Some(3)]);
        assert!(!log.exchanges.spilled(), "on the heap");
    }

    #[test]
    fn a_caller_that_gives_up_leaves_an_entry() {
        let mut log = ExchangeLog::default();
        drop(log.begin(Verb::Get, Some(1)));
        let [exchange] = log.exchanges() else { panic!("{log:?}") };
        assert_eq!((exchange.verb, exchange.ended), (Verb::Get, Ended::TimedOut));
        assert!(exchange.written.is_none() && exchange.finished >= exchange.began);
    }

    #[test]
    fn an_exchange_log_stays_small() {
        assert!(size_of::<ExchangeLog>() <= 768, "{}", size_of::<ExchangeLog>());
    }
}
