//! From the target to a client's stream: datagrams are received in bursts, and written as capsules.

use super::turn::{Fault, KEPT, PACKET, Scratch, TURN, Turn};
use crate::relay::Pace;
use crate::udp::socket::is_final;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tokio::time::Instant;

pub(super) struct Down {
    /// Capsules that the client has not taken, from index `written` on.
    pub(super) pending: Vec<u8>,
    written: usize,
    needs_flush: bool,
    pub(super) bytes: u64,
    pub(super) pace: Option<Box<Pace>>,
    pub(super) last_moved: Instant,
}

impl Down {
    pub(super) fn new() -> Self {
        Self {
            pending: Vec::new(),
            written: 0,
            needs_flush: false,
            bytes: 0,
            pace: None,
            last_moved: Instant::now(),
        }
    }

    /// Sends the target's datagrams to the client. Becomes ready when the client has what it gets after its end.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncWrite + Unpin),
        is_ending: bool,
        turn: &mut Turn<'_>,
    ) -> Poll<Result<(), Fault>> {
        for _ in 0..TURN {
            ready!(self.poll_pending(cx, client))?;
            if is_ending {
                return Pin::new(client).poll_shutdown(cx).map_err(Fault::from);
            }
            if let Some(pace) = &mut self.pace {
                ready!(pace.poll_allowance(cx));
            }
            self.pending = ready!(self.poll_burst(cx, client, turn))?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Receives a burst and writes it; returns what the client did not take, up to [`KEPT`] bytes.
    fn poll_burst(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncWrite + Unpin),
        turn: &mut Turn<'_>,
    ) -> Poll<Result<Vec<u8>, Fault>> {
        let Turn { datagrams, meter, scratch } = turn;
        let Scratch { bursts, capsules, ends, .. } = &mut **scratch;
        capsules.clear();
        ends.clear();
        let each = |length: usize, capsules: &[u8]| ends.push((capsules.len(), length));
        if let Err(error) = ready!(datagrams.poll_receive(cx, bursts, capsules, each)) {
            // Without memory the socket would stay ready and be read in vain.
            let is_over = is_final(&error) || error.kind() == io::ErrorKind::OutOfMemory;
            return Poll::Ready(if is_over { Err(Fault::Broken) } else { Ok(Vec::new()) });
        }
        let mut taken = 0;
        while taken < capsules.len() {
            match Pin::new(&mut *client).poll_write(cx, &capsules[taken..]) {
                Poll::Ready(written) => taken += self.wrote(written)?,
                Poll::Pending => break,
            }
        }
        // A capsule that the client has begun to take must be completed.
        let all = || ends.iter().map(|(end, _)| *end);
        let begun = all().find(|&end| end >= taken).unwrap_or(taken);
        let kept = all().rfind(|&end| end <= taken + KEPT).unwrap_or(taken).max(begun);
        let passed = all().filter(|&end| end <= kept).count();
        let bytes: u64 = ends.iter().take(passed).map(|(_, length)| *length as u64).sum();
        if let Some(pace) = &mut self.pace {
            pace.spend(kept + PACKET * ends.len());
        }
        self.bytes += bytes;
        self.last_moved = Instant::now();
        meter.bytes.down.add(bytes);
        meter.down.add(passed as u64);
        meter.dropped.down.add((ends.len() - passed) as u64);
        Poll::Ready(Ok(capsules[taken..kept].to_vec()))
    }

    /// Writes what the client did not take before.
    fn poll_pending(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<Result<(), Fault>> {
        while self.written < self.pending.len() {
            let written = ready!(Pin::new(&mut *client).poll_write(cx, &self.pending[self.written..]));
            self.written += self.wrote(written)?;
        }
        if self.written > 0 {
            // Freed instead of kept: most tunnels are idle most of the time.
            self.pending = Vec::new();
            self.written = 0;
        }
        if self.needs_flush && Pin::new(client).poll_flush(cx)?.is_ready() {
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
}
