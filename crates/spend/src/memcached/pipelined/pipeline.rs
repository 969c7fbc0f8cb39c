//! The queue of one connection: outgoing commands, and the callers that wait for replies.
//!
//! Callers submit an exchange and hold a [`Waiting`]; the connection's task takes the gathered commands, sends them in one write,
//! and delivers replies in the order of the commands. A caller that gives up leaves its commands in the order, so no other caller
//! can receive its replies.
//!
//! The `get`s of a burst are joined into few, behind its `add`s. Callers of one burst wait at the same time, so their order does
//! not matter.

mod queue;

use crate::Unknown;
use crate::memcached::protocol::{Command, Failure, NOT_CONNECTED};
use crate::memcached::world::instant;
use parking_lot::Mutex;
use postern_net::TcpFacts;
pub(crate) use queue::Answer;
use queue::{MOST_COMMANDS, Queue, Read};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub(crate) struct Pipeline {
    queue: Mutex<Queue>,
    /// The maximum number of commands without a reply.
    pub(crate) limit: usize,
}

/// One caller's wait for the end of its exchange. If dropped early, the replies are read and discarded.
pub(crate) struct Waiting<'a> {
    pipeline: &'a Pipeline,
    exchange: u32,
    is_collected: bool,
}

impl Pipeline {
    /// Creates a pipeline without a connection, for at most `limit` commands at once.
    pub(crate) fn new(limit: usize) -> Self {
        Self { queue: Mutex::new(Queue { down: Some(NOT_CONNECTED), ..Queue::default() }), limit }
    }

    /// Queues commands that leave in one write, `add`s before `get`s, at the time `now`. Refuses immediately without a
    /// connection or if the queue is full.
    pub(crate) fn submit<const N: usize>(
        &self,
        commands: [&Command; N],
        now: Instant,
    ) -> Result<Waiting<'_>, Failure> {
        const { assert!(N <= MOST_COMMANDS) };
        let mut queue = self.queue.lock();
        if let Some(reason) = queue.down {
            return Err(Failure::NotSent(reason));
        }
        if queue.unanswered() + N > self.limit {
            return Err(Failure::NotSent(Unknown::Overloaded));
        }
        let exchange = queue.push(&commands, now);
        let task = queue.task.take();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
        Ok(Waiting { pipeline: self, exchange, is_collected: false })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.queue.lock().down.is_none()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.queue.lock().unanswered()
    }

    // ---- Called by the connection's task ----

    pub(crate) fn open(&self) {
        let mut queue = self.queue.lock();
        debug_assert!(queue.unanswered() == 0 && queue.joined.is_empty() && queue.out.is_empty());
        queue.down = None;
    }

    /// Closes the pipeline when its connection is lost or cannot be made. Fails all waiting callers, and later ones immediately.
    pub(crate) fn close(&self, reason: Unknown, tcp: Option<TcpFacts>) {
        let mut queue = self.queue.lock();
        queue.down = Some(reason);
        queue.out.clear();
        queue.joined.clear();
        queue.found.clear();
        let sent = std::mem::take(&mut queue.sent);
        let adds = std::mem::take(&mut queue.adds);
        let gets = std::mem::take(&mut queue.gets);
        let sent = sent.into_iter().map(|pending| (pending, Failure::Sent(reason)));
        let not_sent = adds.into_iter().chain(gets).map(|pending| (pending, Failure::NotSent(reason)));
        let callers: Vec<_> =
            sent.chain(not_sent).filter_map(|(pending, failure)| queue.fail(pending, failure, tcp)).collect();
        drop(queue);
        callers.into_iter().for_each(Waker::wake);
    }

    /// Moves the gathered commands into the empty `taken`. If there are none, returns `false` and registers `task` to be woken
    /// for the next one. `written` is the time at which the kernel had all commands taken before.
    pub(crate) fn take(&self, taken: &mut Vec<u8>, written: Option<Instant>, task: &Waker) -> bool {
        debug_assert!(taken.is_empty());
        let mut queue = self.queue.lock();
        if let Some(written) = written {
            queue.written(written);
        }
        let has_taken = queue.take(taken);
        if !has_taken && !queue.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            queue.task = Some(task.clone());
        }
        has_taken
    }

    /// Delivers the replies in `bytes`, the last of which have just been read, adds their callers to `woken`, and returns the
    /// length consumed. Asks for the facts about the connection if the oldest command took longer than `slow`.
    ///
    /// # Errors
    /// The bytes are not an expected reply: the rest of the stream cannot be parsed.
    pub(crate) fn deliver(
        &self,
        bytes: &[u8],
        (slow, facts): (Duration, &dyn Fn() -> Option<TcpFacts>),
        woken: &mut Vec<Waker>,
    ) -> Result<usize, Unknown> {
        let (at, mut used) = (instant(), 0);
        let mut queue = self.queue.lock();
        let is_slow =
            queue.sent.front().is_some_and(|oldest| at.saturating_duration_since(oldest.since) > slow);
        let read = Read { at, slow, tcp: if is_slow { facts() } else { None } };
        while used < bytes.len() {
            let Some(length) = queue.deliver(&bytes[used..], read, woken)? else { break };
            used += length;
        }
        Ok(used)
    }

    /// Returns the time at which the command that has waited longest was submitted.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let queue = self.queue.lock();
        queue.sent.front().map(|first| first.since).or(queue.gathered())
    }
}

impl Waiting<'_> {
    /// Returns the time at which the commands had been written. `None` once there is an answer.
    pub(crate) fn written(&self) -> Option<Instant> {
        if self.is_collected {
            return None;
        }
        let queue = self.pipeline.queue.lock();
        let mut newest_first = queue.sent.iter().rev();
        newest_first.find(|pending| pending.exchange == self.exchange)?.written
    }
}

impl Future for Waiting<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut queue = self.pipeline.queue.lock();
        let exchange = &mut queue.exchanges[self.exchange as usize];
        if exchange.unanswered > 0 {
            if !exchange.caller.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                exchange.caller = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let answer = exchange.answer;
        queue.release(self.exchange);
        drop(queue);
        self.is_collected = true;
        Poll::Ready(answer)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_collected {
            return;
        }
        let mut queue = self.pipeline.queue.lock();
        let exchange = &mut queue.exchanges[self.exchange as usize];
        if exchange.unanswered == 0 {
            queue.release(self.exchange);
        } else {
            (exchange.is_abandoned, exchange.caller) = (true, None);
        }
    }
}

#[cfg(test)]
mod tests;
