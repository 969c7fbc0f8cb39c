//! The queue of one connection: commands on their way out, and who waits for which reply.
//!
//! Callers put a command in and hold a [`Waiting`]; the connection's task takes what has gathered, sends it in one
//! write, and hands replies out in the order of the commands. A caller that goes away leaves its place in the order
//! behind, so nobody else can be given its answer.

use crate::Unknown;
use crate::memcached::failure::Failure;
use crate::memcached::protocol::{Asked, Command, Garbled, Reply, parse};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

type Answer = Result<Reply, Failure>;

/// The queue between callers and the task of one connection.
pub(crate) struct Lane {
    queue: Mutex<Queue>,
    /// Commands without a reply: what a choice between lanes looks at, without the lock.
    outstanding: AtomicUsize,
    /// The most commands without a reply.
    limit: usize,
}

struct Queue {
    /// Why there is no connection; `None` while there is one.
    down: Option<Unknown>,
    /// Commands that the task has not taken yet, as they are sent.
    out: Vec<u8>,
    /// How many those are: the last ones in `order`.
    untaken: usize,
    /// The cells of all commands without a reply, in the order of the commands.
    order: VecDeque<u32>,
    cells: Vec<Cell>,
    free: Vec<u32>,
    /// The task, when it waits for commands.
    task: Option<Waker>,
}

/// One caller's place.
enum Cell {
    Free,
    Waiting {
        asked: Asked,
        since: Instant,
        caller: Option<Waker>,
    },
    /// The caller went away; the reply will come all the same.
    Abandoned {
        asked: Asked,
        since: Instant,
    },
    Answered(Answer),
}

impl Lane {
    /// A lane without a connection, for at most `limit` commands at once.
    pub(crate) fn new(limit: usize) -> Self {
        let queue = Queue {
            down: Some(Unknown::Unavailable(io::ErrorKind::NotConnected)),
            out: Vec::new(),
            untaken: 0,
            order: VecDeque::new(),
            cells: Vec::new(),
            free: Vec::new(),
            task: None,
        };
        Self { queue: Mutex::new(queue), outstanding: AtomicUsize::new(0), limit }
    }

    /// Puts a command into the queue, or refuses at once: without a connection, or when the queue is full.
    pub(crate) fn submit(self: &Arc<Self>, command: &Command) -> Result<Waiting, Failure> {
        let mut queue = self.queue.lock();
        if let Some(reason) = queue.down {
            return Err(Failure::NotSent(reason));
        }
        if queue.order.len() >= self.limit {
            return Err(Failure::NotSent(Unknown::Overloaded));
        }
        command.encode(&mut queue.out);
        let cell = Cell::Waiting { asked: command.asked(), since: Instant::now(), caller: None };
        let place = queue.place(cell);
        queue.order.push_back(place);
        queue.untaken += 1;
        self.outstanding.store(queue.order.len(), Ordering::Relaxed);
        let task = queue.task.take();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
        Ok(Waiting { lane: Arc::clone(self), place, collected: false })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.queue.lock().down.is_none()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    // ---- For the connection's task ----

    /// A proven connection is there.
    pub(crate) fn open(&self) {
        let mut queue = self.queue.lock();
        debug_assert!(queue.order.is_empty() && queue.out.is_empty());
        queue.down = None;
    }

    /// The connection is lost, or there is still none: everyone who waits is told, and so is who comes next.
    pub(crate) fn close(&self, reason: Unknown) {
        let mut queue = self.queue.lock();
        queue.down = Some(reason);
        queue.out.clear();
        let mut callers = Vec::new();
        let untaken = std::mem::take(&mut queue.untaken);
        while let Some(place) = queue.order.pop_front() {
            let sent = queue.order.len() >= untaken;
            let failure = if sent { Failure::Sent(reason) } else { Failure::NotSent(reason) };
            callers.extend(queue.answer(place, Err(failure)));
        }
        self.outstanding.store(0, Ordering::Relaxed);
        drop(queue);
        callers.into_iter().for_each(Waker::wake);
    }

    /// Swaps the gathered commands for the empty `taken`; false, and the task is woken for the next one, when there
    /// are none.
    pub(crate) fn take(&self, taken: &mut Vec<u8>, task: &Waker) -> bool {
        debug_assert!(taken.is_empty());
        let mut queue = self.queue.lock();
        if queue.out.is_empty() {
            if !queue.task.as_ref().is_some_and(|known| known.will_wake(task)) {
                queue.task = Some(task.clone());
            }
            return false;
        }
        queue.untaken = 0;
        std::mem::swap(&mut queue.out, taken);
        true
    }

    /// Hands out the replies in `bytes`, puts their callers into `woken`, and returns the length of what was read.
    ///
    /// # Errors
    /// When the bytes are not what was asked for: nothing after them can be told apart.
    pub(crate) fn deliver(&self, bytes: &[u8], woken: &mut Vec<Waker>) -> Result<usize, Garbled> {
        let mut queue = self.queue.lock();
        let mut read = 0;
        while read < bytes.len() {
            if queue.order.len() == queue.untaken {
                return Err(Garbled); // an answer to a question that was not sent
            }
            let Some(&place) = queue.order.front() else { return Err(Garbled) };
            let Some(asked) = queue.cells[place as usize].asked() else { return Err(Garbled) };
            let Some((reply, length)) = parse(asked, &bytes[read..])? else { break };
            read += length;
            queue.order.pop_front();
            woken.extend(queue.answer(place, Ok(reply)));
        }
        self.outstanding.store(queue.order.len(), Ordering::Relaxed);
        Ok(read)
    }

    /// When the command was put in that has waited longest.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let queue = self.queue.lock();
        queue.order.front().and_then(|place| queue.cells[*place as usize].since())
    }

    // ---- For a caller ----

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
            Cell::Abandoned { .. } | Cell::Free => Poll::Ready(Err(Failure::Sent(Unknown::Garbled))),
        }
    }

    fn abandon(&self, place: u32) {
        let mut queue = self.queue.lock();
        match queue.cells[place as usize] {
            Cell::Waiting { asked, since, .. } => {
                queue.cells[place as usize] = Cell::Abandoned { asked, since };
            }
            _ => queue.release(place),
        }
    }
}

impl Queue {
    fn place(&mut self, cell: Cell) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.cells[place as usize] = cell;
                place
            }
            None => {
                self.cells.push(cell);
                (self.cells.len() - 1) as u32 // never more than the limit and those not collected yet
            }
        }
    }

    fn release(&mut self, place: u32) {
        self.cells[place as usize] = Cell::Free;
        self.free.push(place);
    }

    /// Puts an answer into its place; the caller to wake, if there is one.
    fn answer(&mut self, place: u32, answer: Answer) -> Option<Waker> {
        match std::mem::replace(&mut self.cells[place as usize], Cell::Answered(answer)) {
            Cell::Waiting { caller, .. } => caller,
            _ => {
                self.release(place);
                None
            }
        }
    }
}

impl Cell {
    fn asked(&self) -> Option<&Asked> {
        match self {
            Self::Waiting { asked, .. } | Self::Abandoned { asked, .. } => Some(asked),
            Self::Free | Self::Answered(_) => None,
        }
    }

    fn since(&self) -> Option<Instant> {
        match self {
            Self::Waiting { since, .. } | Self::Abandoned { since, .. } => Some(*since),
            Self::Free | Self::Answered(_) => None,
        }
    }
}

/// One caller's wait for its reply. Dropped early, its place stays in the order until the reply has come.
pub(crate) struct Waiting {
    lane: Arc<Lane>,
    place: u32,
    collected: bool,
}

impl Future for Waiting {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.lane.poll(self.place, cx);
        self.collected = answer.is_ready();
        answer
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.collected {
            self.lane.abandon(self.place);
        }
    }
}
