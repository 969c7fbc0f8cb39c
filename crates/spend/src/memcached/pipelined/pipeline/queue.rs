//! What waits in a pipeline: the places of callers, the bursts that commands were taken in, and their answers.

use crate::Unknown;
use crate::memcached::failure::Failure;
use crate::memcached::pipelined::joined::{self, Piece};
use crate::memcached::protocol::{Garbled, RecordKey, Reply, ReplyKind, Value, parse};
use crate::memcached::world::instant;
use postern_tcp_info::TcpFacts;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

/// For how long `get`s are sent separately after a joined one was answered with an error. A router that has lost a
/// server fails the whole command, and twemproxy also closes the connection.
const APART: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Queue {
    /// Why there is no connection; `None` while there is one.
    pub(super) down: Option<Unknown>,
    /// What the task has not taken yet: the `add`s as they are sent, their cells, the cells of the `get`s, and when
    /// the first of all was put in.
    pub(super) out: Vec<u8>,
    pub(super) adds: Vec<u32>,
    pub(super) gets: Vec<u32>,
    pub(super) gathered: Option<Instant>,
    /// The commands without a reply that were taken, in their order, the bursts they were taken in, and the cells of
    /// all of them in a row.
    pub(super) order: VecDeque<What>,
    pub(super) bursts: Bursts,
    pub(super) places: VecDeque<u32>,
    /// What has come of the reply to the first of them: keys found, as places in the row.
    pub(super) found: Vec<(usize, Value)>,
    /// Until when `get`s are not joined.
    pub(super) apart_until: Option<Instant>,
    pub(super) cells: Vec<Cell>,
    pub(super) free: Vec<u32>,
    /// The task, when it waits for commands.
    pub(super) task: Option<Waker>,
}

/// A command that was taken.
#[derive(Clone, Copy)]
pub(super) enum What {
    Add,
    /// One `get` for this number of callers.
    Gets(usize),
}

/// One caller's place.
pub(super) enum Cell {
    Free,
    Waiting {
        reply_kind: ReplyKind,
        caller: Option<Waker>,
    },
    /// The caller went away; the reply is still to come.
    Abandoned {
        reply_kind: ReplyKind,
    },
    Answered(Answer),
}

impl Queue {
    /// Commands without a reply.
    pub(super) fn unanswered(&self) -> usize {
        self.places.len() + self.adds.len() + self.gets.len()
    }

    /// The reply to the `add` that comes next; its length, if it is complete.
    pub(super) fn deliver_add(
        &mut self,
        bytes: &[u8],
        read: &Read<'_>,
        woken: &mut Vec<Waker>,
    ) -> Result<Option<usize>, Garbled> {
        let Some((reply, length)) = parse(&ReplyKind::Add, bytes)? else { return Ok(None) };
        self.order.pop_front();
        let place = self.places.pop_front().ok_or(Garbled)?;
        let burst = self.bursts.answer(1).ok_or(Garbled)?;
        woken.extend(self.answer(place, burst.answered(reply, read)));
        Ok(Some(length))
    }

    /// A piece of the reply to the next `get`, of `number` keys; its length, if it is complete. No caller is answered
    /// before the end.
    pub(super) fn deliver_gets(
        &mut self,
        number: usize,
        bytes: &[u8],
        read: &Read<'_>,
        woken: &mut Vec<Waker>,
    ) -> Result<Option<usize>, Garbled> {
        let Self { places, cells, found, .. } = &*self;
        let key = |place: &u32| cells[*place as usize].key();
        let first = places.front().and_then(key).ok_or(Garbled)?;
        let missing = places.iter().take(number).enumerate().filter_map(|(index, place)| {
            let come = found.iter().any(|(found, _)| *found == index);
            if come { None } else { Some((index, key(place)?)) }
        });
        let piece = joined::piece(first, missing, bytes)?;
        let Some((piece, length)) = piece else { return Ok(None) };
        match piece {
            Piece::Block(index, value) => self.found.push((index, value)),
            Piece::End(others) => {
                if others == Reply::ServerError && number > 1 {
                    self.apart_until = Some(instant() + APART);
                }
                self.order.pop_front();
                let found = std::mem::take(&mut self.found);
                let burst = self.bursts.answer(number).ok_or(Garbled)?;
                for index in 0..number {
                    let place = self.places.pop_front().ok_or(Garbled)?;
                    let value = found.iter().find(|(found, _)| *found == index).map(|(_, value)| *value);
                    woken.extend(self.answer(place, burst.answered(value.map_or(others, Reply::Hit), read)));
                }
            }
        }
        Ok(Some(length))
    }

    pub(super) fn place(&mut self, cell: Cell) -> u32 {
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

    pub(super) fn release(&mut self, place: u32) {
        self.cells[place as usize] = Cell::Free;
        self.free.push(place);
    }

    /// Puts an answer into its place; the caller to wake, if there is one.
    pub(super) fn answer(&mut self, place: u32, answer: Answer) -> Option<Waker> {
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
    /// The key of a `get` without a reply.
    pub(super) fn key(&self) -> Option<&RecordKey> {
        match self {
            Self::Waiting { reply_kind: ReplyKind::Get(key), .. }
            | Self::Abandoned { reply_kind: ReplyKind::Get(key) } => Some(key),
            _ => None,
        }
    }
}

/// The result of a command, for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: Result<Reply, Failure>,
    /// When the command's burst had been written, and when the read returned that brought the reply to its end.
    pub(crate) written: Option<Instant>,
    pub(crate) read: Option<Instant>,
    /// The connection, when the oldest of the burst had waited long.
    pub(crate) tcp: Option<TcpFacts>,
}

impl Answer {
    pub(super) fn failed(failure: Failure, written: Option<Instant>, tcp: Option<TcpFacts>) -> Self {
        Self { result: Err(failure), written, read: None, tcp }
    }
}

/// The bursts that were taken and are not answered to their end, in their order. One stamp does for all commands of a
/// burst, so that a command costs no look at the clock.
#[derive(Default)]
pub(super) struct Bursts(VecDeque<Burst>);

/// The commands that were taken at once.
#[derive(Clone, Copy)]
pub(super) struct Burst {
    /// Callers without a reply.
    left: usize,
    /// When the oldest of its commands was put in.
    pub(super) since: Instant,
    /// When the kernel had all of it.
    pub(super) written: Option<Instant>,
}

impl Bursts {
    /// A burst of this number of callers is about to be written.
    pub(super) fn take(&mut self, callers: usize, since: Instant) {
        self.0.push_back(Burst { left: callers, since, written: None });
    }

    /// The one that was taken last has been written: there is never more than one that is not. It may be answered
    /// already, and with it all before it.
    pub(super) fn written(&mut self, at: Instant) {
        if let Some(last) = self.0.back_mut() {
            last.written = Some(at);
        }
    }

    /// The next `number` callers, all of one burst, are answered. Returns their burst.
    pub(super) fn answer(&mut self, callers: usize) -> Option<Burst> {
        let first = self.0.front_mut()?;
        first.left = first.left.saturating_sub(callers);
        let burst = *first;
        if burst.left == 0 {
            self.0.pop_front();
        }
        Some(burst)
    }

    /// The burst of the caller who is at this place of the row.
    pub(super) fn of(&self, mut index: usize) -> Option<Burst> {
        let own = |burst: &&Burst| {
            let within = index < burst.left;
            index = index.saturating_sub(burst.left);
            within
        };
        self.0.iter().find(own).copied()
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.front().map(|burst| burst.since)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Burst {
    /// The result for one of its callers.
    pub(super) fn answered(&self, reply: Reply, read: &Read<'_>) -> Answer {
        let tcp = read.facts_for(self.since);
        Answer { result: Ok(reply), written: self.written, read: Some(read.at), tcp }
    }
}

/// Bytes that came in one read. The connection's facts are read at most once for them, and only for a reply that was
/// slow.
pub(crate) struct Read<'a> {
    at: Instant,
    /// What was put in before that has waited long: one subtraction a read, and a comparison a reply.
    cutoff: Option<Instant>,
    connection: &'a dyn Fn() -> Option<TcpFacts>,
    facts: OnceCell<Option<TcpFacts>>,
}

impl<'a> Read<'a> {
    /// A read that returned now.
    pub(crate) fn new(slow: Duration, connection: &'a dyn Fn() -> Option<TcpFacts>) -> Self {
        let at = instant();
        Self { at, cutoff: at.checked_sub(slow), connection, facts: OnceCell::new() }
    }

    fn facts_for(&self, since: Instant) -> Option<TcpFacts> {
        let slow = self.cutoff.is_some_and(|cutoff| since < cutoff);
        if slow { *self.facts.get_or_init(self.connection) } else { None }
    }
}
