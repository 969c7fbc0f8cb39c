//! A bounded queue in which callers take turns: each has a line of its own, and the lines are served in turn.
//!
//! A caller may have several turns in a row. They decide who is served first, and not who has how many places: when the queue is full, room is made in the longest line, by its newest item, so that whoever floods pays for it. Here
//! are the rules, without threads.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;

/// What waits, of several callers.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    lines: HashMap<u64, Line<T>>,
    /// The callers whose lines are not empty, the next one first.
    turns: VecDeque<u64>,
    length: usize,
    tickets: u64,
}

/// What waits of one caller. It is not empty.
#[derive(Debug)]
struct Line<T> {
    items: VecDeque<(Ticket, T)>,
    turns: NonZeroU32,
    /// How many of its turns in a row it has had.
    had: u32,
}

/// Who calls, and how many turns in a row are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) caller: u64,
    pub(crate) turns: NonZeroU32,
}

impl From<u64> for Claim {
    /// One turn at a time.
    fn from(caller: u64) -> Self {
        Self { caller, turns: NonZeroU32::MIN }
    }
}

/// One item in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    caller: u64,
    number: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { lines: HashMap::new(), turns: VecDeque::new(), length: 0, tickets: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// How many items of this caller wait.
    pub(crate) fn len_of(&self, caller: u64) -> usize {
        self.lines.get(&caller).map_or(0, |line| line.items.len())
    }

    /// Adds an item at the end of its caller's line.
    pub(crate) fn push(&mut self, claim: impl Into<Claim>, item: T) -> Ticket {
        let Claim { caller, turns } = claim.into();
        self.tickets += 1;
        let ticket = Ticket { caller, number: self.tickets };
        let line = self.lines.entry(caller).or_insert_with(|| Line { items: VecDeque::new(), turns, had: 0 });
        line.turns = turns;
        if line.items.is_empty() {
            self.turns.push_back(caller);
        }
        line.items.push_back((ticket, item));
        self.length += 1;
        ticket
    }

    /// The next item of the caller whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let caller = *self.turns.front()?;
        let line = self.lines.get_mut(&caller)?;
        let (_, item) = line.items.pop_front()?;
        self.length -= 1;
        line.had += 1;
        if line.items.is_empty() {
            self.turns.pop_front();
            self.lines.remove(&caller);
        } else if line.had >= line.turns.get() {
            line.had = 0;
            self.turns.rotate_left(1);
        }
        Some(item)
    }

    /// Takes the newest item out of the longest line, if `caller` would still have the shorter one with another item.
    pub(crate) fn make_room(&mut self, caller: u64) -> Option<T> {
        let (longest, line) = self.lines.iter().max_by_key(|(_, line)| line.items.len())?;
        let (ticket, _) = line.items.back().filter(|_| line.items.len() > self.len_of(caller) + 1)?;
        debug_assert_ne!(*longest, caller);
        self.remove(*ticket)
    }

    /// Takes an item out of the queue, if it still is in it.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let line = self.lines.get_mut(&ticket.caller)?;
        // Tickets of a line ascend.
        let place = line.items.binary_search_by_key(&ticket.number, |(other, _)| other.number).ok()?;
        let (_, item) = line.items.remove(place)?;
        self.length -= 1;
        if line.items.is_empty() {
            self.lines.remove(&ticket.caller);
            self.turns.retain(|caller| *caller != ticket.caller);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut FairQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn callers_take_turns_and_each_line_keeps_its_order() {
        let mut queue = FairQueue::default();
        for (caller, item) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (3, "c1"), (2, "b2")] {
            queue.push(caller, item);
        }
        assert_eq!((queue.len(), queue.len_of(1), queue.len_of(4)), (6, 3, 0));
        assert_eq!(queue.pop(), Some("a1"));
        queue.push(4, "d1");
        assert_eq!(all(&mut queue), ["b1", "c1", "a2", "d1", "b2", "a3"]);
        assert!(queue.lines.is_empty() && queue.turns.is_empty() && queue.len() == 0);
    }

    #[test]
    fn turns_in_a_row_come_one_after_the_other_and_then_the_others() {
        let claim = |caller, turns| Claim { caller, turns: NonZeroU32::new(turns).unwrap() };
        let mut queue = FairQueue::default();
        for item in ["a1", "a2", "a3", "a4", "a5"] {
            queue.push(claim(1, 3), item);
        }
        for item in ["b1", "b2", "b3"] {
            queue.push(2, item);
        }
        assert_eq!((queue.pop(), queue.pop()), (Some("a1"), Some("a2")));
        queue.push(claim(3, 2), "c1");
        assert_eq!(all(&mut queue), ["a3", "b1", "c1", "a4", "a5", "b2", "b3"]);
        assert!(queue.lines.is_empty() && queue.turns.is_empty());
        // A turn that was not used up is not kept.
        queue.push(claim(1, 3), "a1");
        queue.push(2, "b1");
        assert_eq!(queue.pop(), Some("a1"));
        queue.push(claim(1, 3), "a2");
        assert_eq!(all(&mut queue), ["b1", "a2"]);
    }

    #[test]
    fn room_is_made_in_the_longest_line_and_never_for_it() {
        let mut queue = FairQueue::default();
        for (caller, item) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1")] {
            queue.push(caller, item);
        }
        assert_eq!(queue.make_room(1), None);
        assert_eq!(queue.make_room(2), Some("a3"));
        queue.push(2, "b2");
        assert_eq!(queue.make_room(2), None, "both have two");
        assert_eq!(queue.make_room(3), Some(if queue.len_of(1) == 1 { "a2" } else { "b2" }));
        queue.push(3, "c1");
        let mut one_each = FairQueue::default();
        one_each.push(1, "a1");
        assert_eq!(one_each.make_room(2), None, "it would push out another for its own sake");
    }

    #[test]
    fn what_is_taken_out_leaves_no_turn_behind() {
        let mut queue = FairQueue::default();
        let [first, second] = ["a1", "a2"].map(|item| queue.push(1, item));
        let other = queue.push(2, "b1");
        assert_eq!((queue.remove(first), queue.remove(first)), (Some("a1"), None));
        assert_eq!(queue.pop(), Some("a2"));
        assert_eq!((queue.remove(second), queue.remove(other)), (None, Some("b1")));
        assert!(queue.pop().is_none() && queue.turns.is_empty() && queue.len() == 0);
    }
}
