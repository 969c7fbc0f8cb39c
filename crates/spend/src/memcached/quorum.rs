//! Spending a token that a mark binds, on three replicas: each votes for itself.

use super::bucket::Bound;
use super::client::ClientState;
use super::endpoint::Endpoint;
use super::epochs::EpochState;
use super::failure::Failure;
use super::protocol::Value;
use super::votes::{REPLICAS, Vote, Votes};
use super::world::random_bytes;
use super::{EndpointHealth, SharedStore};
use crate::{ExchangeLog, Spend, Unknown};
use postern_token::{MarkId, SpentKey};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

impl ClientState {
    /// Asks all replicas at once. The answer does not wait for a slow one when the others have decided: its record is
    /// written all the same, and its reply read and dropped.
    pub(super) async fn vote(
        &self,
        key: &SpentKey,
        mark: &MarkId,
        epoch: &EpochState,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        let bound = &Bound::new(key, mark);
        let is_superseded = || self.store.marked.is_superseded(epoch.key, *mark);
        let mut logs = [(); REPLICAS].map(|()| ExchangeLog::default());
        let mut votes = Votes::default();
        let verdict = {
            let [a, b, c] = &mut logs;
            let mut first = pin!(self.vote_of(0, bound, epoch, a));
            let mut second = pin!(self.vote_of(1, bound, epoch, b));
            let mut third = pin!(self.vote_of(2, bound, epoch, c));
            poll_fn(|cx| {
                let mut poll = |replica, vote_of: Pin<&mut dyn Future<Output = Vote>>| {
                    if votes.is_awaited(replica)
                        && let Poll::Ready(vote) = vote_of.poll(cx)
                    {
                        votes.count(replica, vote);
                    }
                };
                poll(0, first.as_mut());
                poll(1, second.as_mut());
                poll(2, third.as_mut());
                // Not before all were polled: what is sent in the first poll must reach every replica.
                votes.decided(is_superseded).map_or(Poll::Pending, Poll::Ready)
            })
            .await
        };
        for (replica, of_replica) in logs.into_iter().enumerate() {
            if votes.is_awaited(replica) {
                self.store.counters.overtaken(); // it failed in no way
            } else {
                log.append(of_replica);
            }
        }
        verdict
    }

    async fn vote_of(
        &self,
        replica: usize,
        bound: &Bound,
        epoch: &EpochState,
        log: &mut ExchangeLog,
    ) -> Vote {
        let (expires, value) = (epoch.expires().ok_or(Unknown::TimedOut)?, Value::of_bucket(random_bytes()));
        let reply = self.send_bound(replica, bound, value, expires, log).await.map_err(Failure::unknown)?;
        let vote = self.read_bound(reply, epoch, expires);
        if vote == Err(Unknown::Rejected) {
            self.store.rejected(replica);
        }
        vote
    }
}

impl SharedStore {
    /// A replica answered a spend with an error. The watch finds out whether it takes any record.
    fn rejected(&self, replica: usize) {
        if !self.rejecting[replica].swap(true, Relaxed) {
            self.wake_watch.notify_one();
        }
    }

    pub(super) fn health_of(&self, endpoint: &Endpoint) -> EndpointHealth {
        let rejects = self.options.replicas.are_three() && self.rejecting[endpoint.replica()].load(Relaxed);
        EndpointHealth { rejects, ..endpoint.health() }
    }
}
