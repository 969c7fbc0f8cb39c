//! A log of the store commands of one call, and of the time each exchange took.

/// Declares an enum whose values are words for a metric label.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$meaning])* $value,)* }

        impl $name {
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$value),*];
            pub const WORDS: [&str; Self::ALL.len()] = [$($word),*];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                Self::WORDS[self as usize]
            }
        }
    };
}

use crate::memcached::world::instant;
pub use postern_net::TcpFacts;
use smallvec::SmallVec;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The largest number of listed exchanges per call. A check and a spend make two; a command without a reply adds a third, and
/// endpoints that are down add more.
const MOST: usize = 4;

/// A log of the exchanges of one call with the store, and of its waits. Entries accumulate, so a retry counts too, and one log
/// can serve several calls.
#[derive(Clone, Debug, Default)]
pub struct ExchangeLog {
    /// The time spent waiting for a pooled connection.
    pub pool: Duration,
    /// At most the inline capacity. The last slot holds an exchange in progress that will not be listed.
    exchanges: SmallVec<[Exchange; MOST + 1]>,
}

words! {
    Verb {
        /// `get`: the hint.
        Get = "get",
        /// `add`: the verdict.
        Add = "add",
    }
}

words! {
    Ended {
        Stored = "stored",
        NotStored = "not_stored",
        Hit = "hit",
        Miss = "miss",
        ServerError = "server_error",
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
    pub verb: Verb,
    /// The outcome. [`Ended::TimedOut`] also if the caller gave up first.
    pub ended: Ended,
    /// The endpoint, as an index into [`Health::endpoints`](crate::memcached::Health::endpoints). `None` if nothing was sent
    /// because no endpoint was up.
    pub endpoint: Option<u8>,
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

/// Linux delays an acknowledgement by 40 ms. Seen from outside the delay varies: timers fire late, never early, and the delay
/// may have begun slightly before the write was recorded here.
const DELAYED_ACK: RangeInclusive<Duration> = Duration::from_millis(35)..=Duration::from_millis(60);
/// With a longer round trip, 40 ms may be the network.
const NEAR: Duration = Duration::from_millis(5);

words! {
    /// The most probable cause of a slow exchange. An estimate from the timestamps, not a proof: of two causes the longer one is
    /// reported.
    Stall {
        /// Waiting to be written: for a pooled connection, behind other commands, or for space in the socket.
        Queue = "queue",
        /// A segment that TCP retransmitted. The count covers the connection's lifetime, so a connection that once lost a segment
        /// stays suspect.
        Retransmission = "retransmission",
        /// An acknowledgement that the peer delayed after a small write (Nagle's algorithm): about 40 ms from the write to the
        /// reply, with a near peer and no loss.
        DelayedAck = "delayed_ack",
        /// The peer, or a server behind it, was slow.
        Server = "server",
        /// The caller: the reply had arrived, and this process was busy. For a pooled connection, also the rest of a reply that
        /// came in pieces.
        Caller = "caller",
    }
}

impl Exchange {
    #[must_use]
    pub fn took(&self) -> Duration {
        self.finished.saturating_duration_since(self.began)
    }

    /// Returns the cause if the exchange took longer than `slow` (or has TCP facts, which are read for slow exchanges only).
    ///
    /// The longest of three intervals decides: start to write, write to reply, reply to caller. Without TCP facts, as over a
    /// Unix socket, delays in the peer's kernel count as the server's.
    #[must_use]
    pub fn stall(&self, slow: Duration) -> Option<Stall> {
        if self.took() <= slow && self.tcp.is_none() {
            return None;
        }
        let Some(written) = self.written else { return Some(Stall::Queue) };
        let replied = self.first_byte.unwrap_or(self.finished);
        let queued = written.saturating_duration_since(self.began);
        let answered = replied.saturating_duration_since(written);
        let handed_over = self.finished.saturating_duration_since(replied);
        if queued > answered.max(handed_over) {
            return Some(Stall::Queue);
        }
        if handed_over > answered {
            return Some(Stall::Caller);
        }
        Some(match self.tcp {
            Some(tcp) if tcp.retransmits > 0 => Stall::Retransmission,
            // The shortest round trip: delayed acknowledgements inflate the smoothed one.
            Some(tcp) if tcp.rtt_min < NEAR && DELAYED_ACK.contains(&answered) => Stall::DelayedAck,
            _ => Stall::Server,
        })
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

    const SLOW: Duration = Duration::from_millis(20);
    const FACTS: TcpFacts = TcpFacts {
        rtt: Duration::from_millis(40),
        rtt_var: Duration::from_millis(1),
        rtt_min: Duration::from_micros(50),
        retransmits: 0,
        unacknowledged: 0,
        lost: 0,
        unsent: 0,
    };

    /// An exchange with its moments in milliseconds since the start.
    fn exchange(written: Option<u64>, first_byte: Option<u64>, finished: u64) -> Exchange {
        let began = Instant::now();
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        Exchange {
            verb: Verb::Add,
            ended: Ended::Stored,
            endpoint: Some(0),
            began,
            written: written.map(at),
            first_byte: first_byte.map(at),
            finished: at(finished),
            tcp: Some(FACTS),
        }
    }

    fn stall(written: Option<u64>, first_byte: Option<u64>, finished: u64, tcp: TcpFacts) -> Stall {
        Exchange { tcp: Some(tcp), ..exchange(written, first_byte, finished) }.stall(SLOW).unwrap()
    }

    #[test]
    fn what_is_not_slow_waited_for_nothing() {
        let quick = Exchange { tcp: None, ..exchange(Some(0), Some(20), 20) };
        assert_eq!(quick.stall(SLOW), None);
        assert_eq!(quick.stall(Duration::from_millis(19)), Some(Stall::Server));
    }

    #[test]
    fn forty_milliseconds_to_a_near_peer_are_a_delayed_acknowledgement() {
        for (replied, expected) in [
            (34, Stall::Server),
            (35, Stall::DelayedAck),
            (44, Stall::DelayedAck),
            (60, Stall::DelayedAck),
            (61, Stall::Server),
        ] {
            assert_eq!(stall(Some(0), Some(replied), replied, FACTS), expected, "{replied} ms");
        }
        let far = TcpFacts { rtt_min: NEAR, ..FACTS };
        assert_eq!(stall(Some(0), Some(44), 44, far), Stall::Server);
        let unknown = Exchange { tcp: None, ..exchange(Some(0), Some(44), 44) };
        assert_eq!(unknown.stall(SLOW), Some(Stall::Server));
    }

    #[test]
    fn a_segment_sent_again_comes_first() {
        let lossy = TcpFacts { retransmits: 1, ..FACTS };
        assert_eq!(stall(Some(0), Some(44), 44, lossy), Stall::Retransmission);
        assert_eq!(stall(Some(0), None, 200, lossy), Stall::Retransmission);
        // But not if the command was never written, or the reply had arrived long before.
        assert_eq!(stall(None, None, 200, lossy), Stall::Queue);
        assert_eq!(stall(Some(0), Some(1), 200, lossy), Stall::Caller);
    }

    #[test]
    fn the_longest_span_decides() {
        assert_eq!(stall(Some(50), Some(90), 91, FACTS), Stall::Queue);
        assert_eq!(stall(Some(20), Some(120), 140, FACTS), Stall::Server);
        assert_eq!(stall(Some(20), Some(40), 140, FACTS), Stall::Caller);
        assert_eq!(stall(Some(1), None, 100, FACTS), Stall::Server);
    }

    #[test]
    fn names_are_no_two_alike() {
        let names: std::collections::HashSet<_> = Stall::ALL.iter().map(|stall| stall.as_str()).collect();
        assert_eq!(names.len(), Stall::ALL.len());
        assert!(Stall::ALL.iter().enumerate().all(|(index, stall)| index == *stall as usize));
    }
}
