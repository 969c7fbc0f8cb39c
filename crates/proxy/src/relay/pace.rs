//! How fast a direction may go: a token bucket that holds a second's worth.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// Less is not read at once where more is allowed soon: small reads cost as much as large ones.
const WORTH_READING: f64 = 16.0 * 1024.0;

/// The bytes that may go now, and when that was reckoned.
pub(super) struct Pace {
    /// Bytes a second.
    rate: f64,
    level: f64,
    at: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Pace {
    pub(super) fn new(bytes_a_second: u64) -> Box<Self> {
        let (rate, now) = (bytes_a_second.max(1) as f64, Instant::now());
        Box::new(Self { rate, level: rate, at: now, alarm: Box::pin(sleep_until(now)) })
    }

    /// How many bytes may be read now: at least one.
    pub(super) fn poll_allowance(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let least = (self.rate / 10.0).clamp(1.0, WORTH_READING);
        loop {
            let now = Instant::now();
            self.level = (self.level + (now - self.at).as_secs_f64() * self.rate).min(self.rate);
            self.at = now;
            if self.level >= least {
                return Poll::Ready(self.level as usize);
            }
            let wait = Duration::from_secs_f64((least - self.level) / self.rate);
            self.alarm.as_mut().reset(now + wait.max(Duration::from_millis(1)));
            ready!(self.alarm.as_mut().poll(cx));
        }
    }

    pub(super) fn spend(&mut self, bytes: usize) {
        self.level -= bytes as f64;
    }
}
