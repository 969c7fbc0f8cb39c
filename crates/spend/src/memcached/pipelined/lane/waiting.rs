//! The caller's side of a lane.

use super::{Answer, Lane};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// One caller's wait for its reply. Dropped early, its place stays in the order until the reply has come.
pub(crate) struct Waiting {
    lane: Arc<Lane>,
    place: u32,
    collected: bool,
}

impl Waiting {
    pub(super) fn new(lane: Arc<Lane>, place: u32) -> Self {
        Self { lane, place, collected: false }
    }

    /// When the command had been written, while there is no answer.
    pub(crate) fn written(&self) -> Option<Instant> {
        if self.collected { None } else { self.lane.written(self.place) }
    }
}

impl Future for Waiting {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.lane.poll(self.place, cx);
        self.collected = answer.is_ready();
        answer
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.collected {
            self.lane.abandon(self.place);
        }
    }
}
