//! Spending a token: each replica votes for itself.

use super::bucket::{self, Bound};
use super::client::{ClientState, NOT_CONNECTED, SharedStore};
use super::endpoint::{Endpoint, EndpointHealth};
use super::epochs::EpochState;
use super::failure::Failure;
use super::protocol::{Command, Reply, Value};
use super::undo::{Undo, is_undone};
use super::votes::{REPLICAS, Vote, Votes};
use super::world::random_bytes;
use crate::exchange_log::{Ended, Verb};
use crate::{ExchangeLog, Spend, Unknown};
use postern_token::{MarkId, SpentKey, UnixSeconds};
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
                // Not before all were polled: what is sent in the first poll must reach every replica.
                votes.decided(is_superseded).map_or(Poll::Pending, Poll::Ready)
            })
            .await
        };
        for replica in (0..replicas).filter(|replica| votes.is_awaited(*replica)) {
            self.store.counters.overtaken(); // it failed in no way, and is no part of the log
            logs.of_replicas[replica] = ExchangeLog::default();
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
        let (expires, value) = (epoch.expires(), Value::of_bucket(random_bytes()));
        let reply = self.send_bound(replica, bound, value, expires, log).await.map_err(Failure::unknown)?;
        let vote = self.read_bound(reply, epoch, expires);
        if vote == Err(Unknown::Rejected) {
            self.store.rejected(replica);
        }
        vote
    }

    /// What a replica's replies say, to a record that ends at `expires`.
    fn read_bound(&self, replies: [Reply; 3], epoch: &EpochState, expires: UnixSeconds) -> Vote {
        match replies {
            [Reply::Stored, ..] if is_undone(Undo::NoWitness) => Ok(Spend::Admitted),
            [Reply::Stored, Reply::Hit(witness), Reply::Miss] => match bucket::second(&witness) {
                Some(end) if end < expires || is_undone(Undo::LastingWitness) => Ok(Spend::Admitted),
                // A record that ends before its witness would admit the token again. Later ones last for longer.
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

    /// Sends an `add` and, behind it, a `get` of its witness and of what takes that back, through one connection to a replica.
    /// Tries another endpoint of it only if no byte was sent.
    async fn send_bound(
        &self,
        replica: usize,
        bound: &Bound,
        value: Value,
        expires: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> Result<[Reply; 3], Failure> {
        let Bound { record, witness, closed } = *bound;
        let commands =
            [&Command::Add { key: record, value, expires }, &Command::Get(witness), &Command::Get(closed)];
        let (mut failure, mut tried) = (Failure::NotSent(NOT_CONNECTED), 0_u64);
        while let Some((index, link)) = self.next(Some(replica), tried) {
            tried |= 1 << index;
            let mut entry = log.begin(Verb::Add, u8::try_from(index).ok());
            let result = link.exchange(commands, &mut entry).await;
            entry.end(Ended::of(&result.map(|[record, ..]| record)));
            // What takes a witness back is read with it, and counted once.
            for (index, command) in commands.into_iter().enumerate().take(2) {
                self.store.counters.command(command, &result.map(|replies| replies[index]));
            }
            match result {
                Err(Failure::NotSent(reason)) => failure = Failure::NotSent(reason),
                answered => return answered,
            }
        }
        if tried == 0 {
            log.begin(Verb::Add, None).end(Ended::Refused);
            self.store.counters.command(commands[0], &Err(failure));
        }
        Err(failure)
    }
}

/// The exchanges with each replica. Dropped, also by a caller that goes away, they are in the caller's log.
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

impl SharedStore {
    /// A replica answered a spend with an error. The watch finds out whether it takes any record.
    fn rejected(&self, replica: usize) {
        if !self.rejecting[replica].swap(true, Relaxed) {
            self.wake_watch.notify_one();
        }
    }

    pub(super) fn health_of(&self, endpoint: &Endpoint) -> EndpointHealth {
        let replica = endpoint.replica();
        let [rejects, evicts, parts] =
            [&self.rejecting, &self.evicting, &self.parting].map(|of| of[replica].load(Relaxed));
        EndpointHealth { rejects, evicts, parts, ..endpoint.health() }
    }
}
