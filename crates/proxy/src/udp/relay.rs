//! A relay between a stream of capsules and a connected UDP socket.
//!
//! It holds no datagram but those that one side did not take at once: of a burst from the target, up to 64 KiB that the
//! client did not take, the rest is dropped; towards the target, a part of one capsule, and of a read that needs many system calls
//! what is sent in the next turn, up to 64 KiB. While the client takes nothing, the socket is not read, and the kernel drops what
//! its buffer does not hold. So a slow side loses datagrams, and costs no more memory than that.

use super::capsule::{Decoder, MAX_PAYLOAD, Malformed};
use super::socket::{Bursts, Datagrams, is_final};
use crate::idle::Idle;
use crate::relay::{Meter, Pace, Relayed, TunnelEnd};
use crate::reset::Reset;
use postern_telemetry::metrics::ReadableCounter;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Most bytes of capsules that wait for the client, unless one capsule alone has more.
pub(super) const KEPT: usize = 64 << 10;
/// Size of a read from the client, in bytes.
const READ: usize = 64 << 10;
/// Reads and bursts of one turn, after which other tunnels have theirs.
const TURN: usize = 4;
/// System calls for one read of the client's bytes, which may have 21,845 empty datagrams: the rest is sent in the next turn.
const SENDS: usize = 32;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        read: vec![0; READ].into_boxed_slice(),
        bursts: Bursts::new(),
        capsules: Vec::new(),
        ends: Vec::new(),
    });
}

/// Buffers of a thread, which every relay uses for the length of a turn.
struct Scratch {
    read: Box<[u8]>,
    bursts: Bursts,
    capsules: Vec<u8>,
    /// Ends of the capsules in `capsules`.
    ends: Vec<usize>,
}

/// Carries datagrams until the client ends the stream, a side breaks, or nothing moves for `idle`.
pub struct UdpRelay<C: Reset> {
    client: C,
    datagrams: Datagrams,
    decoder: Decoder,
    /// Bytes of the client that came with its request, or behind the last system call of a turn.
    unsent: Vec<u8>,
    /// Capsules that the client has not taken, from index `written` on.
    pending: Vec<u8>,
    written: usize,
    needs_flush: bool,
    /// `true` once the client has ended its side.
    is_ending: bool,
    /// `true` after a regular end: dropping the relay then resets nothing.
    over: bool,
    up: u64,
    down: u64,
    pace: Option<[Box<Pace>; 2]>,
    last_moved: Instant,
    idle: Idle,
    meter: Arc<DatagramMeter>,
}

/// Reasons why a stream ends irregularly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The client sent what is no capsule, or only a part of one.
    Malformed,
    /// A side is gone.
    Broken,
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<io::Error> for Fault {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// Counts of datagrams, updated while they are relayed.
#[derive(Debug)]
pub struct DatagramMeter {
    pub bytes: Arc<Meter>,
    pub up: ReadableCounter,
    pub down: ReadableCounter,
    /// Datagrams that a side did not take, towards it.
    pub dropped: Meter,
}

impl<C: Reset> Drop for UdpRelay<C> {
    fn drop(&mut self) {
        if !self.over {
            self.client.reset();
        }
    }
}

impl<C: Reset> UdpRelay<C> {
    /// Returns the bytes relayed so far, for a relay that is abandoned.
    pub fn cut(&self) -> Relayed {
        self.relayed(TunnelEnd::Cut)
    }

    fn relayed(&self, ended: TunnelEnd) -> Relayed {
        Relayed { ended, up: self.up, down: self.down }
    }
}

impl<C: AsyncRead + AsyncWrite + Reset + Unpin> UdpRelay<C> {
    /// Creates a relay. `early` has the client's bytes that came with its request. Await it inside a tokio runtime.
    pub fn new(
        client: C,
        datagrams: Datagrams,
        early: &[u8],
        idle: Duration,
        meter: &Arc<DatagramMeter>,
    ) -> Self {
        Self {
            client,
            datagrams,
            decoder: Decoder::new(MAX_PAYLOAD),
            unsent: early.to_vec(),
            pending: Vec::new(),
            written: 0,
            needs_flush: false,
            is_ending: false,
            over: false,
            up: 0,
            down: 0,
            pace: None,
            last_moved: Instant::now(),
            idle: Idle::new(idle),
            meter: Arc::clone(meter),
        }
    }

    /// Limits each direction to `bytes_a_second`, after one second's worth at once.
    #[must_use]
    pub fn paced(mut self, bytes_a_second: Option<u64>) -> Self {
        self.pace = bytes_a_second.map(|rate| [Pace::new(rate), Pace::new(rate)]);
        self
    }

    /// Sends the client's datagrams to the target. Becomes ready at the client's end.
    fn poll_up(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<(), Fault>> {
        for _ in 0..TURN {
            ready!(self.datagrams.poll_writable(cx))?;
            if !self.unsent.is_empty() {
                let unsent = std::mem::take(&mut self.unsent);
                self.send(&unsent, &mut scratch.bursts)?;
                continue;
            }
            let most = match &mut self.pace {
                Some([up, _]) => ready!(up.poll_allowance(cx)).min(READ),
                None => READ,
            };
            let mut buffer = ReadBuf::new(&mut scratch.read[..most]);
            ready!(Pin::new(&mut self.client).poll_read(cx, &mut buffer))?;
            let read = buffer.filled().len();
            if read == 0 {
                let is_whole = self.decoder.is_between();
                return Poll::Ready(if is_whole { Ok(()) } else { Err(Fault::Malformed) });
            }
            if let Some([up, _]) = &mut self.pace {
                up.spend(read);
            }
            self.send(&scratch.read[..read], &mut scratch.bursts)?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn send(&mut self, mut bytes: &[u8], bursts: &mut Bursts) -> Result<(), Fault> {
        let mut burst = self.datagrams.burst(bursts);
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
        self.up += tally.bytes;
        if tally.sent > 0 {
            self.last_moved = Instant::now();
        }
        self.meter.bytes.up.add(tally.bytes);
        self.meter.up.add(tally.sent);
        self.meter.dropped.up.add(tally.dropped);
        malformed.map_or(Ok(()), |malformed| Err(malformed.into()))
    }

    /// Sends the target's datagrams to the client. Becomes ready when the client has what it gets after its end.
    fn poll_down(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<(), Fault>> {
        for _ in 0..TURN {
            ready!(self.poll_pending(cx))?;
            if self.is_ending {
                return Pin::new(&mut self.client).poll_shutdown(cx).map_err(Fault::from);
            }
            if let Some([_, down]) = &mut self.pace {
                ready!(down.poll_allowance(cx));
            }
            self.pending = ready!(self.poll_burst(cx, scratch))?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Receives a burst and writes it; returns what the client did not take, up to [`KEPT`] bytes.
    fn poll_burst(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<Vec<u8>, Fault>> {
        let Scratch { bursts, capsules, ends, .. } = scratch;
        capsules.clear();
        ends.clear();
        let (mut datagrams, mut bytes) = (0, 0);
        let each = |length: usize, capsules: &[u8]| {
            datagrams += 1;
            bytes += length as u64;
            ends.push(capsules.len());
        };
        if let Err(error) = ready!(self.datagrams.poll_receive(cx, bursts, capsules, each)) {
            let ended = if is_final(&error) { Err(Fault::Broken) } else { Ok(Vec::new()) };
            return Poll::Ready(ended);
        }
        let mut taken = 0;
        while taken < capsules.len() {
            match Pin::new(&mut self.client).poll_write(cx, &capsules[taken..]) {
                Poll::Ready(written) => taken += self.wrote(written)?,
                Poll::Pending => break,
            }
        }
        // A capsule that the client has begun to take must be completed.
        let begun = ends.iter().copied().find(|&end| end >= taken).unwrap_or(taken);
        let kept = ends.iter().copied().rfind(|&end| end <= taken + KEPT).unwrap_or(taken).max(begun);
        let dropped = ends.iter().filter(|&&end| end > kept).count() as u64;
        if let Some([_, down]) = &mut self.pace {
            down.spend(kept);
        }
        self.down += bytes;
        self.last_moved = Instant::now();
        self.meter.bytes.down.add(bytes);
        self.meter.down.add(datagrams - dropped);
        self.meter.dropped.down.add(dropped);
        Poll::Ready(Ok(capsules[taken..kept].to_vec()))
    }

    /// Writes what the client did not take before.
    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        while self.written < self.pending.len() {
            let written = ready!(Pin::new(&mut self.client).poll_write(cx, &self.pending[self.written..]));
            self.written += self.wrote(written)?;
        }
        if self.written > 0 {
            // Freed instead of kept: most tunnels are idle most of the time.
            self.pending = Vec::new();
            self.written = 0;
        }
        if self.needs_flush && Pin::new(&mut self.client).poll_flush(cx)?.is_ready() {
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn wrote(&mut self, written: io::Result<usize>) -> Result<usize, Fault> {
        match written? {
            0 => Err(Fault::Broken),
            written => {
                self.needs_flush = true;
                Ok(written)
            }
        }
    }

    fn end(&mut self, fault: Fault) -> Relayed {
        if fault == Fault::Malformed {
            self.client.reset_as_malformed();
        }
        self.relayed(TunnelEnd::Broken)
    }
}

impl<C: AsyncRead + AsyncWrite + Reset + Unpin> Future for UdpRelay<C> {
    type Output = Relayed;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Relayed> {
        let relay = &mut *self;
        if relay.datagrams.poll_failed(cx).is_ready() {
            return Poll::Ready(relay.end(Fault::Broken));
        }
        let ended = SCRATCH.with_borrow_mut(|scratch| {
            if !relay.is_ending {
                match relay.poll_up(cx, scratch) {
                    Poll::Ready(Ok(())) => relay.is_ending = true,
                    Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                    Poll::Pending => {}
                }
            }
            relay.poll_down(cx, scratch)
        });
        let ended = match ended {
            Poll::Ready(Ok(())) => TunnelEnd::Finished,
            Poll::Ready(Err(fault)) => return Poll::Ready(relay.end(fault)),
            Poll::Pending => {
                ready!(relay.idle.poll_since(relay.last_moved, cx));
                // A client that has not taken all of a capsule, or does not take the end, sees a reset.
                let is_whole = relay.pending.is_empty();
                if !is_whole || !Pin::new(&mut relay.client).poll_shutdown(cx).is_ready() {
                    return Poll::Ready(relay.relayed(TunnelEnd::Idle));
                }
                TunnelEnd::Idle
            }
        };
        relay.over = true;
        Poll::Ready(relay.relayed(ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::capsule::encode;
    use metrics::Counter;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::net::UdpSocket;

    fn meter() -> Arc<DatagramMeter> {
        let counter = || ReadableCounter::new(Counter::noop());
        let meter = || Meter { up: counter(), down: counter() };
        Arc::new(DatagramMeter { bytes: Arc::new(meter()), up: counter(), down: counter(), dropped: meter() })
    }

    /// Returns a relay, its client's end with room for `room` bytes, its target, and the address that the target answers to.
    async fn relay(room: usize) -> (UdpRelay<DuplexStream>, DuplexStream, UdpSocket) {
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let datagrams = Datagrams::connect(target.local_addr().unwrap(), None).unwrap();
        let (near, far) = duplex(room);
        let mut first = Vec::new();
        encode(b"first", &mut first);
        let mut relay = UdpRelay::new(near, datagrams, &first, Duration::from_secs(600), &meter());
        let received = async {
            let (_, from) = target.recv_from(&mut [0; 16]).await.unwrap();
            target.connect(from).await.unwrap();
        };
        tokio::select! {
            () = received => {}
            relayed = &mut relay => panic!("{relayed:?}"),
        }
        (relay, far, target)
    }

    /// Polls a relay once.
    async fn turn(relay: &mut UdpRelay<DuplexStream>) {
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut *relay).poll(cx))).await;
        assert!(polled.is_pending());
        tokio::task::yield_now().await;
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_costs_one_burst_and_then_gets_whole_datagrams() {
        let (mut relay, mut client, target) = relay(1000).await;
        for _ in 0..2000 {
            let _ = target.send(&[7; 1200]).await; // what the kernel does not take is lost
            turn(&mut relay).await;
            assert!(relay.pending.capacity() <= KEPT + 2 * 1204, "{}", relay.pending.capacity());
        }
        let reading = async {
            let (mut decoder, mut room, mut found) = (Decoder::new(MAX_PAYLOAD), [0; 1000], 0);
            while found < 10 {
                let read = client.read(&mut room).await.unwrap();
                let mut input = &room[..read];
                while let Some(payload) = decoder.next(&mut input).unwrap() {
                    assert_eq!(payload, [7; 1200]);
                    found += 1;
                }
            }
        };
        tokio::select! {
            () = reading => {}
            relayed = &mut relay => panic!("{relayed:?}"),
        }
    }

    /// An empty datagram is three bytes of a capsule, and a system call.
    #[tokio::test]
    async fn a_turn_makes_few_system_calls_however_small_the_datagrams_are() {
        let (mut relay, mut client, _target) = relay(READ).await;
        client.write_all(&[0, 1, 0].repeat(READ / 3)).await.unwrap();
        let (began, mut most) = (relay.meter.up.total(), 0);
        while relay.meter.up.total() - began < 1000 {
            let before = relay.meter.up.total();
            turn(&mut relay).await;
            most = most.max(relay.meter.up.total() - before);
        }
        assert!(most <= 132, "{most} datagrams");
    }

    #[tokio::test]
    async fn a_datagram_longer_than_what_is_kept_is_completed() {
        let (mut relay, mut client, target) = relay(1000).await;
        let long = vec![9; 65_507];
        target.send(&long).await.unwrap();
        target.send(b"after").await.unwrap();
        let reading = async {
            let mut head = [0; 6];
            client.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; long.len()];
            client.read_exact(&mut payload).await.unwrap();
            assert!(payload == long);
        };
        tokio::select! {
            () = reading => {}
            relayed = &mut relay => panic!("{relayed:?}"),
        }
    }

    #[tokio::test]
    async fn an_idle_relay_has_no_buffer() {
        let (mut relay, mut client, target) = relay(64 << 10).await;
        target.send(&[7; 1200]).await.unwrap();
        let mut room = [0; 1204];
        tokio::select! {
            read = client.read_exact(&mut room) => assert_eq!(read.unwrap(), 1204),
            relayed = &mut relay => panic!("{relayed:?}"),
        }
        turn(&mut relay).await;
        assert_eq!((relay.pending.capacity(), relay.unsent.capacity()), (0, 0));
        assert!(size_of_val(&relay) <= 640, "{}", size_of_val(&relay));
    }

    #[tokio::test]
    async fn the_clients_end_is_answered_by_one() {
        let (relay, mut client, _target) = relay(1000).await;
        client.shutdown().await.unwrap();
        let relayed = relay.await;
        assert_eq!((relayed.ended, relayed.up), (TunnelEnd::Finished, 5));
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_relay_ends_after_its_time() {
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let datagrams = Datagrams::connect(target.local_addr().unwrap(), None).unwrap();
        let (near, _far) = duplex(1000);
        let began = Instant::now();
        let relayed = UdpRelay::new(near, datagrams, &[], Duration::from_secs(120), &meter()).await;
        assert_eq!((relayed.ended, began.elapsed().as_secs()), (TunnelEnd::Idle, 120));
    }
}
