//! Metrics that the live page also shows. The recorder's handles cannot be read, so these types keep a copy of the value.

use crate::metrics::from_zero;
use metrics::{Counter, Gauge};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

pub struct ReadableCounter {
    counter: Counter,
    total: AtomicU64,
}

impl ReadableCounter {
    pub fn new(counter: Counter) -> Self {
        Self { counter: from_zero(counter), total: AtomicU64::new(0) }
    }

    pub fn add(&self, number: u64) {
        if number == 0 {
            return; // avoids a write to memory that all threads share
        }
        self.counter.increment(number);
        self.total.fetch_add(number, Relaxed);
    }

    /// Returns the sum so far.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }
}

pub struct ReadableGauge {
    gauge: Gauge,
    value: AtomicI64,
}

impl ReadableGauge {
    pub fn new(gauge: Gauge) -> Self {
        gauge.set(0.0);
        Self { gauge, value: AtomicI64::new(0) }
    }

    pub fn add(&self, number: i64) {
        self.gauge.increment(number as f64);
        self.value.fetch_add(number, Relaxed);
    }

    pub fn set(&self, number: i64) {
        self.gauge.set(number as f64);
        self.value.store(number, Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.value.load(Relaxed)
    }
}

impl std::fmt::Debug for ReadableCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadableCounter({})", self.total())
    }
}

impl std::fmt::Debug for ReadableGauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadableGauge({})", self.get())
    }
}
