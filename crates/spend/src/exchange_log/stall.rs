//! The cause of a slow exchange, inferred from its timestamps and the kernel's TCP facts.

use super::Exchange;
use std::ops::RangeInclusive;
use std::time::Duration;

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
    /// Returns the time that the caller waited.
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
