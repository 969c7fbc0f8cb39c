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
use super::protocol::{BoundReply, Command, Reply};
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

    pub(crate) async fn exchange(&self, command: &Command, entry: &mut Entry<'_>) -> Result<Reply, Failure> {
        let waiting = self.idlest()?.submit(command, entry.began)?;
        Noting { waiting, entry, slow: self.slow }.answer().await
    }

    /// An `add` and, in the same write behind it, a `get` of its witness.
    pub(crate) async fn exchange_bound(
        &self,
        [add, get]: [&Command; 2],
        entry: &mut Entry<'_>,
    ) -> Result<BoundReply, Failure> {
        let [waiting, witness] = self.idlest()?.submit_all([add, get], entry.began)?;
        let reply = Noting { waiting, entry, slow: self.slow }.answer().await?;
        let witness = if reply == Reply::Stored { Some(witness.await.result) } else { None };
        Ok(BoundReply { reply, witness: witness.map(|result| result.map_err(Failure::unknown)) })
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
struct Noting<'a, 'b> {
    waiting: Waiting,
    entry: &'a mut Entry<'b>,
    slow: Duration,
}

impl Noting<'_, '_> {
    async fn answer(mut self) -> Result<Reply, Failure> {
        let answer = (&mut self.waiting).await;
        self.entry.change(|exchange| {
            (exchange.written, exchange.first_byte) = (answer.written, answer.read);
            // They were read for the oldest of the burst, and this one may have come later.
            exchange.tcp = answer.tcp.filter(|_| since(exchange.began) > self.slow);
        });
        answer.result
    }
}

impl Drop for Noting<'_, '_> {
    fn drop(&mut self) {
        if let written @ Some(_) = self.waiting.written() {
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

    fn look(&self) {
        self.wake_task();
    }
}

impl Drop for Pipelined {
    fn drop(&mut self) {
        self.pipelines.iter().for_each(|(_, task)| task.abort());
    }
}
