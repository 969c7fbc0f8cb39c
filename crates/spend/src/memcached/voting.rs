//! The spend of a token: each replica votes for itself.

use super::bucket::{self, Bound};
use super::client::ClientState;
use super::epochs::EpochState;
use super::protocol::{Command, Reply, Value};
use super::votes::{REPLICAS, Vote, Votes};
use super::world::{Undo, is_undone, random_bytes};
use crate::{ExchangeLog, Spend, Unknown};
use postern_token::{MarkId, SpentKey, UnixSeconds};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

impl ClientState {
    /// Sends the spend to all replicas at once. The verdict does not wait for a slow replica once the others have decided: that
    /// replica still writes its record, and its reply is read and dropped.
    pub(super) async fn vote(
        &self,
        key: &SpentKey,
        mark: &MarkId,
        epoch: &EpochState,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        let bound = &Bound::new(key, mark);
        let is_superseded = || self.store.marked.offered(epoch.key).is_some_and(|offered| offered != *mark);
        let replicas = self.store.options.replicas.count();
        let mut votes = Votes::of(replicas);
        let mut logs = Logs { of_replicas: [(); REPLICAS].map(|()| ExchangeLog::default()), log };
        let verdict = {
            let [a, b, c] = &mut logs.of_replicas;
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
                // Only after all were polled: commands sent in the first poll must reach every replica.
                votes.decided(is_superseded).map_or(Poll::Pending, Poll::Ready)
            })
            .await
        };
        for replica in (0..replicas).filter(|replica| votes.is_awaited(*replica)) {
            self.store.counters.overtaken(); // it has not failed, and its exchange is left out of the log
            logs.of_replicas[replica] = ExchangeLog::default();
        }
        verdict
    }

    /// Sends an `add` and, behind it, a `get` of its witness and of the record that revokes it.
    async fn vote_of(
        &self,
        replica: usize,
        bound: &Bound,
        epoch: &EpochState,
        log: &mut ExchangeLog,
    ) -> Vote {
        let (expires, value) = (epoch.expires(), Value::of_bytes::<5>(&random_bytes()));
        let Bound { record, witness, closed } = *bound;
        let add = Command::Add { key: record, value, expires };
        let commands = [&add, &Command::Get(witness), &Command::Get(closed)];
        let replies = self.send(Some(replica), commands, log).await?;
        let vote = self.read_bound(replies, epoch, expires);
        // The watch tests whether the replica takes any record.
        if vote == Err(Unknown::Rejected) && !self.store.seen.rejecting[replica].swap(true, Relaxed) {
            self.store.wake_watch.notify_one();
        }
        vote
    }

    /// Returns the vote of a replica from its replies, for a record that ends at `expires`.
    fn read_bound(&self, replies: [Reply; 3], epoch: &EpochState, expires: UnixSeconds) -> Vote {
        match replies {
            [Reply::Stored, ..] if is_undone(Undo::NoWitness) => Ok(Spend::Admitted),
            [Reply::Stored, Reply::Hit(witness), Reply::Miss] => match bucket::second(&witness) {
                Some(end) if end < expires || is_undone(Undo::LastingWitness) => Ok(Spend::Admitted),
                // A record that ends before its witness would admit the token again. Later records last longer.
                Some(end) => {
                    epoch.prolong(end.saturating_add(self.store.options.clock_tolerance));
                    Err(Unknown::Garbled)
                }
                None => Err(Unknown::Garbled),
            },
            [Reply::Stored, Reply::Miss, Reply::Hit(_) | Reply::Miss]
            | [Reply::Stored, Reply::Hit(_), Reply::Hit(_)] => Ok(Spend::Void),
            [Reply::NotStored, Reply::Hit(_) | Reply::Miss, Reply::Hit(_) | Reply::Miss] => {
                Ok(Spend::AlreadySpent)
            }
            // An error in the place of the witness could be the reply to the `add`.
            [Reply::ServerError, ..] | [_, Reply::ServerError, _] | [_, _, Reply::ServerError] => {
                Err(Unknown::Rejected)
            }
            [Reply::Hit(_) | Reply::Miss, ..]
            | [_, Reply::Stored | Reply::NotStored, _]
            | [_, _, Reply::Stored | Reply::NotStored] => Err(Unknown::Garbled),
        }
    }
}

/// The exchanges with each replica. Dropping this, also by a caller that gives up, appends them to the caller's log.
struct Logs<'a> {
    of_replicas: [ExchangeLog; REPLICAS],
    log: &'a mut ExchangeLog,
}

impl Drop for Logs<'_> {
    fn drop(&mut self) {
        for of_replica in &mut self.of_replicas {
            self.log.append(std::mem::take(of_replica));
        }
    }
}
