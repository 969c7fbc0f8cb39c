//! Bytes both ways between two streams, with half-close and an idle limit, and without a buffer of its own.
//!
//! A direction that ends short (a side broke, or the relay is dropped in the middle) is passed on as a reset, never as
//! an end: the reader of half a file must see that it is half.
//!
//! Bytes are read into one buffer that all tunnels of a thread share and written on at once. Only what the writer did
//! not take is kept, so an idle tunnel holds no buffer, and a busy one reads 64 KiB at a time.

mod count;
mod half;
mod pace;
#[cfg(target_os = "linux")]
mod pipe;
#[cfg(not(target_os = "linux"))]
#[path = "relay/no_pipe.rs"]
mod pipe;

pub use count::{Meter, Relayed, TunnelEnd};

use crate::idle::Idle;
use crate::reset::{self, Reset};
use half::Half;
use pace::Pace;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};

/// The shared buffer. Larger reads make fewer system calls.
const SCRATCH_LEN: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_LEN].into_boxed_slice());
}

/// How long one direction may go on after the other one broke: what has arrived is still to be delivered (a server that
/// refuses an upload answers and closes while the client is still sending).
const AFTER_BREAK: Duration = Duration::from_secs(10);

/// Copies between `client` and `target` until both directions have ended or nothing moves for `idle`. `early` are bytes
/// of the client that came with its request: they go first. Drop it when it is over: the end of a side may be passed on by that.
pub struct Relay<C: Reset, T: Reset> {
    client: C,
    target: T,
    up: Half,
    down: Half,
    broken: bool,
    /// It ends in a break: data already written is still in flight.
    delivering: Option<Delivering>,
    /// It ended as it should, by both sides or by silence: dropping it is no cut.
    over: bool,
    last_moved: Instant,
    idle: Option<Idle>,
    meter: Option<Arc<Meter>>,
}

/// A break that waits until its other side has received the data before it: a reset discards data in flight.
struct Delivering {
    until: Instant,
    tick: Pin<Box<Sleep>>,
}

/// Also of one that is cut: by the drain's deadline, or by the end of its process.
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
    /// What went through it so far, for one that is given up in the middle.
    #[must_use]
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
    /// A relay; without `idle` it waits for as long as both sides do. Await it inside a tokio runtime.
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
        }
    }

    /// Also counts the relayed bytes in `meter`.
    #[must_use]
    pub fn metered(self, meter: &Arc<Meter>) -> Self {
        let mut relay = self; // it cannot be taken apart: dropping it means something
        relay.meter = Some(Arc::clone(meter));
        relay
    }

    /// Bounds the bytes a second that go through each way, after a second's worth at once.
    #[must_use]
    pub fn paced(self, bytes_a_second: Option<u64>) -> Self {
        let mut relay = self;
        relay.up.pace = bytes_a_second.map(Pace::new);
        relay.down.pace = bytes_a_second.map(Pace::new);
        relay
    }

    /// The end of a relay in which something broke, once its sides have what was written to them, or have had the time.
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

    /// A direction that broke is over; the other one gets little time.
    fn settle(&mut self, ended: Poll<io::Result<()>>) -> bool {
        match ended {
            Poll::Pending => false,
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(_)) => {
                self.broken = true;
                let limit = self.idle.take().map_or(AFTER_BREAK, |idle| idle.limit().min(AFTER_BREAK));
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
        let (up, down) = (relay.settle(up), relay.settle(down));
        if !(up && down) {
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

/// Whether a side has all that was written to it, or never will.
fn delivered(flushed: Poll<io::Result<()>>, side: &impl Reset) -> bool {
    match flushed {
        Poll::Pending => false,
        Poll::Ready(Ok(())) => side.is_delivered(),
        Poll::Ready(Err(_)) => true,
    }
}

#[cfg(test)]
mod tests;
