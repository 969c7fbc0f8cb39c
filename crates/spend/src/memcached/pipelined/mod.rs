//! The pipelined transport: one connection carries the commands of all callers at once.
//!
//! Commands that come together leave in one write, replies are matched in order, and no caller waits for another's
//! round trip. `pipeline` is the queue, `joined` combines `get`s of several keys, `connection` is the task that serves
//! the queue.

mod connection;
mod joined;
mod pipeline;

use super::endpoint::{Carrier, Endpoint};
use super::failure::Failure;
use super::options::Limits;
use super::protocol::{Command, Reply};
use super::world::since;
use crate::Unknown;
use crate::exchange_log::Entry;
use pipeline::{Pipeline, Waiting};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The pipelines to one address.
pub(crate) struct Pipelined {
    pipelines: Vec<(Arc<Pipeline>, JoinHandle<()>)>,
    slow: Duration,
}

impl Pipelined {
    /// Starts the connections on the present runtime. Until the first is proven, everything is refused.
    pub(crate) fn start(endpoint: &Arc<Endpoint>, connections: usize, queue: usize, limits: Limits) -> Self {
        let pipelines = (0..connections.max(1)).map(|_| {
            let pipeline = Arc::new(Pipeline::new(queue.max(1)));
            let carrier: Weak<dyn Carrier> = Arc::<Pipeline>::downgrade(&pipeline);
            endpoint.carried_by(carrier);
            let task = tokio::spawn(connection::run(Arc::clone(&pipeline), Arc::clone(endpoint), limits));
            (pipeline, task)
        });
        Self { pipelines: pipelines.collect(), slow: limits.slow }
    }

    /// Sends all commands in one write, `add`s before `get`s. There is no reply before the last one has come: a reply to an
    /// `add` names no key, and one too many before it would have shifted it.
    pub(crate) async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        let waiting = self.idlest()?.submit_all(commands, entry.began)?;
        Noting { waiting, entry, slow: self.slow }.answers().await
    }

    fn idlest(&self) -> Result<&Arc<Pipeline>, Failure> {
        let idlest = self
            .pipelines
            .iter()
            .filter(|(pipeline, _)| pipeline.is_up())
            .min_by_key(|(pipeline, _)| pipeline.outstanding());
        let chosen = idlest.or(self.pipelines.first()).map(|(pipeline, _)| pipeline);
        chosen.ok_or(Failure::NotSent(Unknown::Unavailable(io::ErrorKind::NotConnected)))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.pipelines.iter().any(|(pipeline, _)| pipeline.is_up())
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.pipelines.iter().map(|(pipeline, _)| pipeline.outstanding()).sum()
    }
}

/// A caller's wait. Dropping it writes the times to the exchange log, however the wait ended.
struct Noting<'a, 'b, const N: usize> {
    waiting: [Waiting; N],
    entry: &'a mut Entry<'b>,
    slow: Duration,
}

impl<const N: usize> Noting<'_, '_, N> {
    async fn answers(mut self) -> Result<[Reply; N], Failure> {
        let mut replies = [Reply::Miss; N];
        for (index, reply) in replies.iter_mut().enumerate() {
            let answer = (&mut self.waiting[index]).await;
            self.entry.change(|exchange| {
                exchange.written = answer.written;
                exchange.first_byte = exchange.first_byte.or(answer.read);
                // They were read for the oldest of the burst, and this one may have come later.
                exchange.tcp = answer.tcp.filter(|_| since(exchange.began) > self.slow);
            });
            *reply = answer.result?;
        }
        Ok(replies)
    }
}

impl<const N: usize> Drop for Noting<'_, '_, N> {
    fn drop(&mut self) {
        if let Some(written @ Some(_)) = self.waiting.first().map(Waiting::written) {
            self.entry.change(|exchange| exchange.written = written);
        }
    }
}

impl Carrier for Pipeline {
    fn outstanding(&self) -> usize {
        self.outstanding()
    }

    fn capacity(&self) -> usize {
        self.limit()
    }
}

impl Drop for Pipelined {
    fn drop(&mut self) {
        self.pipelines.iter().for_each(|(_, task)| task.abort());
    }
}
