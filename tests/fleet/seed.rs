//! Reproducible randomness: every draw follows from one seed, which is printed.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The number. `POSTERN_FLEET_SEED` in the environment chooses it.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl Seed {
    pub fn new() -> Self {
        let chosen = std::env::var("POSTERN_FLEET_SEED").ok();
        let chosen = chosen.map(|text| text.parse().expect("POSTERN_FLEET_SEED is a number"));
        let now = || std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos().into();
        Self(chosen.unwrap_or_else(now))
    }

    /// One of the numbers below `bound`: the same for the same purpose and index.
    pub fn draw(self, purpose: &str, index: usize, bound: usize) -> usize {
        let mut hasher = DefaultHasher::new();
        (self.0, purpose, index).hash(&mut hasher);
        usize::try_from(hasher.finish() % u64::try_from(bound).unwrap()).unwrap()
    }

    /// The items in a random order.
    pub fn shuffled<T>(self, mut items: Vec<T>) -> Vec<T> {
        for last in (1..items.len()).rev() {
            items.swap(last, self.draw("order", last, last + 1));
        }
        items
    }
}
