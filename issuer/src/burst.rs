//! A bound on how many tokens an account gets in a short time. Nothing here reads a clock.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// A rate of tokens, and a number that may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// Tokens a second, on average.
    pub tokens_per_second: NonZeroU32,
    /// Tokens at once, after a pause.
    pub burst_tokens: NonZeroU32,
}

/// What an account may still have at this moment. A restart fills it up.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    limit: Option<Burst>,
    tokens: f64,
    /// When `tokens` was right.
    at: Option<Instant>,
}

impl Pace {
    /// Another limit from now on, or none.
    pub(crate) fn set(&self, limit: Option<Burst>) {
        let state = &mut *self.state.lock();
        if state.limit != limit {
            *state = State { limit, tokens: 0.0, at: None };
        }
    }

    /// Takes up to `most_wanted` tokens, or says how long until there is one.
    pub(crate) fn take(&self, now: Instant, most_wanted: u64) -> Result<u64, Duration> {
        let State { limit, tokens, at } = &mut *self.state.lock();
        let Some(limit) = limit else { return Ok(most_wanted) };
        let (rate, most) = (f64::from(limit.tokens_per_second.get()), f64::from(limit.burst_tokens.get()));
        *tokens = match *at {
            None => most,
            Some(then) => (*tokens + now.saturating_duration_since(then).as_secs_f64() * rate).min(most),
        };
        *at = Some(at.map_or(now, |then| then.max(now)));
        if *tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - *tokens) / rate));
        }
        let taken = tokens.floor().min(most_wanted as f64);
        *tokens -= taken;
        Ok(taken as u64)
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
    fn another_limit_begins_anew_and_the_same_one_does_not() {
        let (pace, start) = (pace(1, 1), Instant::now());
        assert!(pace.take(start, 1).is_ok() && pace.take(start, 1).is_err());
        let same = pace.state.lock().limit;
        pace.set(same);
        assert!(pace.take(start, 1).is_err());
        pace.set(None);
        assert!((0..100).all(|_| pace.take(start, 1).is_ok()));
    }
}
