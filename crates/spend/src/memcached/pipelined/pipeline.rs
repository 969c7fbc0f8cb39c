//! The queue of one connection: commands on their way out, and who waits for which reply.
//!
//! Callers put a command in and hold a [`Waiting`]; the connection's task takes what has gathered, sends it in one
//! write, and hands replies out in the order of the commands. A caller that goes away leaves its place in the order
//! behind, so no other caller can receive its answer.
//!
//! The `get`s of a burst are joined into few ([`joined`]), behind its `add`s. Callers of one burst wait at the same
//! time, so their order does not matter.

mod queue;

use super::joined::{self, MOST_KEYS};
use crate::Unknown;
use crate::memcached::failure::Failure;
use crate::memcached::protocol::{Command, Garbled};
use parking_lot::Mutex;
use postern_tcp_info::TcpFacts;
pub(crate) use queue::{Answer, Read};
use queue::{Cell, Queue, What};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The queue between callers and the task of one connection.
pub(crate) struct Pipeline {
    queue: Mutex<Queue>,
    /// Commands without a reply: what a choice between pipelines looks at, without the lock.
    outstanding: AtomicUsize,
    /// The most commands without a reply.
    limit: usize,
}

/// One caller's wait for its reply. Dropped early, its place stays in the order until the reply has come.
pub(crate) struct Waiting {
    pipeline: Arc<Pipeline>,
    place: u32,
    collected: bool,
}

impl Pipeline {
    /// A pipeline without a connection, for at most `limit` commands at once.
    pub(crate) fn new(limit: usize) -> Self {
        let queue =
            Queue { down: Some(Unknown::Unavailable(io::ErrorKind::NotConnected)), ..Queue::default() };
        Self { queue: Mutex::new(queue), outstanding: AtomicUsize::new(0), limit }
    }

    /// Puts one command into the queue.
    #[cfg(test)]
    pub(crate) fn submit(self: &Arc<Self>, command: &Command, now: Instant) -> Result<Waiting, Failure> {
        self.submit_all([command], now).map(|[waiting]| waiting)
    }

    /// Puts commands that leave in one write into the queue `now`, `add`s before `get`s, or refuses at once: without a
    /// connection, or when the queue is full.
    pub(crate) fn submit_all<const N: usize>(
        self: &Arc<Self>,
        commands: [&Command; N],
        now: Instant,
    ) -> Result<[Waiting; N], Failure> {
        let mut queue = self.queue.lock();
        if let Some(reason) = queue.down {
            return Err(Failure::NotSent(reason));
        }
        if queue.unanswered() + N > self.limit {
            return Err(Failure::NotSent(Unknown::Overloaded));
        }
        let places = commands.map(|command| {
            let place = queue.place(Cell::Waiting { reply_kind: command.reply_kind(), caller: None });
            match command {
                Command::Get(_) => queue.gets.push(place),
                Command::Add { .. } => {
                    command.encode(&mut queue.out);
                    queue.adds.push(place);
                }
            }
            place
        });
        queue.gathered.get_or_insert(now);
        self.outstanding.store(queue.unanswered(), Ordering::Relaxed);
        let task = queue.task.take();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
        Ok(places.map(|place| Waiting::new(Arc::clone(self), place)))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.queue.lock().down.is_none()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// The most commands without a reply.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    // ---- For the connection's task ----

    /// A proven connection is there.
    pub(crate) fn open(&self) {
        let mut queue = self.queue.lock();
        debug_assert!(queue.unanswered() == 0 && queue.order.is_empty() && queue.out.is_empty());
        debug_assert!(queue.bursts.is_empty());
        queue.down = None;
    }

    /// The connection is lost, or there is still none. Fails all waiting callers, and later ones immediately.
    pub(crate) fn close(&self, reason: Unknown, tcp: Option<TcpFacts>) {
        let mut queue = self.queue.lock();
        queue.down = Some(reason);
        queue.out.clear();
        queue.order.clear();
        queue.found.clear();
        queue.gathered = None;
        let sent = std::mem::take(&mut queue.places);
        let mut bursts = std::mem::take(&mut queue.bursts);
        let adds = std::mem::take(&mut queue.adds);
        let gets = std::mem::take(&mut queue.gets);
        let mut callers = Vec::new();
        for place in sent {
            let written = bursts.answer(1).and_then(|burst| burst.written);
            callers.extend(queue.answer(place, Answer::failed(Failure::Sent(reason), written, tcp)));
        }
        for place in adds.into_iter().chain(gets) {
            callers.extend(queue.answer(place, Answer::failed(Failure::NotSent(reason), None, tcp)));
        }
        self.outstanding.store(0, Ordering::Relaxed);
        drop(queue);
        callers.into_iter().for_each(Waker::wake);
    }

    /// Puts the gathered commands into the empty `taken`; false, and the task is woken for the next one, when there
    /// are none. `written` is when the kernel had all that was taken before.
    pub(crate) fn take(&self, taken: &mut Vec<u8>, written: Option<Instant>, task: &Waker) -> bool {
        debug_assert!(taken.is_empty());
        let mut queue = self.queue.lock();
        if let Some(written) = written {
            queue.bursts.written(written);
        }
        let Some(since) = queue.gathered.take() else {
            if !queue.task.as_ref().is_some_and(|known| known.will_wake(task)) {
                queue.task = Some(task.clone());
            }
            return false;
        };
        std::mem::swap(&mut queue.out, taken);
        let Queue { adds, gets, order, bursts, places, cells, apart_until, .. } = &mut *queue;
        bursts.take(adds.len() + gets.len(), since);
        let most = if apart_until.is_some_and(|end| since < end) { 1 } else { MOST_KEYS };
        order.extend(adds.iter().map(|_| What::Add));
        places.extend(adds.drain(..));
        for together in gets.chunks(most) {
            joined::encode(together.iter().filter_map(|place| cells[*place as usize].key()), taken);
            order.push_back(What::Gets(together.len()));
        }
        places.extend(gets.drain(..));
        true
    }

    /// Hands out the replies in `bytes`, the last of which came with `read`, puts their callers into `woken`, and
    /// returns the length of what was read.
    ///
    /// # Errors
    /// When the bytes are not an expected reply: the rest of the stream cannot be parsed.
    pub(crate) fn deliver(
        &self,
        bytes: &[u8],
        read: &Read<'_>,
        woken: &mut Vec<Waker>,
    ) -> Result<usize, Garbled> {
        let mut queue = self.queue.lock();
        let mut used = 0;
        while used < bytes.len() {
            let Some(&what) = queue.order.front() else {
                return Err(Garbled); // a reply to a command that was not sent
            };
            let length = match what {
                What::Add => queue.deliver_add(&bytes[used..], read, woken)?,
                What::Gets(number) => queue.deliver_gets(number, &bytes[used..], read, woken)?,
            };
            match length {
                Some(length) => used += length,
                None => break,
            }
        }
        self.outstanding.store(queue.unanswered(), Ordering::Relaxed);
        Ok(used)
    }

    /// When the command was put in that has waited longest.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let queue = self.queue.lock();
        queue.bursts.oldest().or(queue.gathered)
    }

    // ---- For a caller ----

    /// When the command of a caller who has no answer had been written.
    fn written(&self, place: u32) -> Option<Instant> {
        let queue = self.queue.lock();
        let index = queue.places.iter().position(|other| *other == place)?;
        queue.bursts.of(index)?.written
    }

    fn poll(&self, place: u32, cx: &Context<'_>) -> Poll<Answer> {
        let mut queue = self.queue.lock();
        match &mut queue.cells[place as usize] {
            Cell::Answered(answer) => {
                let answer = *answer;
                queue.release(place);
                Poll::Ready(answer)
            }
            Cell::Waiting { caller, .. } => {
                if !caller.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    *caller = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            // A place belongs to its caller until it is released, so neither of these can be.
            Cell::Abandoned { .. } | Cell::Free => {
                Poll::Ready(Answer::failed(Failure::Sent(Unknown::Garbled), None, None))
            }
        }
    }

    fn abandon(&self, place: u32) {
        let mut queue = self.queue.lock();
        match queue.cells[place as usize] {
            Cell::Waiting { reply_kind, .. } => {
                queue.cells[place as usize] = Cell::Abandoned { reply_kind };
            }
            _ => queue.release(place),
        }
    }
}

impl Waiting {
    fn new(pipeline: Arc<Pipeline>, place: u32) -> Self {
        Self { pipeline, place, collected: false }
    }

    /// When the command had been written, while there is no answer.
    pub(crate) fn written(&self) -> Option<Instant> {
        if self.collected { None } else { self.pipeline.written(self.place) }
    }
}

impl Future for Waiting {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.pipeline.poll(self.place, cx);
        self.collected = answer.is_ready();
        answer
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.collected {
            self.pipeline.abandon(self.place);
        }
    }
}

#[cfg(test)]
mod tests;
