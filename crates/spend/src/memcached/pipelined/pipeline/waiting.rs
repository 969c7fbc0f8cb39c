//! The caller's side of a pipeline.

use super::Pipeline;
use crate::memcached::failure::Failure;
use crate::memcached::protocol::Reply;
use postern_tcp_info::TcpFacts;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// The result of a command, for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: Result<Reply, Failure>,
    /// When the command's burst had been written, and when the read returned that brought the reply to its end.
    pub(crate) written: Option<Instant>,
    pub(crate) read: Option<Instant>,
    /// The connection, when the oldest of the burst had waited long.
    pub(crate) tcp: Option<TcpFacts>,
}

impl Answer {
    pub(super) fn failed(failure: Failure, written: Option<Instant>, tcp: Option<TcpFacts>) -> Self {
        Self { result: Err(failure), written, read: None, tcp }
    }
}

/// One caller's wait for its reply. Dropped early, its place stays in the order until the reply has come.
pub(crate) struct Waiting {
    pipeline: Arc<Pipeline>,
    place: u32,
    collected: bool,
}

impl Waiting {
    pub(super) fn new(pipeline: Arc<Pipeline>, place: u32) -> Self {
        Self { pipeline, place, collected: false }
    }

    /// When the command had been written, while there is no answer.
    pub(crate) fn written(&self) -> Option<Instant> {
        if self.collected { None } else { self.pipeline.written(self.place) }
    }
}

impl Future for Waiting {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.pipeline.poll(self.place, cx);
        self.collected = answer.is_ready();
        answer
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.collected {
            self.pipeline.abandon(self.place);
        }
    }
}
