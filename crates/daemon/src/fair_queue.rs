//! A bounded queue that divides service fairly between callers: each caller has its own line, and lines are served by the service
//! they have received.
//!
//! After an item, its caller is due again after a time proportional to the item's cost, divided by the caller's turns: a batch of
//! a hundred tokens counts as a hundred, and a caller with four turns gets four times as much as another while both wait. Time is
//! virtual: it measures the service given, and is not a clock. When the queue is full, the newest item of the longest line makes
//! room, so that a flooding caller bears the cost. The module contains the rules only, without threads.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;

/// Waiting items of several callers.
#[derive(Debug)]
pub struct FairQueue<T> {
    lines: HashMap<u64, Line<T>>,
    /// (due time, tie-breaker, caller)
    due: BTreeSet<(u64, u64, u64)>,
    /// Due times of callers without a line that received more than their share. Empty while nothing waits.
    ahead: HashMap<u64, u64>,
    /// Virtual time: the due time of the item served last.
    now: u64,
    length: usize,
    /// Counter of items, and of lines that became due.
    count: u64,
}

/// Waiting items of one caller. Never empty.
#[derive(Debug)]
struct Line<T> {
    items: VecDeque<(Ticket, NonZeroU32, T)>,
    turns: NonZeroU32,
    due: u64,
    order: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub caller: u64,
    /// Share of service, as a multiple of a caller's with one turn.
    pub turns: NonZeroU32,
}

impl From<u64> for Claim {
    fn from(caller: u64) -> Self {
        Self { caller, turns: NonZeroU32::MIN }
    }
}

/// Identity of an item in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    caller: u64,
    number: u64,
}

/// Virtual time of cost 1 with one turn: large enough that division by up to a hundred turns loses almost nothing.
const UNIT: u64 = 10_000;

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        let (lines, due, ahead) = (HashMap::new(), BTreeSet::new(), HashMap::new());
        Self { lines, due, ahead, now: 0, length: 0, count: 0 }
    }
}

impl<T> FairQueue<T> {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub fn len_of(&self, caller: u64) -> usize {
        self.lines.get(&caller).map_or(0, |line| line.items.len())
    }

    /// Adds an item at the end of its caller's line.
    pub fn push(&mut self, claim: impl Into<Claim>, cost: NonZeroU32, item: T) -> Ticket {
        let Claim { caller, turns } = claim.into();
        self.count += 1;
        let order = self.count;
        // Behind callers that were just served and wait again: otherwise a succession of new callers could starve them.
        let next = self.now.saturating_add(UNIT / u64::from(turns.get()));
        let ticket = Ticket { caller, number: order };
        let line = self.lines.entry(caller).or_insert_with(|| {
            let due = self.ahead.remove(&caller).map_or(next, |due| due.max(next));
            self.due.insert((due, order, caller));
            Line { items: VecDeque::new(), turns, due, order }
        });
        line.turns = turns;
        line.items.push_back((ticket, cost, item));
        self.length += 1;
        ticket
    }

    /// Takes the next item of the caller that is due first.
    pub fn pop(&mut self) -> Option<T> {
        let (due, _, caller) = self.due.pop_first()?;
        let line = self.lines.get_mut(&caller)?;
        let (_, cost, item) = line.items.pop_front()?;
        self.length -= 1;
        self.now = due;
        self.count += 1;
        let given = UNIT * u64::from(cost.get()) / u64::from(line.turns.get());
        (line.due, line.order) = (due.saturating_add(given), self.count);
        if line.items.is_empty() {
            self.leave(caller);
        } else {
            self.due.insert((line.due, line.order, caller));
        }
        Some(item)
    }

    /// Takes the newest item of the longest line, if the line of `caller` stays shorter than that line even with another item.
    pub fn make_room(&mut self, caller: u64) -> Option<T> {
        let (longest, line) = self.lines.iter().max_by_key(|(_, line)| line.items.len())?;
        let (ticket, ..) = line.items.back().filter(|_| line.items.len() > self.len_of(caller) + 1)?;
        debug_assert_ne!(*longest, caller);
        self.remove(*ticket)
    }

    /// Takes an item out of the queue; `None` if it is no longer there.
    pub fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let line = self.lines.get_mut(&ticket.caller)?;
        // Ticket numbers of a line ascend.
        let place = line.items.binary_search_by_key(&ticket.number, |(other, ..)| other.number).ok()?;
        let (.., item) = line.items.remove(place)?;
        self.length -= 1;
        if line.items.is_empty() {
            self.due.remove(&(line.due, line.order, ticket.caller));
            self.leave(ticket.caller);
        }
        Some(item)
    }

    /// Removes an empty line. The service that its caller received counts for as long as others wait.
    fn leave(&mut self, caller: u64) {
        let line = self.lines.remove(&caller);
        if self.length == 0 {
            self.ahead.clear();
            self.now = 0;
        } else if let Some(due) = line.map(|line| line.due).filter(|due| *due > self.now) {
            if self.ahead.len() == self.ahead.capacity() {
                self.ahead.retain(|_, due| *due > self.now); // most callers that came once are no longer ahead
            }
            self.ahead.insert(caller, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    fn has_nothing(queue: &FairQueue<&'static str>) -> bool {
        queue.lines.is_empty() && queue.due.is_empty() && queue.ahead.is_empty() && queue.is_empty()
    }

    fn all(queue: &mut FairQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn callers_take_turns_and_each_line_keeps_its_order() {
        let mut queue = FairQueue::default();
        for (caller, item) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (3, "c1"), (2, "b2")] {
            queue.push(caller, ONE, item);
        }
        assert_eq!((queue.len(), queue.len_of(1), queue.len_of(4)), (6, 3, 0));
        assert_eq!(queue.pop(), Some("a1"));
        queue.push(4, ONE, "d1");
        assert_eq!(all(&mut queue), ["b1", "c1", "a2", "d1", "b2", "a3"]);
        assert!(has_nothing(&queue));
    }

    #[test]
    fn a_caller_with_more_turns_is_given_that_much_more() {
        let claim = |caller, turns| Claim { caller, turns: NonZeroU32::new(turns).unwrap() };
        let mut queue = FairQueue::default();
        for _ in 0..30 {
            queue.push(claim(1, 4), ONE, "a");
            queue.push(2, ONE, "b");
        }
        let served: Vec<_> = (0..25).map(|_| queue.pop().unwrap()).collect();
        assert_eq!(served.iter().filter(|item| **item == "a").count(), 20);
        // A caller that comes later starts level with the others, not before them.
        queue.push(3, ONE, "c");
        let place = all(&mut queue).iter().position(|item| *item == "c").unwrap();
        assert!(place <= 5, "{place}");
        assert!(has_nothing(&queue));
    }

    #[test]
    fn what_costs_more_is_given_less_often_also_to_a_caller_that_waits_for_each_answer() {
        let ten = NonZeroU32::new(10).unwrap();
        let mut queue = FairQueue::default();
        for _ in 0..40 {
            queue.push(2, ONE, "b");
        }
        queue.push(1, ten, "a");
        let mut places = Vec::new();
        for place in 0..33 {
            if queue.pop() == Some("a") {
                places.push(place);
                queue.push(1, ten, "a");
            }
        }
        assert_eq!(places, [1, 11, 22], "about ten of the others' come between");
        all(&mut queue);
        queue.push(1, ten, "a");
        queue.push(2, ONE, "b");
        assert_eq!(all(&mut queue), ["a", "b"], "while nothing waited, nothing was owed");
    }

    #[test]
    fn room_is_made_in_the_longest_line_and_never_for_it() {
        let mut queue = FairQueue::default();
        for (caller, item) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1")] {
            queue.push(caller, ONE, item);
        }
        assert_eq!(queue.make_room(1), None);
        assert_eq!(queue.make_room(2), Some("a3"));
        queue.push(2, ONE, "b2");
        assert_eq!(queue.make_room(2), None, "both have two");
        assert_eq!(queue.make_room(3), Some(if queue.len_of(1) == 1 { "a2" } else { "b2" }));
        queue.push(3, ONE, "c1");
        let mut one_each = FairQueue::default();
        one_each.push(1, ONE, "a1");
        assert_eq!(one_each.make_room(2), None, "it would push out another for its own sake");
    }

    #[test]
    fn of_callers_that_came_once_little_is_kept_while_others_wait() {
        let mut queue = FairQueue::default();
        for caller in 0..100_000 {
            queue.push(caller, ONE, "a");
            if caller >= 10 {
                queue.pop();
            }
        }
        assert!(queue.len() == 10 && queue.ahead.capacity() < 1_000, "{}", queue.ahead.capacity());
    }

    #[test]
    fn what_is_taken_out_leaves_no_turn_behind() {
        let mut queue = FairQueue::default();
        let [first, second] = ["a1", "a2"].map(|item| queue.push(1, ONE, item));
        let other = queue.push(2, ONE, "b1");
        assert_eq!((queue.remove(first), queue.remove(first)), (Some("a1"), None));
        assert_eq!(queue.pop(), Some("a2"));
        assert_eq!((queue.remove(second), queue.remove(other)), (None, Some("b1")));
        assert!(queue.pop().is_none() && has_nothing(&queue));
    }
}
