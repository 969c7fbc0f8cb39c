//! Durations for the live page: one atomic increment where they are measured, and evaluation once a second on another thread.
//!
//! The Prometheus histograms are unsuitable: they have few buckets, which are read as sums since the start. These have buckets of
//! 6% over nine decades, and moving windows.

use super::section::DurationSummary;
use histogram::{AtomicHistogram, Config, Histogram};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// 2^4 buckets for each doubling: a percentile is at most 1/16 too large.
const GROUPING_POWER: u8 = 4;
/// Up to 2^36 ns, which is 68 s. Longer durations count as the maximum.
const MAX_VALUE_POWER: u8 = 36;
const LARGEST: u64 = (1 << MAX_VALUE_POWER) - 1;
/// Seconds in the short window, and in each piece of the longer ones.
const SHORT: usize = 10;
/// Pieces of ten seconds in the middle and in the long window.
const MIDDLE: usize = 6;
const LONG: usize = 60;

pub(super) const WINDOWS: [&str; 3] = ["10 s", "1 min", "10 min"];

fn config() -> Config {
    Config::new(GROUPING_POWER, MAX_VALUE_POWER).expect("the two powers are constants that fit each other")
}

/// A histogram of durations. Clones share it.
#[derive(Clone)]
pub struct Latency(Arc<AtomicHistogram>);

impl Default for Latency {
    fn default() -> Self {
        Self(Arc::new(AtomicHistogram::with_config(&config())))
    }
}

impl Latency {
    /// Counts one duration with a relaxed increment; callable from any thread.
    #[inline]
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(LARGEST);
        let counted = self.0.increment(nanos.min(LARGEST));
        debug_assert!(counted.is_ok(), "every value up to the largest has a bucket");
    }
}

impl std::fmt::Debug for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Latency")
    }
}

/// The last ten minutes of a [`Latency`], which this type empties.
pub(super) struct Windows {
    source: Latency,
    /// The last seconds; `piece` is the sum of the `in_piece` seconds of the incomplete piece.
    seconds: VecDeque<Histogram>,
    piece: Histogram,
    in_piece: usize,
    /// The last complete pieces of ten seconds.
    pieces: VecDeque<Histogram>,
}

impl Windows {
    pub(super) fn over(source: &Latency) -> Self {
        Self {
            source: source.clone(),
            seconds: VecDeque::with_capacity(SHORT + 1),
            piece: Histogram::with_config(&config()),
            in_piece: 0,
            pieces: VecDeque::with_capacity(LONG + 1),
        }
    }

    /// Takes the counts of the last second. Must be called once a second.
    pub(super) fn tick(&mut self) {
        let second = self.source.0.drain();
        add(&mut self.piece, &second);
        self.seconds.push_back(second);
        if self.seconds.len() > SHORT {
            self.seconds.pop_front();
        }
        self.in_piece += 1;
        if self.in_piece == SHORT {
            let full = std::mem::replace(&mut self.piece, Histogram::with_config(&config()));
            self.pieces.push_back(full);
            if self.pieces.len() > LONG {
                self.pieces.pop_front();
            }
            self.in_piece = 0;
        }
    }

    /// Returns the summary of each window of [`WINDOWS`].
    pub(super) fn summaries(&self) -> [Option<DurationSummary>; 3] {
        let mut short = Histogram::with_config(&config());
        self.seconds.iter().for_each(|second| add(&mut short, second));
        [summary(&short), self.summary_of(MIDDLE), self.summary_of(LONG)]
    }

    /// Returns the summary of the longest window.
    pub(super) fn summary(&self) -> Option<DurationSummary> {
        self.summary_of(LONG)
    }

    /// Returns the summary of the last pieces and the incomplete one.
    fn summary_of(&self, pieces: usize) -> Option<DurationSummary> {
        let mut sum = self.piece.clone();
        self.pieces.iter().rev().take(pieces).for_each(|piece| add(&mut sum, piece));
        summary(&sum)
    }

    /// Returns the counts of the last second, in buckets with these upper bounds (in seconds) and one for the rest.
    pub(super) fn column(&self, bounds: &[f64]) -> Vec<u64> {
        let mut column = vec![0; bounds.len() + 1];
        for bucket in self.seconds.back().into_iter().flatten().filter(|bucket| bucket.count() > 0) {
            // Uses the middle of the bucket, which may extend across a bound.
            let middle = (bucket.start() + (bucket.end() - bucket.start()) / 2) as f64 / 1e9;
            column[bounds.partition_point(|bound| *bound < middle)] += bucket.count();
        }
        column
    }
}

fn add(sum: &mut Histogram, other: &Histogram) {
    let added = sum.checked_add_assign(other);
    debug_assert!(added.is_ok(), "all have one configuration, and 2^64 is never counted");
}

fn summary(histogram: &Histogram) -> Option<DurationSummary> {
    let found = histogram.quantiles(&[0.5, 0.95, 0.99, 0.999]).ok()??;
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let mut at = found.entries().values().map(|bucket| seconds(bucket.end()));
    Some(DurationSummary {
        count: u64::try_from(found.total_count()).unwrap_or(u64::MAX),
        p50: at.next()?,
        p95: at.next()?,
        p99: at.next()?,
        p999: at.next()?,
        max: seconds(found.max().end()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticked(windows: &mut Windows, seconds: usize) {
        (0..seconds).for_each(|_| windows.tick());
    }

    #[test]
    fn percentiles_are_at_most_a_sixteenth_too_large() {
        let latency = Latency::default();
        let mut windows = Windows::over(&latency);
        (1..=10_000_u64).for_each(|n| latency.record(Duration::from_micros(n)));
        windows.tick();
        let [short, middle, long] = windows.summaries();
        let found = short.unwrap();
        assert_eq!((short, middle), (middle, long));
        for (value, exact) in [
            (found.p50, 0.005),
            (found.p95, 0.0095),
            (found.p99, 0.0099),
            (found.p999, 0.00999),
            (found.max, 0.01),
        ] {
            assert!((exact..=exact * 17.0 / 16.0).contains(&value), "{value} for {exact}");
        }
        assert_eq!(found.count, 10_000);
    }

    #[test]
    fn each_window_forgets_at_its_own_time() {
        let latency = Latency::default();
        let mut windows = Windows::over(&latency);
        latency.record(Duration::from_millis(40));
        ticked(&mut windows, 10);
        assert!(windows.summaries().iter().all(Option::is_some));
        ticked(&mut windows, 1);
        let [short, middle, long] = windows.summaries();
        assert!(short.is_none() && middle.is_some() && long.is_some());
        ticked(&mut windows, 59);
        let [_, middle, long] = windows.summaries();
        assert!(middle.is_none() && long.is_some());
        ticked(&mut windows, 540);
        assert!(windows.summary().is_none());
    }

    #[test]
    fn a_column_counts_the_last_second_by_bounds() {
        let latency = Latency::default();
        let mut windows = Windows::over(&latency);
        for micros in [5, 50, 50, 40_000, 5_000_000] {
            latency.record(Duration::from_micros(micros));
        }
        windows.tick();
        assert_eq!(windows.column(&[0.000_01, 0.000_1, 0.038, 0.042, 1.0]), [1, 2, 0, 1, 0, 1]);
        windows.tick();
        assert_eq!(windows.column(&[0.01]), [0, 0]);
    }

    #[test]
    fn what_is_longer_than_the_longest_is_counted_all_the_same() {
        let latency = Latency::default();
        let mut windows = Windows::over(&latency);
        latency.record(Duration::MAX);
        windows.tick();
        assert_eq!(windows.summary().unwrap().count, 1);
    }
}
