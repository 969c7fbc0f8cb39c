//! A relay of bytes in both directions between two streams, with half-close and an idle limit, and without a buffer per relay.
//!
//! A direction that ends early (a side broke, or the relay is dropped) is passed on as a reset, never as an end: the reader of
//! half a file must detect that it is incomplete.
//!
//! Bytes are read into one buffer that all tunnels of a thread share, and written immediately. Only what the writer did not take
//! is kept, so an idle tunnel holds no buffer, and a busy one reads 64 KiB at a time.

mod half;
#[cfg(target_os = "linux")]
mod pipe;
#[cfg(not(target_os = "linux"))]
#[path = "relay/no_pipe.rs"]
mod pipe;

use crate::idle::Idle;
use crate::reset::{self, Reset};
use half::Half;
pub(crate) use half::Pace;
use postern_telemetry::metrics::ReadableCounter;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};

/// Size of the shared buffer, in bytes. Larger reads need fewer system calls.
const SCRATCH_LEN: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_LEN].into_boxed_slice());
}

/// Time limit of one direction after the other one broke, so that received data is still delivered. For example, a server that
/// refuses an upload answers and closes while the client is still sending.
const AFTER_BREAK: Duration = Duration::from_secs(10);

/// Copies between `client` and `target` until both directions have ended or nothing moves for `idle`. `early` has the client's
/// bytes that came with its request, which are sent first. Drop it promptly when it is over: dropping may pass on a side's end.
pub struct Relay<C: Reset, T: Reset> {
    client: C,
    target: T,
    up: Half,
    down: Half,
    broken: bool,
    /// Set when the relay ends in a break: written data is still in flight.
    delivering: Option<Delivering>,
    /// `true` after a regular end, by both sides or by silence: dropping the relay then resets nothing.
    over: bool,
    last_moved: Instant,
    idle: Option<Idle>,
    meter: Option<Arc<Meter>>,
    /// `true` if the end of one direction is the end of both.
    ends_together: bool,
}

/// A break that waits until the other side has received the data before it: a reset discards data in flight.
struct Delivering {
    until: Instant,
    tick: Pin<Box<Sleep>>,
}

/// Resets the incomplete directions, also of a relay that is cut by the drain's deadline or by the end of its process.
impl<C: Reset, T: Reset> Drop for Relay<C, T> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if !self.down.whole {
            self.client.reset();
        }
        if !self.up.whole {
            self.target.reset();
        }
    }
}

impl<C: Reset, T: Reset> Relay<C, T> {
    /// Returns the bytes relayed so far, for a relay that is abandoned.
    pub fn cut(&self) -> Relayed {
        self.relayed(TunnelEnd::Cut)
    }

    fn relayed(&self, ended: TunnelEnd) -> Relayed {
        Relayed { ended, up: self.up.copied, down: self.down.copied }
    }
}

impl<C, T> Relay<C, T>
where
    C: AsyncRead + AsyncWrite + Reset + Unpin,
    T: AsyncRead + AsyncWrite + Reset + Unpin,
{
    /// Creates a relay. Without `idle` it waits for as long as both sides do. Await it inside a tokio runtime.
    pub fn new(client: C, target: T, early: &[u8], idle: Option<Duration>) -> Self {
        let now = Instant::now();
        let idle = idle.map(Idle::new);
        let (up, down) = (Half::new(early), Half::new(&[]));
        Self {
            client,
            target,
            up,
            down,
            broken: false,
            delivering: None,
            over: false,
            last_moved: now,
            idle,
            meter: None,
            ends_together: false,
        }
    }

    /// Also counts the relayed bytes in `meter`.
    #[must_use]
    pub fn metered(mut self, meter: &Arc<Meter>) -> Self {
        self.meter = Some(Arc::clone(meter));
        self
    }

    /// Ends both directions when one has ended, in order or by a break, as a stream of datagrams does: none is of use alone.
    #[must_use]
    pub fn ending_together(mut self) -> Self {
        self.ends_together = true;
        self
    }

    /// Returns `true` if the client has ended its side, in order or by a break.
    pub fn has_client_ended(&self) -> bool {
        self.up.has_reader_ended
    }

    /// Limits each direction to `bytes_a_second`, after one second's worth at once.
    #[must_use]
    pub fn paced(mut self, bytes_a_second: Option<u64>) -> Self {
        self.up.pace = bytes_a_second.map(Pace::new);
        self.down.pace = bytes_a_second.map(Pace::new);
        self
    }

    /// Ends a broken relay once its sides have received what was written to them, or the time limit has passed.
    fn poll_break(&mut self, cx: &mut Context<'_>) -> Poll<Relayed> {
        let delivering = self.delivering.get_or_insert_with(|| Delivering {
            until: Instant::now() + AFTER_BREAK,
            tick: Box::pin(sleep_until(Instant::now())),
        });
        loop {
            // TLS may hold records back. A side that is gone fails here, and is not waited for.
            let client =
                self.down.whole || delivered(Pin::new(&mut self.client).poll_flush(cx), &self.client);
            let target = self.up.whole || delivered(Pin::new(&mut self.target).poll_flush(cx), &self.target);
            if (client && target) || Instant::now() >= delivering.until {
                return Poll::Ready(self.relayed(TunnelEnd::Broken));
            }
            ready!(delivering.tick.as_mut().poll(cx));
            delivering.tick.as_mut().reset(Instant::now() + reset::TICK);
        }
    }

    /// Returns `true` if a direction is over. If it broke, the other one gets a short time limit.
    fn settle(&mut self, ended: Poll<io::Result<()>>) -> bool {
        match ended {
            Poll::Pending => false,
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(_)) => {
                self.broken = true;
                let limit = self.idle.take().map_or(AFTER_BREAK, |idle| idle.limit.min(AFTER_BREAK));
                self.idle = Some(Idle::new(limit));
                true
            }
        }
    }
}

impl<C, T> Future for Relay<C, T>
where
    C: AsyncRead + AsyncWrite + Reset + Unpin,
    T: AsyncRead + AsyncWrite + Reset + Unpin,
{
    type Output = Relayed;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Relayed> {
        let relay = &mut *self;
        if relay.delivering.is_some() {
            return relay.poll_break(cx);
        }
        let before = (relay.up.copied, relay.down.copied);
        let (up, down) = SCRATCH.with_borrow_mut(|scratch| {
            let last = relay.down.whole;
            let up = relay.up.poll_copy(cx, &mut relay.client, &mut relay.target, scratch, last);
            let last = relay.up.whole;
            (up, relay.down.poll_copy(cx, &mut relay.target, &mut relay.client, scratch, last))
        });
        let moved = (relay.up.copied - before.0, relay.down.copied - before.1);
        if moved != (0, 0) {
            relay.last_moved = Instant::now();
            if let Some(meter) = &relay.meter {
                meter.up.add(moved.0);
                meter.down.add(moved.1);
            }
        }
        if relay.up.reader_gone || relay.down.reader_gone {
            return relay.poll_break(cx);
        }
        if relay.ends_together && relay.up.whole != relay.down.whole {
            let other = if relay.up.whole { &mut relay.down } else { &mut relay.up };
            if other.stop_reading() {
                cx.waker().wake_by_ref();
            }
        }
        let (up, down) = (relay.settle(up), relay.settle(down));
        let is_over = up && down || relay.broken && relay.ends_together;
        if !is_over {
            let Some(idle) = &mut relay.idle else { return Poll::Pending };
            ready!(idle.poll_since(relay.last_moved, cx));
        }
        if relay.broken {
            return relay.poll_break(cx);
        }
        relay.over = true;
        Poll::Ready(relay.relayed(if up && down { TunnelEnd::Finished } else { TunnelEnd::Idle }))
    }
}

/// Returns `true` if a side has received everything that was written to it, or never will.
fn delivered(flushed: Poll<io::Result<()>>, side: &impl Reset) -> bool {
    match flushed {
        Poll::Pending => false,
        Poll::Ready(Ok(())) => side.is_delivered(),
        Poll::Ready(Err(_)) => true,
    }
}

postern_telemetry::label! {
    /// The end of a tunnel.
    pub TunnelEnd = "ended" {
        /// Both sides had finished.
        Finished = "finished",
        /// A side broke off.
        Broken = "broken",
        /// No byte moved within the idle limit.
        Idle = "idle",
        /// The tunnel reached its maximum duration.
        Expired = "expired",
        /// The proxy stopped while the tunnel was open: the drain's deadline passed.
        Cut = "cut",
    }
}

#[derive(Debug)]
pub struct Relayed {
    pub ended: TunnelEnd,
    /// Bytes from the client to the target.
    pub up: u64,
    /// Bytes from the target to the client.
    pub down: u64,
}

/// Counts of bytes, updated while they are relayed: a tunnel that lasts for hours must not appear only at its end.
#[derive(Debug)]
pub struct Meter {
    /// Bytes from the client to the target.
    pub up: ReadableCounter,
    /// Bytes from the target to the client.
    pub down: ReadableCounter,
}

#[cfg(test)]
impl Meter {
    /// Creates a meter that no page shows.
    pub(crate) fn apart() -> Self {
        let counter = || ReadableCounter::new(metrics::Counter::noop());
        Self { up: counter(), down: counter() }
    }
}

#[cfg(test)]
mod tests;
