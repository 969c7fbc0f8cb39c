//! The records of marks: reads and writes them through one endpoint, and compares what the replicas hold.

use super::sentinels::Sentinels;
use super::{BRIEF, Rounds};
use crate::Unknown;
use crate::memcached::bucket::{Bucket, closed, second, second_value, sentinel, witness};
use crate::memcached::protocol::{Command, Kind, RecordKey, Reply, Value};
use crate::memcached::serial::SerialConnection;
use crate::memcached::undo::{Undo, is_undone};
use crate::memcached::world::{instant, random_bytes};
use postern_token::{Mark, MarkId, Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::Duration;

/// Commands in one exchange. Each may have to wait once for a server that hangs behind a router.
const A_WRITE: usize = 512;
/// Copies of an offer in each replica. All lie on a server that is away, one of three, once in 43 million offers; while they do, a key
/// that begins has no mark.
const COPIES: u32 = 16;

/// Offers that were read.
pub(super) struct Offers {
    /// The latest, with its number.
    pub(super) latest: Option<(u32, Mark)>,
    /// Those before.
    pub(super) before: Vec<Mark>,
    /// The first that may be there, too: none of its copies could be read.
    pub(super) unclear: Option<u32>,
}

/// What a replica knows of a mark.
#[derive(Default)]
pub(super) struct Survey {
    /// Buckets with a witness of it.
    pub(super) known: HashSet<Bucket>,
    /// Those without one.
    pub(super) missing: Vec<Bucket>,
    /// Those where it was closed.
    closed: Vec<Bucket>,
    unclear: usize,
}

impl Survey {
    pub(super) fn is_whole(&self) -> bool {
        self.known.len() == Bucket::all().count()
    }
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

/// How many buckets void their tokens, if these are torn, each once for each of the replicas that answer.
pub(super) fn void(torn: &[Bucket], answering: usize, majority: usize) -> usize {
    let mut times: BTreeMap<Bucket, usize> = BTreeMap::new();
    torn.iter().for_each(|bucket| *times.entry(*bucket).or_default() += 1);
    times.values().filter(|times| answering - **times < majority).count()
}

impl Rounds {
    /// Writes a mark's witnesses. Each is sent once, over a connection of its own: one that arrived after a loss would hide
    /// it.
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
        // Where a sentinel could not be written, a witness alone would look like a loss for ever.
        let is_stored = |(_, reply): &&(Bucket, Reply)| *reply == Reply::Stored;
        let guarded: Vec<_> = sentinels.iter().filter(is_stored).map(|(bucket, _)| *bucket).collect();
        let known = |bucket| Command::Add { key: witness(bucket, id), value, expires: ends };
        add_to_each(&mut connection, &guarded, known).await?;
        let alone = self.without_sentinels(endpoint, id, &guarded).await?;
        if alone.is_empty() { Ok(()) } else { Err(Unknown::Rejected) }
    }

    /// Writes witnesses that are missing, as none that ships does.
    pub(super) async fn write_again(&mut self, endpoint: usize, id: &MarkId, buckets: &[Bucket]) {
        let end = self.now().saturating_add(Duration::from_secs(600));
        let value = second_value(end);
        let again = |bucket: &Bucket| Command::Add { key: witness(*bucket, id), value, expires: end };
        let _ = self.request(endpoint, &buckets.iter().map(again).collect::<Vec<_>>()).await;
    }

    /// Reads the witnesses of a mark, and whether it was closed beside them. A miss proves nothing yet: see [`Rounds::torn`].
    pub(super) async fn survey(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        buckets: &[Bucket],
    ) -> Result<Survey, Unknown> {
        let mut survey = Survey::default();
        for some in buckets.chunks(A_WRITE / 2) {
            let gets = |bucket: &Bucket| [witness(*bucket, id), closed(*bucket, id)].map(Command::Get);
            let replies = self.request(endpoint, &some.iter().flat_map(gets).collect::<Vec<_>>()).await?;
            for (bucket, pair) in some.iter().zip(replies.chunks(2)) {
                match pair {
                    [_, Reply::Hit(_)] => survey.closed.push(*bucket),
                    [Reply::Hit(_), Reply::Miss] => drop(survey.known.insert(*bucket)),
                    [Reply::Miss, Reply::Miss] => survey.missing.push(*bucket),
                    _ => survey.unclear += 1,
                }
            }
        }
        self.read_in_round(endpoint, buckets.len(), survey.unclear);
        Ok(survey)
    }

    /// The buckets where the mark was closed, and those that do not know it although their server answers: a router may report
    /// a miss for one that is down, but it cannot store a record there.
    pub(super) async fn torn(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        survey: &Survey,
        now: UnixSeconds,
    ) -> Result<Vec<Bucket>, Unknown> {
        let (value, expires) = (Value::of_bucket(random_bytes()), now.saturating_add(BRIEF));
        let mut torn = survey.closed.clone();
        for some in survey.missing.chunks(A_WRITE / 2) {
            let pair = |bucket: &Bucket| {
                let key = bucket.record(&random_bytes());
                [Command::Add { key, value, expires }, Command::Get(witness(*bucket, id))]
            };
            let commands: Vec<_> = some.iter().flat_map(pair).collect();
            let replies = self.request(endpoint, &commands).await?;
            let pairs = some.iter().zip(replies.chunks(2));
            torn.extend(
                pairs.filter(|(_, pair)| **pair == [Reply::Stored, Reply::Miss]).map(|(bucket, _)| *bucket),
            );
        }
        Ok(torn)
    }

    /// Finds buckets that know the mark and have lost other records: there witnesses prove nothing, so the mark is closed on
    /// that replica.
    pub(super) async fn find_parted(
        &mut self,
        endpoint: usize,
        key: TokenKeyId,
        sentinels: &mut Sentinels,
        buckets: &[Bucket],
    ) -> Result<(), Unknown> {
        let mut parted = buckets.to_vec();
        // Again and again, because a server may come back between the two replies of one bucket, and a router may report a miss for
        // one that is late.
        for _ in 0..3 {
            parted = self.without_sentinels(endpoint, &sentinels.mark, &parted).await?;
        }
        let replica = self.store.endpoints[endpoint].replica();
        if parted.is_empty() {
            return Ok(());
        }
        if !sentinels.closing.contains(&replica) {
            sentinels.closing.push(replica);
        }
        self.store.closed.lock()[replica] = Some(instant());
        tracing::error!(
            token_key = %key.short(),
            address = %self.store.endpoints[endpoint].address(),
            "a replica of the double-spend store has lost records and kept the witnesses beside them: a router keeps records of one bucket on \
             several servers (twemproxy needs hash_tag: \"||\"), a server evicts, or its slabs were moved. No token of \
             the mark is admitted there any more; of three replicas the other two decide. Mend the cause, or it happens again"
        );
        Ok(())
    }

    /// Closes the mark on the replicas where it is to be: by a record beside each witness, which every later spend reads. Goes on
    /// until each bucket has it.
    pub(super) async fn close(
        &mut self,
        replicas: &[usize],
        sentinels: &mut Sentinels,
        expires: UnixSeconds,
    ) {
        for endpoint in replicas {
            let replica = self.store.endpoints[*endpoint].replica();
            if sentinels.closing.contains(&replica)
                && self.close_at(*endpoint, &sentinels.mark, expires).await == Ok(true)
            {
                sentinels.closing.retain(|other| *other != replica);
            }
        }
    }

    /// True when each bucket has the record.
    async fn close_at(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        expires: UnixSeconds,
    ) -> Result<bool, Unknown> {
        let (value, mut is_closed) = (second_value(self.now()), true);
        let all: Vec<_> = Bucket::all().collect();
        for some in all.chunks(A_WRITE) {
            let add = |bucket: &Bucket| Command::Add { key: closed(*bucket, id), value, expires };
            let replies = self.request(endpoint, &some.iter().map(add).collect::<Vec<_>>()).await?;
            is_closed &= replies.iter().all(|reply| matches!(reply, Reply::Stored | Reply::NotStored));
        }
        Ok(is_closed)
    }

    /// Writes an offer unless there is one with its number. What was written has to be read back.
    pub(super) async fn write_offer(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        (number, mark): (u32, Mark),
    ) {
        let Some(expires) = self.end_of(key) else { return };
        let value = Value::of_bytes(mark.as_bytes());
        let adds = self.offers(key, number).map(|key| Command::Add { key, value, expires });
        for endpoint in replicas {
            let _ = self.request(*endpoint, &adds).await;
        }
    }

    /// Of these buckets, those with a witness that is not closed, and without the record beside it. What closes a witness is read
    /// after it, so that a server that evicts what was not read for longest drops the witness first.
    async fn without_sentinels(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        buckets: &[Bucket],
    ) -> Result<Vec<Bucket>, Unknown> {
        let mut found = Vec::new();
        for some in buckets.chunks(A_WRITE / 4) {
            let gets = |bucket: &Bucket| {
                [sentinel(*bucket, id), witness(*bucket, id), closed(*bucket, id)].map(Command::Get)
            };
            let replies = self.request(endpoint, &some.iter().flat_map(gets).collect::<Vec<_>>()).await?;
            let read = some.iter().zip(replies.chunks(3));
            found.extend(
                read.filter(|(_, read)| matches!(read, [Reply::Miss, Reply::Hit(_), Reply::Miss]))
                    .map(|(bucket, _)| *bucket),
            );
        }
        Ok(found)
    }

    /// When a mark was planted, by a sentinel of the first group, which hardly lives to be read at its age; now, if none tells.
    pub(super) async fn planted(
        &mut self,
        replicas: &[usize],
        id: &MarkId,
        now: UnixSeconds,
    ) -> Option<UnixSeconds> {
        let first = Command::Get(sentinel(Bucket::all().next()?, id));
        let mut found = None;
        for endpoint in replicas {
            match self.request(*endpoint, &[first]).await.as_deref() {
                Ok([Reply::Hit(value)]) => found = found.max(second(value).filter(|planted| *planted <= now)),
                Ok([Reply::Miss]) => {}
                _ => return None, // again in the next round
            }
        }
        found.or(Some(now))
    }

    /// Reads the offers with these numbers from as many replicas as decide, or more. Of several copies in a replica the first
    /// counts, and then what most replicas hold, so that gateways agree.
    pub(super) async fn read_offers(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        numbers: Range<u32>,
    ) -> Result<Offers, Unknown> {
        let (mut found, mut clear) = (BTreeMap::<u32, Vec<Mark>>::new(), HashSet::new());
        let (mut read, mut failed) = (0, Unknown::Rejected);
        let keys: Vec<_> =
            numbers.clone().flat_map(|number| self.offers(key, number).map(|key| (number, key))).collect();
        'replicas: for endpoint in replicas {
            let mut here = BTreeMap::new();
            for some in keys.chunks(A_WRITE) {
                let gets: Vec<_> = some.iter().map(|(_, key)| Command::Get(*key)).collect();
                let replies = match self.request(*endpoint, &gets).await {
                    Ok(replies) => replies,
                    Err(reason) => {
                        failed = reason;
                        continue 'replicas;
                    }
                };
                for ((number, _), reply) in some.iter().zip(replies) {
                    match reply {
                        Reply::Hit(value) => {
                            clear.insert(*number);
                            let mark = value.decode().map(Mark::new);
                            mark.map(|mark| here.entry(*number).or_insert(mark));
                        }
                        Reply::Miss => drop(clear.insert(*number)),
                        _ => {}
                    }
                }
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

    /// The records of an offer. Names that differ in a few bytes would lie on one server behind a plain hash.
    pub(super) fn offers(&self, key: TokenKeyId, number: u32) -> [RecordKey; COPIES as usize] {
        // The names and the arrangement of the gateway, by what becomes of a constant mark: gateways of others have marks of
        // their own.
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

/// The mark that most replicas hold; of several the smallest, for gateways may have the replicas in another order.
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
        assert_eq!(void(&torn[..1], 1, 1), 1);
        assert_eq!((void(&torn[..1], 3, 2), void(&torn, 3, 2)), (0, 2));
        assert_eq!(void(&torn[..1], 2, 2), 1, "the third does not answer");
    }

    #[test]
    fn a_survey_is_whole_once_every_bucket_is_known() {
        let mut survey = Survey { known: Bucket::all().collect(), ..Survey::default() };
        assert!(survey.is_whole());
        survey.known.take(&Bucket::of(&[0; 32]));
        assert!(!survey.is_whole());
    }
}
