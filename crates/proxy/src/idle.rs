//! A timer for connections on which nothing has moved for too long.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Debug)]
pub struct Idle {
    /// Longest allowed pause.
    pub(crate) limit: Duration,
    alarm: Pin<Box<Sleep>>,
}

impl Idle {
    /// Starts a timer that allows no pause longer than `limit` from now on.
    pub fn new(limit: Duration) -> Self {
        Self { limit, alarm: Box::pin(sleep_until(Instant::now() + limit)) }
    }

    /// Becomes ready when the limit has passed since `moved`, the time of the last movement. The timer is not reset at each
    /// movement: when it fires, it is set again for the remaining time.
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

    /// Awaits `work` as long as something moves; returns `None` once nothing has moved for the limit.
    pub async fn during<F: Future>(mut self, moved: impl Fn() -> Instant, work: F) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_since(moved(), cx).map(|()| None),
        })
        .await
    }
}
