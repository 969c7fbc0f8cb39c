//! Pauses after consecutive failures of a server. No I/O and no randomness: counts and jitter are arguments.

use std::time::Duration;

/// Pauses that double from `first` to `longest`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// Returns the pause after a failure that `failures` others precede.
    pub fn pause(self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.min(31)).min(self.longest)
    }
}

/// Shortens `pause` by up to a half, but not below the server's `Retry-After`, which is lengthened by up to a fifth. `jitter` is
/// random, from 0 to 1: clients that failed together must not retry together.
pub fn jittered(pause: Duration, retry_after: Duration, jitter: f64) -> Duration {
    pause.mul_f64(0.5 + jitter / 2.0).max(retry_after.mul_f64(1.0 + jitter / 5.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_to_the_longest() {
        let backoff = Backoff { first: SECOND, longest: 5 * SECOND };
        let pauses = [0, 1, 2, 3, u32::MAX].map(|failures| backoff.pause(failures).as_secs());
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn jitter_shortens_our_pause_and_never_the_servers() {
        assert_eq!([0.0, 1.0].map(|jitter| jittered(4 * SECOND, SECOND, jitter)), [2 * SECOND, 4 * SECOND]);
        assert_eq!(
            [0.0, 1.0].map(|jitter| jittered(SECOND, 10 * SECOND, jitter)),
            [10 * SECOND, 12 * SECOND]
        );
    }
}
