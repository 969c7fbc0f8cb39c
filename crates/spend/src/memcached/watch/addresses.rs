//! Checks the records behind the addresses: those of one replica must lead to the same records, those of two replicas to no
//! common ones.
//!
//! A violation admits no token twice, because each spend reads its own witness. But it voids valid tokens, or makes two votes
//! one.

use super::Rounds;
use crate::Unknown;
use crate::memcached::bucket::Bucket;
use crate::memcached::protocol::{Command, RecordKey, Reply, Value};
use crate::memcached::world::{instant, random_bytes, since};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The number of records that compare two addresses: each in its own bucket, so that they spread over the servers behind a
/// router.
const PROBES: usize = 64;
/// The interval between comparisons of the same answering addresses.
const EVERY: Duration = Duration::from_secs(300);
/// The lifetime of these records: longer than any clock difference between gateways and servers.
const BRIEF: Duration = Duration::from_secs(3_600);

type Probe = (RecordKey, Value);

/// Two endpoints, if they contradict each other.
type Pair = Option<[usize; 2]>;

const APART: &str = "two addresses of one replica of the double-spend store lead to different records, so tokens are void at one that \
     are good at the other: every request is refused until they lead to the same records, or one of them is removed";
const OVERLAPS: &str = "two replicas of the double-spend store lead to the same servers, so their votes are one: every request is \
     refused until each of the three lists in store.memcached.replicas leads to its own servers";

impl Rounds {
    /// Compares the addresses that answer: immediately if a different set answered before, otherwise every few minutes, and in
    /// each round until all is well.
    pub(super) async fn compare_addresses(&mut self, answering: &[usize]) {
        if answering.len() < 2 {
            // A single one contradicts no other: the one that did is away, or was removed.
            self.compared = None;
            self.store.seen.apart.store(false, Relaxed);
            self.store.seen.overlaps.store(false, Relaxed);
            return;
        }
        let is_well = self.store.intact().is_ok();
        let is_fresh = |(endpoints, at): &(Vec<usize>, Instant)| endpoints == answering && since(*at) < EVERY;
        if is_well && self.compared.as_ref().is_some_and(is_fresh) {
            return;
        }
        // After a failed comparison, the next round compares a newly answering address again.
        let Ok((apart, overlaps)) = self.compare(answering).await else { return };
        self.compared = Some((answering.to_vec(), instant()));
        let seen = &self.store.seen;
        for (flag, pair, message) in [(&seen.apart, apart, APART), (&seen.overlaps, overlaps, OVERLAPS)] {
            let was_found = flag.swap(pair.is_some(), Relaxed);
            if let Some(pair) = pair.filter(|_| !was_found) {
                let [address, other] = pair.map(|index| &self.store.endpoints[index].address);
                tracing::error!(%address, %other, "{message}");
            }
        }
    }

    /// Returns two addresses of one replica that lead to different records, and two replicas with servers in common.
    async fn compare(&mut self, answering: &[usize]) -> Result<(Pair, Pair), Unknown> {
        let (mut apart, mut overlaps) = (None, None);
        for writer in self.replicas.clone() {
            let records = self.write_probes(writer).await?;
            for &reader in answering.iter().filter(|reader| **reader != writer) {
                let replies = self.read_probes(reader, &records).await?;
                if self.replica(reader) == self.replica(writer) {
                    let missed = records.iter().zip(&replies).filter(|(_, reply)| **reply == Reply::Miss);
                    let missed: Vec<_> = missed.map(|(record, _)| *record).collect();
                    if !missed.is_empty() && self.lie_elsewhere(writer, reader, &missed).await? {
                        apart = Some([writer, reader]);
                    }
                } else if replies.iter().any(|reply| matches!(reply, Reply::Hit(_))) {
                    overlaps = Some([writer, reader]);
                }
            }
        }
        Ok((apart, overlaps))
    }

    async fn write_probes(&mut self, endpoint: usize) -> Result<Vec<Probe>, Unknown> {
        let step = Bucket::all().count() / PROBES;
        let record = |bucket: Bucket| (bucket.record(&random_bytes()), Value::of_bytes::<5>(&random_bytes()));
        let records: Vec<_> = Bucket::all().step_by(step).map(record).collect();
        let replies = self.request(endpoint, &self.adds(&records)).await?;
        let written = records.into_iter().zip(replies).filter(|(_, reply)| *reply == Reply::Stored);
        Ok(written.map(|(record, _)| record).collect())
    }

    /// Returns `true` if records missed through one endpoint of a replica lie on other servers: the endpoint stores them again,
    /// and the other endpoint still returns the values written first. A miss alone proves nothing, because a router may report
    /// one for a server that is down.
    async fn lie_elsewhere(
        &mut self,
        writer: usize,
        reader: usize,
        missed: &[Probe],
    ) -> Result<bool, Unknown> {
        let others: Vec<_> =
            missed.iter().map(|(key, _)| (*key, Value::of_bytes::<5>(&random_bytes()))).collect();
        let stored = self.request(reader, &self.adds(&others)).await?;
        let kept = self.read_probes(writer, missed).await?;
        let mut replies = stored.iter().zip(&kept).zip(missed);
        Ok(replies
            .any(|((stored, kept), (_, value))| *stored == Reply::Stored && *kept == Reply::Hit(*value)))
    }

    async fn read_probes(&mut self, endpoint: usize, records: &[Probe]) -> Result<Vec<Reply>, Unknown> {
        let gets: Vec<_> = records.iter().map(|(key, _)| Command::Get(*key)).collect();
        self.request(endpoint, &gets).await
    }

    fn adds(&self, records: &[Probe]) -> Vec<Command> {
        let expires = self.began.saturating_add(BRIEF);
        records.iter().map(|&(key, value)| Command::Add { key, value, expires }).collect()
    }
}
