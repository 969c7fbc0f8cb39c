//! Metrics that the page shows too. The recorder's handles cannot be read, so these count beside them.

use crate::metrics::from_zero;
use metrics::{Counter, Gauge};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// A counter that can be read.
pub struct Tally {
    counter: Counter,
    total: AtomicU64,
}

impl Tally {
    /// Counts into `counter` as well.
    #[must_use]
    pub fn new(counter: Counter) -> Self {
        Self { counter: from_zero(counter), total: AtomicU64::new(0) }
    }

    /// Counts.
    pub fn add(&self, number: u64) {
        if number == 0 {
            return; // all threads share the two words
        }
        self.counter.increment(number);
        self.total.fetch_add(number, Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }
}

/// A number that goes up and down, and can be read.
pub struct Level {
    gauge: Gauge,
    value: AtomicI64,
}

impl Level {
    /// Sets `gauge` as well.
    #[must_use]
    pub fn new(gauge: Gauge) -> Self {
        gauge.set(0.0);
        Self { gauge, value: AtomicI64::new(0) }
    }

    /// Goes up, or down.
    pub fn add(&self, number: i64) {
        self.gauge.increment(number as f64);
        self.value.fetch_add(number, Relaxed);
    }

    /// Goes there.
    pub fn set(&self, number: i64) {
        self.gauge.set(number as f64);
        self.value.store(number, Relaxed);
    }

    /// Where it is.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.value.load(Relaxed)
    }
}

impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tally({})", self.total())
    }
}

impl std::fmt::Debug for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Level({})", self.get())
    }
}
