//! Counters that only grow, as the page shows them: how much a second now, and how much in all.

use std::collections::VecDeque;

/// Over how many seconds a rate is taken: long enough to be read, short enough to be called now.
const SPAN: usize = 10;

/// The rate of a counter that is looked at once a second.
#[derive(Clone, Debug, Default)]
pub struct Rate(VecDeque<u64>);

impl Rate {
    /// Looks at the counter: its rate a second over the last ten. Nothing is known before the second look.
    pub fn tick(&mut self, total: u64) -> f64 {
        self.0.push_back(total);
        if self.0.len() > SPAN + 1 {
            self.0.pop_front();
        }
        let seconds = self.0.len() - 1;
        let first = self.0.front().copied().unwrap_or(total);
        if seconds == 0 { 0.0 } else { total.saturating_sub(first) as f64 / seconds as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_taken_over_what_is_known_and_ten_seconds_at_most() {
        let mut rate = Rate::default();
        assert_eq!(rate.tick(100), 0.0);
        assert_eq!(rate.tick(130), 30.0);
        for _ in 0..10 {
            rate.tick(130);
        }
        assert_eq!(rate.tick(130), 0.0);
        assert_eq!(rate.tick(5), 0.0, "a counter that began again has no rate");
    }
}
