//! What happens when: events in the order of their time, and of their making where the times are equal.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

/// Nanoseconds since the run began.
pub(crate) type Nanos = u64;

pub(crate) const MILLISECOND: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000_000_000;

struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A heap, and beside it one list for each length of time that is waited again and again: its entries come in order by
/// themselves, and a heap with a hundred thousand alarms that hardly ever ring would be the cost of everything.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    alarms: Vec<(Nanos, VecDeque<Entry<E>>)>,
    number: u64,
    now: Nanos,
}

impl<E> Queue<E> {
    /// An empty queue with lists for these spans.
    pub(crate) fn new(spans: impl IntoIterator<Item = Nanos>) -> Self {
        let alarms = spans.into_iter().map(|span| (span, VecDeque::new())).collect();
        Self { heap: BinaryHeap::new(), alarms, number: 0, now: 0 }
    }

    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    pub(crate) fn at(&mut self, at: Nanos, event: E) {
        self.number += 1;
        self.heap.push(Reverse(Entry { at: at.max(self.now), number: self.number, event }));
    }

    /// An event after one of the spans that the queue was made with.
    pub(crate) fn after(&mut self, list: usize, event: E) {
        self.number += 1;
        let (span, entries) = &mut self.alarms[list];
        entries.push_back(Entry { at: self.now + *span, number: self.number, event });
    }

    pub(crate) fn pop(&mut self) -> Option<E> {
        let heap = self.heap.peek().map(|Reverse(entry)| (entry.at, entry.number));
        let fronts = self.alarms.iter().map(|(_, list)| list.front().map(|entry| (entry.at, entry.number)));
        let first = fronts
            .enumerate()
            .filter_map(|(list, front)| front.map(|front| (front, list)))
            .min_by_key(|(front, _)| *front);
        let entry = match (heap, first) {
            (Some(heap), Some((front, list))) if front < heap => self.alarms[list].1.pop_front(),
            (None, Some((_, list))) => self.alarms[list].1.pop_front(),
            _ => self.heap.pop().map(|Reverse(entry)| entry),
        }?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// How many events wait.
    pub(crate) fn len(&self) -> usize {
        self.heap.len() + self.alarms.iter().map(|(_, list)| list.len()).sum::<usize>()
    }
}

/// Numbers that look like chance and are the same for the same seed (splitmix64).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    /// Below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// From 0 to below 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && self.share() < share
    }

    /// A wait of this mean, as between things that come independently of each other.
    pub(crate) fn wait(&mut self, mean: f64) -> Nanos {
        (-(1.0 - self.share()).ln() * mean) as Nanos
    }
}

/// A number with its bits mixed: a hash.
pub(crate) fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
