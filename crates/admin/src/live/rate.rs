use std::collections::VecDeque;
use std::time::Instant;

/// Number of samples over which a rate is calculated: enough to be readable, few enough to be current.
const SPAN: usize = 10;

/// The rate of a counter that is sampled once a second.
#[derive(Clone, Debug, Default)]
pub struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    /// Samples the counter. Returns its rate per second since the tenth sample before; 0 at the first.
    pub fn tick(&mut self, total: u64) -> f64 {
        self.tick_at(Instant::now(), total)
    }

    /// Uses the clock and not the number of samples, which come late on a busy machine.
    fn tick_at(&mut self, now: Instant, total: u64) -> f64 {
        self.0.push_back((now, total));
        if self.0.len() > SPAN + 1 {
            self.0.pop_front();
        }
        let (began, before) = self.0.front().copied().unwrap_or((now, total));
        let seconds = now.saturating_duration_since(began).as_secs_f64();
        if seconds > 0.0 { total.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rate_is_taken_over_what_is_known_and_ten_seconds_at_most() {
        let (mut rate, mut now) = (Rate::default(), Instant::now());
        let mut tick = |seconds: u64, total: u64| {
            now += Duration::from_secs(seconds);
            rate.tick_at(now, total)
        };
        assert_eq!(tick(0, 100), 0.0);
        assert_eq!(tick(1, 130), 30.0);
        assert_eq!(tick(4, 200), 20.0, "a look that came late");
        for _ in 0..10 {
            tick(1, 200);
        }
        assert_eq!(tick(1, 200), 0.0);
        assert_eq!(tick(1, 5), 0.0, "a counter that began again has no rate");
    }
}
