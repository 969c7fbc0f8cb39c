//! What a slow exchange waited for, inferred from its times and the kernel's facts.

use super::Exchange;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The 40 ms for which Linux delays an acknowledgement, as they look from outside: timers fire late, never early, and a
/// delay of 40 ms may have begun a little before the write was recorded here.
const DELAYED_ACK: RangeInclusive<Duration> = Duration::from_millis(35)..=Duration::from_millis(60);
/// With a longer way to the peer, 40 ms may be the way.
const NEAR: Duration = Duration::from_millis(5);

/// What a slow exchange most probably waited for. A reading of the moments, and not a proof: where two things held it
/// up, the longer one is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stall {
    /// Its turn to be written: for a connection of the pool, behind other commands, or for room in the socket.
    Queue,
    /// A segment that TCP had to send again. The count is the connection's since it began, so one that lost a segment
    /// once is suspected ever after.
    Retransmission,
    /// An acknowledgement that the other side of a small write held back (Nagle's algorithm): about 40 ms from the
    /// write to the reply, to a peer that is near and lost nothing.
    DelayedAck,
    /// The peer: it, or what is behind it, took its time.
    Server,
    /// The caller itself: the reply was there, and this process was busy with something else. Of a pooled connection
    /// also the rest of a reply that came in pieces.
    Caller,
}

impl Stall {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Queue, Self::Retransmission, Self::DelayedAck, Self::Server, Self::Caller];

    /// One snake_case word, for a metric's label or an attribute of a span.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Retransmission => "retransmission",
            Self::DelayedAck => "delayed_ack",
            Self::Server => "server",
            Self::Caller => "caller",
        }
    }
}

impl Exchange {
    /// How long the caller waited.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.finished.saturating_duration_since(self.began)
    }

    /// What it waited for, if it took longer than `slow` (or has the facts that are read of slow ones alone).
    ///
    /// The longest of the three intervals decides: up to the write, from there to the reply, and from the reply to the
    /// caller. Without facts, as over a Unix socket, what the peer's kernel did is put down to the server.
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
            // The shortest round trip: the delayed acknowledgements themselves drive the smoothed one up.
            Some(tcp) if tcp.rtt_min < NEAR && DELAYED_ACK.contains(&answered) => Stall::DelayedAck,
            _ => Stall::Server,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TcpFacts;
    use crate::memcached::{Ended, Verb};
    use std::time::Instant;

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

    /// An exchange with its moments in milliseconds from the beginning.
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
        // But not when the command was not even written, or the reply long there.
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
