//! From a client's stream to the target: capsules are read, and their datagrams sent in bursts.

use super::turn::{DatagramMeter, Fault, PACKET, READ, Scratch, TURN, Turn};
use crate::relay::Pace;
use crate::udp::capsule::{Decoder, MAX_PAYLOAD};
use crate::udp::socket::{Bursts, Datagrams};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

/// System calls for one read of the client's bytes, which may have 21,845 empty datagrams: the rest is sent in the next turn.
const SENDS: usize = 32;

pub(super) struct Up {
    decoder: Decoder,
    /// Bytes of the client that came with its request, or behind the last system call of a turn.
    pub(super) unsent: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) pace: Option<Box<Pace>>,
    pub(super) last_moved: Instant,
}

impl Up {
    pub(super) fn new(early: &[u8]) -> Self {
        let decoder = Decoder::new(MAX_PAYLOAD);
        Self { decoder, unsent: early.to_vec(), bytes: 0, pace: None, last_moved: Instant::now() }
    }

    /// Sends the client's datagrams to the target. Becomes ready at the client's end.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncRead + Unpin),
        turn: &mut Turn<'_>,
    ) -> Poll<Result<(), Fault>> {
        let Turn { datagrams, meter, scratch: Scratch { read: room, bursts, .. } } = turn;
        for _ in 0..TURN {
            ready!(datagrams.poll_writable(cx))?;
            let most = match &mut self.pace {
                Some(pace) => ready!(pace.poll_allowance(cx)).min(READ),
                None => READ,
            };
            if !self.unsent.is_empty() {
                let unsent = std::mem::take(&mut self.unsent);
                self.send(&unsent, datagrams, bursts, meter)?;
                continue;
            }
            let mut buffer = ReadBuf::new(&mut room[..most]);
            ready!(Pin::new(&mut *client).poll_read(cx, &mut buffer))?;
            let read = buffer.filled().len();
            if read == 0 {
                let is_whole = self.decoder.is_between();
                return Poll::Ready(if is_whole { Ok(()) } else { Err(Fault::Malformed) });
            }
            if let Some(pace) = &mut self.pace {
                pace.spend(read);
            }
            self.send(&room[..read], datagrams, bursts, meter)?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn send(
        &mut self,
        mut bytes: &[u8],
        datagrams: &Datagrams,
        bursts: &mut Bursts,
        meter: &DatagramMeter,
    ) -> Result<(), Fault> {
        let mut burst = datagrams.burst(bursts);
        let malformed = loop {
            if burst.sends >= SENDS {
                break None;
            }
            match self.decoder.next(&mut bytes) {
                Ok(Some(payload)) => burst.add(payload)?,
                Ok(None) => break None,
                Err(malformed) => break Some(malformed),
            }
        };
        // What came before a malformed capsule is sent.
        let tally = burst.end()?;
        self.unsent = bytes.to_vec();
        self.bytes += tally.bytes;
        if let Some(pace) = &mut self.pace {
            pace.spend(PACKET * (tally.sent + tally.dropped) as usize);
        }
        if tally.sent > 0 {
            self.last_moved = Instant::now();
        }
        meter.bytes.up.add(tally.bytes);
        meter.up.add(tally.sent);
        meter.dropped.up.add(tally.dropped);
        malformed.map_or(Ok(()), |malformed| Err(malformed.into()))
    }
}
