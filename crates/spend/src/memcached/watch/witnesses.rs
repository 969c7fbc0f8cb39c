//! The records of marks: reads and writes them through one endpoint, and compares the replicas.

use super::marking::Sentinels;
use super::{BRIEF, Rounds};
use crate::Unknown;
use crate::memcached::bucket::{Bucket, closed, second, second_value, sentinel, witness};
use crate::memcached::protocol::{Command, Kind, RecordKey, Reply, Value};
use crate::memcached::serial::SerialConnection;
use crate::memcached::world::{Undo, instant, is_undone, random_bytes};
use postern_token::{Mark, MarkId, Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::Duration;

/// The largest number of commands per exchange. Each may have to wait once for a server that hangs behind a router.
const A_WRITE: usize = 512;
/// Copies of an offer in each replica. All lie on the one server of three that is away once in 43 million offers; a key that
/// begins then gets its first mark only after a wait for that server (`Marking::begins`).
const COPIES: u32 = 16;

pub(super) struct Offers {
    pub(super) latest: Option<(u32, Mark)>,
    pub(super) before: Vec<Mark>,
    /// The first offer that may exist, too: none of its copies could be read.
    pub(super) unclear: Option<u32>,
}

/// The buckets of a replica, by their knowledge of a mark.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) known: HashSet<Bucket>,
    /// Buckets that do not know the mark although their server answers, or where it was closed.
    pub(super) torn: Vec<Bucket>,
}

/// Sends one `add` for each bucket, once, and returns the replies.
async fn add_to_each(
    connection: &mut SerialConnection,
    buckets: &[Bucket],
    add: impl Fn(Bucket) -> Command,
) -> Result<Vec<(Bucket, Reply)>, Unknown> {
    let mut answered = Vec::with_capacity(buckets.len());
    for some in buckets.chunks(A_WRITE) {
        let replies =
            connection.exchange(&some.iter().map(|bucket| add(*bucket)).collect::<Vec<_>>()).await?;
        answered.extend(some.iter().copied().zip(replies));
    }
    Ok(answered)
}

/// Returns the number of buckets whose tokens are void. `torn` contains a bucket once for each of the `answering` replicas where
/// it is torn. `None` if too few answer.
pub(super) fn void(torn: &[Bucket], answering: usize, majority: usize) -> Option<usize> {
    let mut times: BTreeMap<Bucket, usize> = BTreeMap::new();
    torn.iter().for_each(|bucket| *times.entry(*bucket).or_default() += 1);
    let void = times.values().filter(|times| answering - **times < majority).count();
    (answering >= majority).then_some(void)
}

impl Rounds {
    async fn for_each<T: Copy, const N: usize>(
        &mut self,
        endpoint: usize,
        items: &[T],
        commands: impl Fn(T) -> [Command; N],
        mut read: impl FnMut(T, [Reply; N]),
    ) -> Result<(), Unknown> {
        for some in items.chunks(A_WRITE / N.next_power_of_two()) {
            let commands: Vec<_> = some.iter().flat_map(|item| commands(*item)).collect();
            let replies = self.request(endpoint, &commands).await?;
            some.iter().zip(replies.as_chunks().0).for_each(|(item, replies)| read(*item, *replies));
        }
        Ok(())
    }

    /// Writes a mark's witnesses. Each is sent once, over a separate connection: a delayed one that arrived after a loss would
    /// hide the loss.
    pub(super) async fn write_once(
        &mut self,
        mut connection: SerialConnection,
        endpoint: usize,
        id: &MarkId,
        expires: UnixSeconds,
    ) -> Result<(), Unknown> {
        // A server whose clock is ahead removes the witnesses first, and only then records.
        let end = UnixSeconds(expires.0.saturating_sub(self.store.options.clock_tolerance.as_secs()));
        let ends = if is_undone(Undo::LastingWitness) { UnixSeconds(u64::MAX) } else { end };
        let value = second_value(end);
        let written = second_value(self.now());
        let all: Vec<_> = Bucket::all().collect();
        let unread = |bucket| Command::Add { key: sentinel(bucket, id), value: written, expires };
        let sentinels = add_to_each(&mut connection, &all, unread).await?;
        // Without a sentinel, a witness would permanently look like a loss.
        let is_stored = |(_, reply): &&(Bucket, Reply)| *reply == Reply::Stored;
        let guarded: Vec<_> = sentinels.iter().filter(is_stored).map(|(bucket, _)| *bucket).collect();
        let known = |bucket| Command::Add { key: witness(bucket, id), value, expires: ends };
        add_to_each(&mut connection, &guarded, known).await?;
        let alone = self.without_sentinels(endpoint, id, &guarded).await?;
        if alone.is_empty() { Ok(()) } else { Err(Unknown::Rejected) }
    }

    /// Writes missing witnesses again: the defect that a simulation restores.
    pub(super) async fn write_again(&mut self, endpoint: usize, id: &MarkId, buckets: &[Bucket]) {
        let end = self.now().saturating_add(Duration::from_secs(600));
        let value = second_value(end);
        let again = |bucket: &Bucket| Command::Add { key: witness(*bucket, id), value, expires: end };
        let _ = self.request(endpoint, &buckets.iter().map(again).collect::<Vec<_>>()).await;
    }

    /// Reads the witnesses of a mark, and whether it was closed next to them. A miss alone proves nothing: a router may report
    /// one for a server that is down, but it cannot store a record there.
    pub(super) async fn survey(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        buckets: &[Bucket],
    ) -> Result<Survey, Unknown> {
        let (mut survey, mut missing, mut unclear) = (Survey::default(), Vec::new(), 0);
        let gets = |bucket| [witness(bucket, id), closed(bucket, id)].map(Command::Get);
        let read = |bucket, replies: [Reply; 2]| match replies {
            [_, Reply::Hit(_)] => survey.torn.push(bucket),
            [Reply::Hit(_), Reply::Miss] => drop(survey.known.insert(bucket)),
            [Reply::Miss, Reply::Miss] => missing.push(bucket),
            _ => unclear += 1,
        };
        self.for_each(endpoint, buckets, gets, read).await?;
        if is_undone(Undo::WitnessAgain) && !missing.is_empty() {
            self.write_again(endpoint, id, &missing).await;
        }
        let (value, expires) = (Value::of_bytes::<5>(&random_bytes()), self.began.saturating_add(BRIEF));
        let pair = |bucket: Bucket| {
            let key = bucket.record(&random_bytes());
            [Command::Add { key, value, expires }, Command::Get(witness(bucket, id))]
        };
        let read = |bucket, replies: [Reply; 2]| match replies {
            [Reply::Stored, Reply::Miss] => survey.torn.push(bucket),
            [Reply::ServerError, _] => unclear += 1,
            _ => {}
        };
        self.for_each(endpoint, &missing, pair, read).await?;
        self.read_in_round(endpoint, buckets.len(), unclear);
        Ok(survey)
    }

    /// Finds buckets that know the mark and have lost other records: their witnesses prove nothing, so the mark is to be closed
    /// on that replica.
    pub(super) async fn find_parted(
        &mut self,
        endpoint: usize,
        key: TokenKeyId,
        sentinels: &mut Sentinels,
        buckets: &[Bucket],
    ) -> Result<(), Unknown> {
        let mut parted = buckets.to_vec();
        // Repeated, because a server may come back between the replies of one bucket, and a router may report a miss for a late
        // server.
        for _ in 0..3 {
            parted = self.without_sentinels(endpoint, &sentinels.mark, &parted).await?;
        }
        if parted.is_empty() {
            return Ok(());
        }
        let replica = self.replica(endpoint);
        if !sentinels.closing.contains(&replica) {
            sentinels.closing.push(replica);
        }
        self.store.seen.closed.lock()[replica] = Some(instant());
        tracing::error!(
            token_key = %key.short(),
            address = %self.store.endpoints[endpoint].address,
            "a replica of the double-spend store has lost records and kept their witnesses: a router keeps records of one bucket on \
             several servers (twemproxy needs hash_tag: \"||\"), a server evicts, or its slabs were moved. No token of \
             the mark is admitted there any more; of three replicas the other two decide. Mend the cause, or it happens again"
        );
        Ok(())
    }

    /// Closes the mark on the replicas where it is to be closed: writes a record next to each witness, which every later spend
    /// reads. Repeated in each round until every bucket has the record.
    pub(super) async fn close(&mut self, sentinels: &mut Sentinels, expires: UnixSeconds) {
        let all: Vec<_> = Bucket::all().collect();
        for endpoint in self.replicas.clone() {
            let replica = self.replica(endpoint);
            if !sentinels.closing.contains(&replica) {
                continue;
            }
            let (id, value, mut closed_in) = (sentinels.mark, second_value(self.now()), 0);
            let add = |bucket| [Command::Add { key: closed(bucket, &id), value, expires }];
            let read = |_, [reply]: [Reply; 1]| {
                closed_in += usize::from(matches!(reply, Reply::Stored | Reply::NotStored));
            };
            let _ = self.for_each(endpoint, &all, add, read).await; // what it did not reach is not counted
            if closed_in == all.len() {
                sentinels.closing.retain(|other| *other != replica);
            }
        }
    }

    /// Writes an offer unless one with its number exists. Its success must be read back.
    pub(super) async fn write_offer(&mut self, key: TokenKeyId, number: u32, mark: Mark) {
        let Some(expires) = self.end_of(key) else { return };
        let value = Value::of_bytes(mark.as_bytes());
        let adds = self.offers(key, number).map(|key| Command::Add { key, value, expires });
        for endpoint in self.replicas.clone() {
            let _ = self.request(endpoint, &adds).await;
        }
    }

    /// Returns those of these buckets that have a witness, not closed, without the sentinel next to it. The record that closes a
    /// witness is read after the witness, so that a server that evicts the records not read for longest drops the witness first.
    async fn without_sentinels(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        buckets: &[Bucket],
    ) -> Result<Vec<Bucket>, Unknown> {
        let mut found = Vec::new();
        let gets = |bucket| [sentinel(bucket, id), witness(bucket, id), closed(bucket, id)].map(Command::Get);
        let read = |bucket, replies: [Reply; 3]| {
            if matches!(replies, [Reply::Miss, Reply::Hit(_), Reply::Miss]) {
                found.push(bucket);
            }
        };
        self.for_each(endpoint, buckets, gets, read).await?;
        Ok(found)
    }

    /// Returns the time at which a mark was planted, from a sentinel of the first group, which is rarely read at its due age;
    /// `now` if no replica has one, `None` to retry in the next round.
    pub(super) async fn planted(&mut self, id: &MarkId) -> Option<UnixSeconds> {
        let first = Command::Get(sentinel(Bucket::all().next()?, id));
        let (mut found, now) = (None, self.began);
        for endpoint in self.replicas.clone() {
            match self.request(endpoint, &[first]).await.as_deref() {
                Ok([Reply::Hit(value)]) => found = found.max(second(value).filter(|planted| *planted <= now)),
                Ok([Reply::Miss]) => {}
                _ => return None, // retried in the next round
            }
        }
        found.or(Some(now))
    }

    /// Reads the offers with these numbers from at least a majority of the replicas. The first copy in each replica counts, and
    /// then the mark that most replicas hold, so that gateways agree.
    pub(super) async fn read_offers(
        &mut self,
        key: TokenKeyId,
        numbers: Range<u32>,
    ) -> Result<Offers, Unknown> {
        let (mut found, mut clear) = (BTreeMap::<u32, Vec<Mark>>::new(), HashSet::new());
        let (mut read, mut failed) = (0, Unknown::Rejected);
        let keys: Vec<_> =
            numbers.clone().flat_map(|number| self.offers(key, number).map(|key| (number, key))).collect();
        for endpoint in self.replicas.clone() {
            let mut here = BTreeMap::new();
            let read_here = |(number, _), [reply]: [Reply; 1]| {
                if let Reply::Hit(_) | Reply::Miss = reply {
                    clear.insert(number);
                }
                if let Reply::Hit(value) = reply
                    && let Some(mark) = value.decode()
                {
                    here.entry(number).or_insert(Mark::new(mark));
                }
            };
            if let Err(reason) =
                self.for_each(endpoint, &keys, |(_, key)| [Command::Get(key)], read_here).await
            {
                failed = reason;
                continue;
            }
            here.into_iter().for_each(|(number, mark)| found.entry(number).or_default().push(mark));
            read += 1;
        }
        if read < self.store.options.replicas.majority() {
            return Err(failed);
        }
        let latest = found.pop_last().and_then(|(number, marks)| Some((number, most(&marks)?)));
        let before = found.values().filter_map(|marks| most(marks)).collect();
        Ok(Offers { latest, before, unclear: numbers.into_iter().find(|number| !clear.contains(number)) })
    }

    /// Returns the keys of an offer's copies. Names that differ in a few bytes would lie on one server behind a plain hash.
    pub(super) fn offers(&self, key: TokenKeyId, number: u32) -> [RecordKey; COPIES as usize] {
        // Derives the names from the gateway's names and arrangement, by the id of a constant mark: gateways with other names or
        // another arrangement have their own marks.
        let names = TokenKeyId(*self.store.mark_id(key, Mark::new([0; 16])).as_bytes());
        std::array::from_fn(|copy| {
            let mut nonce = [0; 32];
            nonce[..4].copy_from_slice(&number.to_be_bytes());
            nonce[4] = copy as u8;
            let name = SpentKey::derive(TokenType::BlindRsa2048, names, Nonce(nonce));
            RecordKey::new(Kind::Offer, name.as_bytes())
        })
    }
}

/// Returns the mark that most replicas hold; among equals the smallest, because gateways may list the replicas in another order.
fn most(marks: &[Mark]) -> Option<Mark> {
    let times = |mark: &Mark| marks.iter().filter(|other| *other == mark).count();
    marks.iter().copied().max_by_key(|mark| (times(mark), Reverse(*mark.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_most_replicas_hold_counts_and_else_the_smallest() {
        let [a, b, c] = [1, 2, 3].map(|byte| Mark::new([byte; 16]));
        for (marks, expected) in [
            (vec![], None),
            (vec![a], Some(a)),
            (vec![a, b], Some(a)),
            (vec![a, b, b], Some(b)),
            (vec![c, b, a], Some(a)),
        ] {
            assert_eq!(most(&marks), expected);
        }
    }

    #[test]
    fn tokens_are_void_where_too_few_replicas_know_their_mark() {
        let buckets: Vec<_> = Bucket::all().take(3).collect();
        let torn = [buckets[0], buckets[1], buckets[1], buckets[2], buckets[2], buckets[2]];
        assert_eq!(void(&torn[..1], 1, 1), Some(1));
        assert_eq!((void(&torn[..1], 3, 2), void(&torn, 3, 2)), (Some(0), Some(2)));
        assert_eq!(void(&torn[..1], 2, 2), Some(1), "the third does not answer");
        assert_eq!(void(&torn[..1], 1, 2), None);
    }
}
