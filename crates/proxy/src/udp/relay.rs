//! A relay between a stream of capsules and a connected UDP socket.
//!
//! It holds no datagram but those that one side did not take at once: of a burst from the target, up to 64 KiB that the
//! client did not take, the rest is dropped; towards the target, a part of one capsule, and of a read that needs many system calls
//! what is sent in the next turn, up to 64 KiB. While the client takes nothing, the socket is not read, and the kernel drops what
//! its buffer does not hold. So a slow side loses datagrams, and costs no more memory than that.

mod down;
mod turn;
mod up;

use super::socket::Datagrams;
use crate::idle::Idle;
use crate::relay::{Pace, Relayed, TunnelEnd};
use crate::reset::Reset;
use down::Down;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
pub use turn::DatagramMeter;
pub(super) use turn::KEPT;
use turn::{Fault, SCRATCH, Turn};
use up::Up;

/// Carries datagrams until the client ends the stream, a side breaks, or nothing moves for `idle`.
pub struct UdpRelay<C: Reset> {
    client: C,
    datagrams: Datagrams,
    up: Up,
    down: Down,
    /// `true` once the client has ended its side.
    is_ending: bool,
    /// `true` after a regular end: dropping the relay then resets nothing.
    over: bool,
    idle: Idle,
    meter: Arc<DatagramMeter>,
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
        Relayed { ended, up: self.up.bytes, down: self.down.bytes }
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
            up: Up::new(early),
            down: Down::new(),
            is_ending: false,
            over: false,
            idle: Idle::new(idle),
            meter: Arc::clone(meter),
        }
    }

    /// Limits each direction to `bytes_a_second`, after one second's worth at once. Each datagram counts as a packet, so the
    /// rate also bounds empty ones.
    #[must_use]
    pub fn paced(mut self, bytes_a_second: Option<u64>) -> Self {
        self.up.pace = bytes_a_second.map(Pace::new);
        self.down.pace = bytes_a_second.map(Pace::new);
        self
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
            let turn = &mut Turn { datagrams: &relay.datagrams, meter: &relay.meter, scratch };
            if !relay.is_ending {
                match relay.up.poll(cx, &mut relay.client, turn) {
                    Poll::Ready(Ok(())) => relay.is_ending = true,
                    Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                    Poll::Pending => {}
                }
            }
            relay.down.poll(cx, &mut relay.client, relay.is_ending, turn)
        });
        let ended = match ended {
            Poll::Ready(Ok(())) => TunnelEnd::Finished,
            Poll::Ready(Err(fault)) => return Poll::Ready(relay.end(fault)),
            Poll::Pending => {
                let last_moved = relay.up.last_moved.max(relay.down.last_moved);
                ready!(relay.idle.poll_since(last_moved, cx));
                // A client that has not taken all of a capsule, or does not take the end, sees a reset.
                let is_whole = relay.down.pending.is_empty();
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
mod tests;
