//! A log of the store commands of one call, and of the time each exchange took.

/// Declares an enum whose values are words for a metric label.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$meaning])* $value,)* }

        impl $name {
            /// All values.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$value),*];
            /// All values, as words.
            pub const WORDS: [&str; Self::ALL.len()] = [$($word),*];

            /// Returns the value as a word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                Self::WORDS[self as usize]
            }
        }
    };
}

mod stall;

use crate::memcached::world::instant;
pub use postern_tcp_info::TcpFacts;
use smallvec::SmallVec;
pub use stall::Stall;
use std::time::{Duration, Instant};

/// The largest number of listed exchanges per call. A check and a spend make two; a command without a reply adds a third, and
/// endpoints that are down add more.
const MOST: usize = 4;

/// A log of the exchanges of one call with the store, and of its waits. Entries accumulate, so a retry counts too, and one log
/// can serve several calls.
///
/// About 700 bytes without any heap allocation; creating one writes three of its fields.
#[derive(Clone, Debug, Default)]
pub struct ExchangeLog {
    /// The time spent waiting for a pooled connection.
    pub pool: Duration,
    /// At most the inline capacity. The last slot holds an exchange in progress that will not be listed.
    exchanges: SmallVec<[Exchange; MOST + 1]>,
}

words! {
    /// A command to the store.
    Verb {
        /// `get`: the hint.
        Get = "get",
        /// `add`: the verdict.
        Add = "add",
    }
}

words! {
    /// The outcome of a command.
    Ended {
        /// `STORED`.
        Stored = "stored",
        /// `NOT_STORED`.
        NotStored = "not_stored",
        /// A record was read.
        Hit = "hit",
        /// No record was found.
        Miss = "miss",
        /// `SERVER_ERROR`.
        ServerError = "server_error",
        /// No reply arrived in time.
        TimedOut = "timed_out",
        /// The connection broke, or the bytes received were not a reply.
        Broken = "broken",
        /// Not sent: no connection, a full queue, or no free connection in time.
        Refused = "refused",
        /// Sent, but other replicas decided before the reply arrived.
        Overtaken = "overtaken",
    }
}

impl Ended {
    /// Returns `true` if a command of this kind can end this way.
    #[must_use]
    pub const fn can_follow(self, verb: Verb) -> bool {
        match self {
            Self::Stored | Self::NotStored | Self::Overtaken => matches!(verb, Verb::Add),
            Self::Hit | Self::Miss => matches!(verb, Verb::Get),
            Self::ServerError | Self::TimedOut | Self::Broken | Self::Refused => true,
        }
    }
}

/// One command and its reply, or one attempt: a retry through another endpoint is a separate exchange.
///
/// Recorded moments are in this order: `began`, `written`, `first_byte`, `finished`.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The command.
    pub verb: Verb,
    /// The outcome. [`Ended::TimedOut`] also if the caller gave up first.
    pub ended: Ended,
    /// The endpoint, as an index into [`Health::endpoints`](crate::memcached::Health::endpoints). `None` if nothing was sent
    /// because no endpoint was up.
    pub endpoint: Option<u8>,
    /// The start of the call.
    pub began: Instant,
    /// The moment at which the kernel had taken the last byte of the command and of the others in the same write. `None` if it
    /// never did, or if the reply came first.
    pub written: Option<Instant>,
    /// The moment at which the first byte of the reply was read. For pipelined commands: the moment at which the read that
    /// completed the reply returned.
    pub first_byte: Option<Instant>,
    /// The moment at which the caller had the reply or the error.
    pub finished: Instant,
    /// The kernel's view of the connection when the reply was read or given up: only for an exchange that took longer than
    /// [`Options::slow`](crate::memcached::Options::slow), and only over TCP.
    pub tcp: Option<TcpFacts>,
}

impl ExchangeLog {
    /// Returns the first exchanges, at most four, in the order in which they ended.
    #[must_use]
    pub fn exchanges(&self) -> &[Exchange] {
        &self.exchanges[..self.exchanges.len().min(MOST)]
    }

    pub(crate) fn begin(&mut self, verb: Verb, endpoint: Option<u8>) -> Entry<'_> {
        let began = instant();
        // Builds the exchange in its final place: copying it there would cost more than everything else here.
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

    /// Appends the exchanges of another log, which ran at the same time.
    pub(crate) fn append(&mut self, other: Self) {
        self.pool += other.pool;
        self.exchanges.extend(other.exchanges.into_iter().take(MOST));
        self.exchanges.truncate(MOST);
    }
}

/// An exchange in progress. It ends when this is dropped, so also when the caller gives up half-way.
pub(crate) struct Entry<'a> {
    log: &'a mut ExchangeLog,
    pub(crate) began: Instant,
}

impl Entry<'_> {
    pub(crate) fn end(mut self, ended: Ended) {
        self.change(|exchange| exchange.ended = ended);
    }

    /// Adds the time that the caller waited for a connection.
    pub(crate) fn waited_for_pool(&mut self, time: Duration) {
        self.log.pool += time;
    }

    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Exchange)) {
        // Always present: the last exchange is this one until the entry is dropped.
        if let Some(exchange) = self.log.exchanges.last_mut() {
            change(exchange);
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.change(|exchange| exchange.finished = instant());
        self.log.exchanges.truncate(MOST);
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
