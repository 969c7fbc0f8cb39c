//! Spending a token that a mark binds.

use super::bucket::{self, Bound};
use super::client::{ClientState, NOT_CONNECTED};
use super::failure::Failure;
use super::protocol::{BoundReply, Command, Reply, Value};
use super::stats::{Ended, Verb};
use super::world::random_bytes;
use crate::{ExchangeLog, Spend, Unknown};
use postern_token::UnixSeconds;

impl ClientState {
    /// Records a token that a mark binds. It is admitted only where the mark's witness stands: behind the record, on the
    /// server that took it.
    pub(super) async fn add_bound(
        &self,
        bound: &Bound,
        expires: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        let value = Value::of_bucket(random_bytes());
        let commands = [&Command::Add { key: bound.record, value, expires }, &Command::Get(bound.witness)];
        match self.send_bound(commands, log).await {
            Ok(BoundReply { reply: Reply::Stored, witness: Some(Ok(Reply::Hit(witness))) }) => {
                // A record that ends before its witness would admit the token again.
                if bucket::ends(&witness).is_some_and(|end| end < expires) {
                    Ok(Spend::Admitted)
                } else {
                    Err(Unknown::Garbled)
                }
            }
            Ok(BoundReply { reply: Reply::Stored, witness: Some(Ok(Reply::Miss)) }) => Ok(Spend::Void),
            Ok(BoundReply { reply: Reply::Stored, witness: Some(Err(reason)) }) => Err(reason),
            Ok(BoundReply { reply: Reply::NotStored, .. }) => Ok(Spend::AlreadySpent),
            Ok(BoundReply { reply: Reply::Stored | Reply::ServerError, .. }) => Err(Unknown::Rejected),
            Ok(BoundReply { reply: Reply::Hit(_) | Reply::Miss, .. }) => Err(Unknown::Garbled),
            Err(Failure::NotSent(reason)) => Err(reason),
            Err(Failure::Sent(reason)) => match self.verdict_from_record(bound.record, value, log).await {
                Some(Spend::AlreadySpent) => Ok(Spend::AlreadySpent),
                _ => Err(reason), // what stands behind an own record cannot be read any more
            },
        }
    }

    /// Sends an `add` and a `get` behind it through one connection. Tries another endpoint only if no byte was sent.
    async fn send_bound(
        &self,
        commands: [&Command; 2],
        log: &mut ExchangeLog,
    ) -> Result<BoundReply, Failure> {
        let (mut failure, mut tried) = (Failure::NotSent(NOT_CONNECTED), 0_u64);
        while let Some((index, link)) = self.next(tried) {
            tried |= 1 << index;
            let mut entry = log.begin(Verb::Add, u8::try_from(index).ok());
            let result = link.exchange_bound(commands, &mut entry).await;
            let reply = result.map(|bound| bound.reply);
            entry.end(Ended::of(&reply));
            self.store.counters.command(commands[0], &reply);
            if let Ok(BoundReply { witness: Some(witness), .. }) = result {
                self.store.counters.command(commands[1], &witness.map_err(Failure::Sent));
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
