//! A bound on how many tokens an account gets in a short time. Nothing here reads a clock.

use crate::share::Share;
use parking_lot::Mutex;
use postern_daemon::bucket::Bucket;
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
    /// A limit, and which part of it this issuer gives.
    limit: Option<(Burst, Share)>,
    bucket: Bucket,
}

impl Pace {
    /// Another limit from now on, or none. Of what may come at once a share is one token at least.
    pub(crate) fn set(&self, limit: Option<Burst>, share: Share) {
        let state = &mut *self.state.lock();
        let limit = limit.map(|limit| (limit, share));
        if state.limit != limit {
            *state = State { limit, bucket: Bucket::default() };
        }
    }

    /// Takes up to `most_wanted` tokens, or says how long until there is one.
    pub(crate) fn take(&self, now: Instant, most_wanted: u64) -> Result<u64, Duration> {
        let State { limit, bucket } = &mut *self.state.lock();
        let Some((limit, share)) = limit else { return Ok(most_wanted) };
        let rate = f64::from(limit.tokens_per_second.get()) * share.ratio();
        let most = share.of(limit.burst_tokens.get().into()).max(1) as f64;
        bucket.take(rate, most, most_wanted, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: u32, burst: u32) -> Pace {
        let [tokens_per_second, burst_tokens] = [rate, burst].map(|number| NonZeroU32::new(number).unwrap());
        let pace = Pace::default();
        pace.set(Some(Burst { tokens_per_second, burst_tokens }), Share::WHOLE);
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
        pace.set(same.map(|(limit, _)| limit), Share::WHOLE);
        assert!(pace.take(start, 1).is_err());
        pace.set(None, Share::WHOLE);
        assert!((0..100).all(|_| pace.take(start, 1).is_ok()));
    }

    #[test]
    fn a_share_of_a_burst_is_one_token_at_least_and_that_of_a_rate_is_exact() {
        let (pace, start) = (pace(1, 5), Instant::now());
        let whole = pace.state.lock().limit.unwrap().0;
        pace.set(Some(whole), "1/4".parse().unwrap());
        assert_eq!(pace.take(start, 5), Ok(1));
        assert_eq!(pace.take(start, 5), Err(Duration::from_secs(4)));
        pace.set(Some(whole), "1/2".parse().unwrap());
        assert_eq!(pace.take(start, 5), Ok(2));
    }
}
