//! Limits of an account: its quota, a number of tokens in each aligned window of time, and the tokens that it gets in a short time.
//! Nothing here reads a clock.

mod meter;

pub(crate) use meter::{Change, Changed, Charge, Meter, NoCharge, Spent, Usage, Writing};

use parking_lot::Mutex;
use postern_config::{ConfigDuration, text_value};
use postern_daemon::bucket::Bucket;
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Tokens per period, written "10000/1d".
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    tokens: u64,
    period: ConfigDuration,
}

const ACCEPTED: &str = "a number of tokens and a period, such as \"10000/1d\" or \"50/1h\"";

impl Quota {
    /// Creates a quota of `tokens` in each `period`, which is truncated to whole seconds and is at least one second.
    #[must_use]
    pub fn new(tokens: u64, period: ConfigDuration) -> Self {
        let seconds = period.get().as_secs().max(1);
        Self { tokens, period: ConfigDuration(Duration::from_secs(seconds)) }
    }

    /// Returns the number of tokens per period.
    #[must_use]
    pub fn tokens(self) -> u64 {
        self.tokens
    }

    pub(crate) fn period(self) -> ConfigDuration {
        self.period
    }

    /// Returns the length of the period in seconds.
    pub(crate) fn seconds(self) -> u64 {
        self.period.get().as_secs()
    }

    /// Returns the first second of the window that contains `now`.
    pub(crate) fn window(self, now: UnixSeconds) -> UnixSeconds {
        UnixSeconds(now.0 - now.0 % self.seconds())
    }
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((tokens, period)) = text.split_once('/') else {
            return Err("there is no \"/\" between the tokens and the period".to_owned());
        };
        let tokens = tokens.trim();
        if !tokens.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("it does not begin with a whole number of tokens".to_owned());
        }
        let tokens = tokens.parse().map_err(|_| "the number of tokens is missing or too large".to_owned())?;
        let period: ConfigDuration =
            period.trim().parse().map_err(|error| format!("the period is wrong: {error}"))?;
        if period < ConfigDuration::secs(1) {
            return Err("the period is shorter than a second".to_owned());
        }
        Ok(Self::new(tokens, period))
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tokens, self.period)
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

text_value!(Quota, ACCEPTED);

/// An average rate of tokens, and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// Tokens per second, on average.
    pub tokens_per_second: NonZeroU32,
    /// Tokens at once, after a pause.
    pub burst_tokens: NonZeroU32,
}

impl Burst {
    /// Returns the limit of a rate and a burst, if they are set; `None` if only one of them is.
    pub(crate) fn of(rate: Option<NonZeroU32>, burst: Option<NonZeroU32>) -> Option<Option<Self>> {
        match (rate, burst) {
            (Some(tokens_per_second), Some(burst_tokens)) => {
                Some(Some(Self { tokens_per_second, burst_tokens }))
            }
            (None, None) => Some(None),
            _ => None,
        }
    }
}

/// The tokens that an account may have at this moment. A restart refills them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    limit: Option<Burst>,
    bucket: Bucket,
}

impl Pace {
    /// Sets another limit, or none.
    pub(crate) fn set(&self, limit: Option<Burst>) {
        let state = &mut *self.state.lock();
        if state.limit != limit {
            *state = State { limit, bucket: Bucket::default() };
        }
    }

    /// Takes up to `most_wanted` tokens. The error is the time until the next token.
    pub(crate) fn take(&self, now: Instant, most_wanted: u64) -> Result<u64, Duration> {
        let State { limit, bucket } = &mut *self.state.lock();
        let Some(limit) = limit else { return Ok(most_wanted) };
        let [rate, most] =
            [limit.tokens_per_second, limit.burst_tokens].map(|number| f64::from(number.get()));
        bucket.take(rate, most, most_wanted, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: u32, burst: u32) -> Pace {
        let [tokens_per_second, burst_tokens] = [rate, burst].map(|number| NonZeroU32::new(number).unwrap());
        let pace = Pace::default();
        pace.set(Some(Burst { tokens_per_second, burst_tokens }));
        pace
    }

    #[test]
    fn a_burst_is_given_at_once_and_then_the_rate() {
        let (pace, start) = (pace(2, 5), Instant::now());
        assert_eq!((0..10).filter(|_| pace.take(start, 1).is_ok()).count(), 5);
        assert_eq!(pace.take(start, 1).unwrap_err(), Duration::from_millis(500));
        let later = start + Duration::from_secs(1);
        assert_eq!((0..10).filter(|_| pace.take(later, 1).is_ok()).count(), 2);
        let much_later = start + Duration::from_secs(3_600);
        assert_eq!((0..10).filter(|_| pace.take(much_later, 1).is_ok()).count(), 5);
        assert!(pace.take(start, 1).is_err(), "a moment that was overtaken gives nothing");
        assert!(pace.take(much_later, 1).is_err(), "and does not make time pass twice");
    }

    #[test]
    fn a_batch_gets_what_there_is() {
        let (pace, start) = (pace(2, 5), Instant::now());
        assert_eq!(pace.take(start, 3), Ok(3));
        assert_eq!(pace.take(start, 3), Ok(2));
        assert!(pace.take(start, 3).is_err());
        assert_eq!(pace.take(start + Duration::from_secs(1), 100), Ok(2));
    }

    #[test]
    fn a_different_limit_starts_over_and_the_same_one_does_not() {
        let (pace, start) = (pace(1, 1), Instant::now());
        assert!(pace.take(start, 1).is_ok() && pace.take(start, 1).is_err());
        let same = pace.state.lock().limit;
        pace.set(same);
        assert!(pace.take(start, 1).is_err());
        pace.set(None);
        assert!((0..100).all(|_| pace.take(start, 1).is_ok()));
    }
}
