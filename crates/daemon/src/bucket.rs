//! A token bucket. The caller supplies the clock and the limits, which may differ on each call.

use std::time::{Duration, Instant};

/// A token bucket, initially full.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    level: f64,
    /// Time of `level`; `None` before the first use.
    at: Option<Instant>,
}

impl Bucket {
    /// Takes up to `most_wanted` tokens. The bucket gains `rate` tokens a second and holds at most `most`.
    ///
    /// # Errors
    /// The time until the bucket holds one token again.
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
