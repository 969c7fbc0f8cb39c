//! A token bucket. Its caller has the clock, and the limits, which may be others each time.

use std::time::{Duration, Instant};

/// What may still be taken. It begins full.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    level: f64,
    /// When `level` was right.
    at: Option<Instant>,
}

impl Bucket {
    /// Takes up to `most_wanted` of what the bucket holds: `rate` a second flow in, and `most` is all that it can hold.
    ///
    /// # Errors
    /// How long until the bucket holds one again.
    pub fn take(&mut self, rate: f64, most: f64, most_wanted: u64, now: Instant) -> Result<u64, Duration> {
        self.level = match self.at {
            None => most,
            Some(then) => (self.level + now.saturating_duration_since(then).as_secs_f64() * rate).min(most),
        };
        self.at = Some(self.at.map_or(now, |then| then.max(now)));
        if self.level < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.level) / rate));
        }
        let taken = self.level.floor().min(most_wanted as f64);
        self.level -= taken;
        Ok(taken as u64)
    }
}
