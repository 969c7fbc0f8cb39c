//! What the commands of one write have in common, and the replies of one read.

use super::Answer;
use crate::memcached::protocol::Reply;
use crate::memcached::world::instant;
use postern_tcp_info::TcpFacts;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
