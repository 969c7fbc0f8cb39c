//! Pseudo-random numbers from a seed (SplitMix64).

use std::time::Duration;

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// Creates the stream of a seed and a purpose. Streams of different purposes are independent.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut chance = Self(seed ^ purpose.wrapping_mul(0xd134_2543_de82_ef95));
        chance.next();
        chance
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns an index into a list of `length` elements.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a number from `first` to `last`, inclusive.
    pub(crate) fn within(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// Returns a duration from `first` to `last` milliseconds, inclusive.
    pub(crate) fn millis(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_millis(self.within(first, last))
    }

    /// Returns `true` with probability 1 in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }

    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()));
        bytes
    }
}
