//! Percentiles by sorting: runs are short enough to keep every value.

use std::fmt;
use std::time::Duration;

/// Of a set of times.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Percentiles {
    p50: Duration,
    p99: Duration,
    max: Duration,
}

impl Percentiles {
    pub(crate) fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut sorted: Vec<_> = times.collect();
        sorted.sort_unstable();
        Self { p50: rank(&sorted, 50), p99: rank(&sorted, 99), max: rank(&sorted, 100) }
    }
}

/// The smallest value that is not less than this percentage of all (nearest rank); zero where there are none.
fn rank(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    rank.checked_sub(1).map_or(Duration::ZERO, |index| sorted[index])
}

/// As JSON, in microseconds.
impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        write!(f, r#"{{"p50":{:.1},"p99":{:.1},"max":{:.1}}}"#, us(self.p50), us(self.p99), us(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::Percentiles;
    use std::time::Duration;

    #[test]
    fn of_the_first_hundred_numbers_in_any_order() {
        let us = Duration::from_micros;
        let percentiles = Percentiles::of((1..=100).rev().map(us));
        assert_eq!(percentiles, Percentiles { p50: us(50), p99: us(99), max: us(100) });
        assert_eq!(percentiles.to_string(), r#"{"p50":50.0,"p99":99.0,"max":100.0}"#);
    }

    #[test]
    fn of_one_and_of_none() {
        let us = Duration::from_micros;
        assert_eq!(Percentiles::of([us(7)].into_iter()), Percentiles { p50: us(7), p99: us(7), max: us(7) });
        assert_eq!(Percentiles::of([].into_iter()).to_string(), r#"{"p50":0.0,"p99":0.0,"max":0.0}"#);
    }
}
