//! Finds out what addresses lead to: those of one replica to the same records, those of two to no common ones.
//!
//! What is wrong here admits no token twice: each spend reads its own witness. But it voids tokens that are good, or lets two
//! votes be one.

use super::{Compared, Rounds};
use crate::Unknown;
use crate::memcached::bucket::Bucket;
use crate::memcached::protocol::{Command, RecordKey, Reply, Value};
use crate::memcached::world::{instant, random_bytes, since};
use postern_token::UnixSeconds;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Records that compare two addresses: in as many buckets, so that they spread over the servers behind a router.
const PROBES: usize = 64;
/// How often addresses are compared that all answered before.
const EVERY: Duration = Duration::from_secs(300);
/// How long such a record lasts: longer than the clocks of gateways and servers differ.
const BRIEF: Duration = Duration::from_secs(3_600);

/// What was found.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Two addresses of one replica lead to different records.
    apart: Option<(usize, usize)>,
    /// Two replicas have servers in common.
    overlaps: Option<(usize, usize)>,
}

impl Rounds {
    /// Compares the addresses that answer: now if others answered before, every few minutes otherwise, and until all is well.
    pub(super) async fn compare_addresses(&mut self, answering: &[usize], now: UnixSeconds) {
        if answering.len() < 2 {
            // One alone contradicts no other: the one that did is away, or was removed.
            self.compared = None;
            self.store.apart.store(false, Relaxed);
            self.store.overlaps.store(false, Relaxed);
            return;
        }
        let is_well = self.store.intact().is_ok();
        let is_fresh = |compared: &Compared| compared.endpoints == answering && since(compared.at) < EVERY;
        if is_well && self.compared.as_ref().is_some_and(is_fresh) {
            return;
        }
        // One that answers now and did not before is compared at the next round, too, where this one fails.
        let Ok(found) = self.compare(answering, now).await else { return };
        self.compared = Some(Compared { endpoints: answering.to_vec(), at: instant() });
        self.tell(&self.store.apart, found.apart, |one, other| {
            tracing::error!(
                address = one, other,
                "two addresses of one replica of the double-spend store lead to different records, so tokens are void at one \
                 that are good at the other: every request is refused until they lead to the same records, or one of them is \
                 removed"
            );
        });
        self.tell(&self.store.overlaps, found.overlaps, |one, other| {
            tracing::error!(
                address = one, other,
                "two replicas of the double-spend store lead to the same servers, so their votes are one: every request is \
                 refused until each of the three lists in store.memcached.replicas leads to servers of its own"
            );
        });
    }

    /// Reports what is new.
    fn tell(&self, flag: &AtomicBool, found: Option<(usize, usize)>, report: impl FnOnce(&str, &str)) {
        if flag.swap(found.is_some(), Relaxed) {
            return;
        }
        if let Some((one, other)) = found {
            let [one, other] = [one, other].map(|index| self.store.endpoints[index].address().to_string());
            report(&one, &other);
        }
    }

    async fn compare(&mut self, answering: &[usize], now: UnixSeconds) -> Result<Found, Unknown> {
        let mut found = Found::default();
        for writer in self.one_of_each(answering) {
            let records = self.write_probes(writer, now).await?;
            for &reader in answering.iter().filter(|reader| **reader != writer) {
                let replica = |endpoint: usize| self.store.endpoints[endpoint].replica();
                let is_one = replica(reader) == replica(writer);
                let gets: Vec<_> = records.iter().map(|(key, _)| Command::Get(*key)).collect();
                let replies = self.request(reader, &gets).await?;
                let is_hit = |reply: &Reply| matches!(reply, Reply::Hit(_));
                if is_one {
                    let missed = records.iter().zip(&replies).filter(|(_, reply)| **reply == Reply::Miss);
                    let missed: Vec<_> = missed.map(|(record, _)| *record).collect();
                    if self.lie_elsewhere(writer, reader, &missed, now).await? {
                        found.apart = Some((writer, reader));
                    }
                } else if replies.iter().any(is_hit) {
                    found.overlaps = Some((writer, reader));
                }
            }
        }
        Ok(found)
    }

    /// Records that were written through an endpoint.
    async fn write_probes(
        &mut self,
        endpoint: usize,
        now: UnixSeconds,
    ) -> Result<Vec<(RecordKey, Value)>, Unknown> {
        let step = Bucket::all().count() / PROBES;
        let record = |bucket: Bucket| (bucket.record(&random_bytes()), Value::of_bucket(random_bytes()));
        let records: Vec<_> = Bucket::all().step_by(step).map(record).collect();
        let replies = self.request(endpoint, &adds(&records, now)).await?;
        let written = records.into_iter().zip(replies).filter(|(_, reply)| *reply == Reply::Stored);
        Ok(written.map(|(record, _)| record).collect())
    }

    /// Whether records that could not be read through one endpoint of a replica lie on other servers: it stores them once more,
    /// and the other endpoint still has what was written first. A miss alone proves nothing, because a router may report one
    /// for a server that is down.
    async fn lie_elsewhere(
        &mut self,
        writer: usize,
        reader: usize,
        missed: &[(RecordKey, Value)],
        now: UnixSeconds,
    ) -> Result<bool, Unknown> {
        if missed.is_empty() {
            return Ok(false);
        }
        let others: Vec<_> = missed.iter().map(|(key, _)| (*key, Value::of_bucket(random_bytes()))).collect();
        let stored = self.request(reader, &adds(&others, now)).await?;
        let gets: Vec<_> = missed.iter().map(|(key, _)| Command::Get(*key)).collect();
        let kept = self.request(writer, &gets).await?;
        let mut replies = stored.iter().zip(&kept).zip(missed);
        Ok(replies
            .any(|((stored, kept), (_, value))| *stored == Reply::Stored && *kept == Reply::Hit(*value)))
    }
}

fn adds(records: &[(RecordKey, Value)], now: UnixSeconds) -> Vec<Command> {
    let expires = now.saturating_add(BRIEF);
    records.iter().map(|&(key, value)| Command::Add { key, value, expires }).collect()
}
