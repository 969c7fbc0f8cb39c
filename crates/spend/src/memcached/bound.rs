//! Spending a token that a mark binds.

use super::bucket::{self, Bound};
use super::client::{ClientState, NOT_CONNECTED};
use super::epochs::EpochState;
use super::failure::Failure;
use super::protocol::{Command, Reply, Value};
use super::stats::{Ended, Verb};
use super::world::random_bytes;
use crate::{ExchangeLog, Spend, Unknown};
use postern_token::UnixSeconds;

impl ClientState {
    /// Records a token that a mark binds, where there is one replica. It is admitted only where the mark's witness stands:
    /// behind the record, on the server that took it.
    pub(super) async fn add_bound(
        &self,
        bound: &Bound,
        epoch: &EpochState,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        let (expires, value) = (epoch.expires().ok_or(Unknown::TimedOut)?, Value::of_bucket(random_bytes()));
        match self.send_bound(0, bound, value, expires, log).await {
            Ok(replies) => self.read_bound(replies, epoch, expires),
            Err(Failure::NotSent(reason)) => Err(reason),
            Err(Failure::Sent(reason)) => match self.verdict_from_record(bound.record, value, log).await {
                Some(Spend::AlreadySpent) => Ok(Spend::AlreadySpent),
                _ => Err(reason), // what stands behind an own record cannot be read any more
            },
        }
    }

    /// What a replica's reply says, to a record that ends at `expires`.
    pub(super) fn read_bound(
        &self,
        replies: [Reply; 2],
        epoch: &EpochState,
        expires: UnixSeconds,
    ) -> Result<Spend, Unknown> {
        match replies {
            [Reply::Stored, Reply::Hit(witness)] => match bucket::second(&witness) {
                Some(end) if end < expires => {
                    epoch.set_bound();
                    Ok(Spend::Admitted)
                }
                // A record that ends before its witness would admit the token again. Later ones last for longer.
                Some(end) => {
                    epoch.prolong(end.saturating_add(self.store.options.clock_tolerance));
                    Err(Unknown::Garbled)
                }
                None => Err(Unknown::Garbled),
            },
            [Reply::Stored, Reply::Miss] => Ok(Spend::Void),
            [Reply::NotStored, Reply::Hit(_) | Reply::Miss] => Ok(Spend::AlreadySpent),
            // An error in the place of the witness could be the reply to the `add`.
            [Reply::ServerError, _] | [_, Reply::ServerError] => Err(Unknown::Rejected),
            [Reply::Hit(_) | Reply::Miss, _] | [_, Reply::Stored | Reply::NotStored] => Err(Unknown::Garbled),
        }
    }

    /// Sends an `add` and a `get` of its witness behind it, through one connection to a replica. Tries another endpoint of
    /// it only if no byte was sent.
    pub(super) async fn send_bound(
        &self,
        replica: usize,
        bound: &Bound,
        value: Value,
        expires: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> Result<[Reply; 2], Failure> {
        let commands = [&Command::Add { key: bound.record, value, expires }, &Command::Get(bound.witness)];
        let (mut failure, mut tried) = (Failure::NotSent(NOT_CONNECTED), 0_u64);
        while let Some((index, link)) = self.next(Some(replica), tried) {
            tried |= 1 << index;
            let mut entry = log.begin(Verb::Add, u8::try_from(index).ok());
            let result = link.exchange(commands, &mut entry).await;
            entry.end(Ended::of(&result.map(|[record, _]| record)));
            for (index, command) in commands.into_iter().enumerate() {
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
