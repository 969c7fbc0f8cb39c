//! An alarm for when nothing has moved for too long.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long nothing may move, and the alarm that looks.
#[derive(Debug)]
pub struct Idle {
    limit: Duration,
    alarm: Pin<Box<Sleep>>,
}

impl Idle {
    /// Nothing may pause for longer than `limit`, from now on.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, alarm: Box::pin(sleep_until(Instant::now() + limit)) }
    }

    /// How long nothing may move.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Ready when the limit has passed since something `moved` last. The alarm is not moved each time that something does:
    /// when it rings, it is set anew for the time that is left.
    pub fn poll_since(&mut self, moved: Instant, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let end = moved + self.limit;
            if end <= Instant::now() {
                return Poll::Ready(());
            }
            self.alarm.as_mut().reset(end);
        }
    }

    /// Awaits `work`, for as long as something moves: `None` when the limit has passed since it did.
    pub async fn during<F: Future>(mut self, moved: impl Fn() -> Instant, work: F) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_since(moved(), cx).map(|()| None),
        })
        .await
    }
}
