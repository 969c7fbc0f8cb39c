//! Plants marks, offers them, and finds out where they are no longer known.
//!
//! A mark has a witness in each bucket. The witnesses are written once, before the mark is offered, and never again: where
//! one is missing later, other records of its bucket may be missing too, and tokens of the mark are void there. Then the
//! next mark is planted. Spends are safe whatever happens here, because each reads the witness itself.

use super::Rounds;
use crate::Unknown;
use crate::memcached::bucket::{Bucket, sentinel, witness, witness_value};
use crate::memcached::marked::Binding;
use crate::memcached::options::OnLoss;
use crate::memcached::protocol::{Command, Kind, RecordKey, Reply, Value};
use crate::memcached::world::{instant, jittered, random_bytes, since};
use postern_token::{Mark, MarkId, Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The most marks of one key. More losses than this are not repaired: the key has to be rotated.
const MOST_MARKS: u32 = 64;
/// Copies of an offer, so that not all lie on one server.
const COPIES: u32 = 4;
/// Commands in one exchange.
const A_WRITE: usize = 128;
/// Witnesses read in each round: all of them in two minutes.
const A_ROUND: usize = 8;
/// For how long the process that began a key may take to offer its first mark, also if a server is away. One that was killed
/// meanwhile offers none, nor does one of a version without marks.
const YOUNG: u64 = 15;
/// Offered in place of a mark by a process that accepts marks and plants none: the key has none, and others need not wait.
const NONE: [u8; 16] = [0; 16];
/// For how long a server that is away is waited for before a mark is offered without its buckets.
const COMPLETE_WITHIN: Duration = Duration::from_secs(10);
/// The shortest time between two marks, and the time in which there are [`A_PERIOD`] at most.
const BETWEEN: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_secs(3600);
const A_PERIOD: usize = 4;
/// The longest a gateway waits for another to plant the next mark.
const OTHERS_FIRST: Duration = Duration::from_secs(2);
/// How long a record lasts that shows that a server answers.
const BRIEF: Duration = Duration::from_secs(60);

/// What the watch remembers of a key's marks.
#[derive(Default)]
pub(super) struct Marking {
    /// The number and the id of the mark on offer.
    offered: Option<(u32, MarkId)>,
    /// The next bucket to be read.
    next: usize,
    /// When marks followed others, in the last hour.
    changes: Vec<Instant>,
    /// Since when a mark could not be planted completely.
    incomplete: Option<Instant>,
    /// The loss of the mark on offer has been reported.
    reported: bool,
}

/// Offers that were read.
struct Offers {
    /// The latest, with its number.
    latest: Option<(u32, Mark)>,
    /// Some could not be read.
    unclear: bool,
}

/// What the store knows of a mark.
#[derive(Default)]
struct Survey {
    known: usize,
    missing: Vec<Bucket>,
    unclear: usize,
}

impl Rounds {
    /// Looks after the marks of all keys on offer. What fails is tried again in the next round.
    pub(super) async fn watch_marks(&mut self, endpoint: usize, now: UnixSeconds) {
        let keys = self.store.marked.keys();
        self.markings.retain(|key, _| keys.contains(key));
        for key in keys {
            let mut marking = self.markings.remove(&key).unwrap_or_default();
            if let Err(reason) = self.watch_mark(endpoint, key, &mut marking, now).await {
                tracing::debug!(%reason, "the marks of a key could not be read");
            }
            self.markings.insert(key, marking);
        }
    }

    async fn watch_mark(
        &mut self,
        endpoint: usize,
        key: TokenKeyId,
        marking: &mut Marking,
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        // Its records' end is known once the epoch has been begun.
        let Some(epoch) = self.progress.get(&key).map(|progress| progress.epoch()) else { return Ok(()) };
        let Some((number, id)) = marking.offered else {
            let is_unmarked = self.store.marked.binding(key) == Some(Binding::Unmarked);
            let offers = self.read_offers(endpoint, key, 0..if is_unmarked { 1 } else { MOST_MARKS }).await?;
            let young = now.0.saturating_sub(epoch.created.0) < YOUNG;
            let plants = self.store.options.marks.as_ref().is_some_and(|marks| marks.plants);
            match offers {
                Offers { latest: Some((number, mark)), .. } => self.adopt_offer(key, marking, number, mark),
                Offers { unclear: true, .. } => {}
                _ if is_unmarked => {}
                _ if epoch.begun_here && plants => {
                    self.plant(endpoint, key, marking, 0, epoch.expires).await?
                }
                _ if epoch.begun_here => {
                    self.offer(endpoint, key, marking, (0, Mark::new(NONE)), epoch.expires).await?;
                }
                _ if !young => self.store.marked.set(key, Binding::Unmarked, None),
                _ => {} // another process began it just now, and may plant
            }
            return Ok(());
        };
        let newer = self.read_offers(endpoint, key, number + 1..number + 2).await?;
        if let Some((number, mark)) = newer.latest {
            self.adopt_offer(key, marking, number, mark);
            return Ok(());
        }
        let buckets = self.due(key, marking);
        let missing = self.survey(endpoint, &id, &buckets).await?.missing;
        if !missing.is_empty() && !self.torn(endpoint, &id, &missing, now).await?.is_empty() {
            self.renew_mark(endpoint, key, marking, (number, id), now).await?;
        }
        Ok(())
    }

    /// The buckets to be read in this round: all after a token was void.
    fn due(&self, key: TokenKeyId, marking: &mut Marking) -> Vec<Bucket> {
        if self.store.marked.take_suspicion(key) {
            return Bucket::all().collect();
        }
        let begin = marking.next;
        marking.next += A_ROUND;
        Bucket::all().cycle().skip(begin % Bucket::all().count()).take(A_ROUND).collect()
    }

    /// Some buckets have lost the mark: reports it, and plants the next one.
    async fn renew_mark(
        &mut self,
        endpoint: usize,
        key: TokenKeyId,
        marking: &mut Marking,
        (number, id): (u32, MarkId),
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        if !std::mem::replace(&mut marking.reported, true) {
            let all: Vec<_> = Bucket::all().collect();
            let missing = self.survey(endpoint, &id, &all).await?.missing;
            let torn = self.torn(endpoint, &id, &missing, now).await?.len();
            self.find_parted(endpoint, key, &id).await?;
            self.store.marked.set_torn(key, torn);
            tracing::error!(
                token_key = %&key.to_hex()[..8], torn, of = all.len(),
                "the double-spend store has lost records: a server came back empty, evicts, or is another one. That share of \
                 the tokens of this mark is void, so that none is admitted twice; tokens of a new mark take their place"
            );
        }
        marking.changes.retain(|change| since(*change) < PERIOD);
        let lately = marking.changes.last().is_some_and(|change| since(*change) < BETWEEN);
        let refuses = self.store.options.on_loss == OnLoss::Refuse;
        if refuses || lately || marking.changes.len() >= A_PERIOD || number + 1 >= MOST_MARKS {
            return Ok(());
        }
        sleep(jittered(OTHERS_FIRST)).await;
        let offers = self.read_offers(endpoint, key, number + 1..MOST_MARKS).await?;
        match (offers.latest, self.progress.get(&key).map(|progress| progress.epoch().expires)) {
            (Some((number, mark)), _) => self.adopt_offer(key, marking, number, mark),
            (None, Some(expires)) if !offers.unclear => {
                self.plant(endpoint, key, marking, number + 1, expires).await?;
            }
            _ => {}
        }
        Ok(())
    }

    fn adopt_offer(&self, key: TokenKeyId, marking: &mut Marking, number: u32, mark: Mark) {
        if *mark.as_bytes() == NONE {
            self.store.marked.set(key, Binding::Unmarked, None);
            return;
        }
        let Some(marks) = &self.store.options.marks else { return };
        let id = (marks.id)(key, mark);
        marking.offered = Some((number, id));
        if number > 0 {
            marking.changes.push(instant());
        }
        (marking.reported, marking.incomplete) = (false, None);
        tracing::info!(token_key = %&key.to_hex()[..8], number, "tokens are requested for this mark of the store");
        if let Some(epoch) = self.store.epochs.find(key) {
            epoch.set_bound();
        }
        self.store.marked.set(key, Binding::Offered(mark), Some(id));
    }

    /// Draws a mark, writes its witnesses, reads all of them back, and offers it unless another gateway was faster.
    async fn plant(
        &mut self,
        endpoint: usize,
        key: TokenKeyId,
        marking: &mut Marking,
        number: u32,
        expires: UnixSeconds,
    ) -> Result<(), Unknown> {
        let Some(marks) = self.store.options.marks.clone() else { return Ok(()) };
        let mark = Mark::new(random_bytes());
        let id = (marks.id)(key, mark);
        // A server whose clock is ahead removes the witnesses first, and only then records.
        let end = UnixSeconds(expires.0.saturating_sub(self.store.options.clock_tolerance.as_secs()));
        let value = witness_value(end);
        let all: Vec<_> = Bucket::all().collect();
        let adds = |bucket: &Bucket| {
            let unread = Value::of_bucket(random_bytes());
            [
                Command::Add { key: sentinel(*bucket, &id), value: unread, expires },
                Command::Add { key: witness(*bucket, &id), value, expires: end },
            ]
        };
        let commands: Vec<_> = all.iter().flat_map(adds).collect();
        // Each is sent once, over a connection of its own: one that arrived after a loss would hide it.
        let mut connection = self.connect(endpoint).await?;
        for write in commands.chunks(A_WRITE) {
            connection.exchange(write).await?;
        }
        let survey = self.survey(endpoint, &id, &all).await?;
        let waited = *marking.incomplete.get_or_insert_with(instant);
        let is_whole = survey.known == all.len();
        if survey.known == 0 || !is_whole && since(waited) < COMPLETE_WITHIN {
            return Err(Unknown::Rejected);
        }
        if self.offer(endpoint, key, marking, (number, mark), expires).await? {
            self.store.counters.planted();
        }
        Ok(())
    }

    /// Offers a mark, and adopts whichever was the first with its number. True if it is this one.
    async fn offer(
        &mut self,
        endpoint: usize,
        key: TokenKeyId,
        marking: &mut Marking,
        (number, mark): (u32, Mark),
        expires: UnixSeconds,
    ) -> Result<bool, Unknown> {
        let value = Value::of_bytes(mark.as_bytes());
        let adds = self.offers(key, number).map(|key| Command::Add { key, value, expires });
        self.request(endpoint, &adds).await?;
        let winner = self.read_offers(endpoint, key, number..number + 1).await?.latest;
        if let Some((number, mark)) = winner {
            self.adopt_offer(key, marking, number, mark);
        }
        Ok(winner.is_some_and(|(_, winner)| winner == mark))
    }

    /// Reads the witnesses of a mark. A miss proves nothing yet: see [`Rounds::torn`].
    async fn survey(&mut self, endpoint: usize, id: &MarkId, buckets: &[Bucket]) -> Result<Survey, Unknown> {
        let mut survey = Survey::default();
        for some in buckets.chunks(A_WRITE) {
            let gets: Vec<_> = some.iter().map(|bucket| Command::Get(witness(*bucket, id))).collect();
            for (bucket, reply) in some.iter().zip(self.request(endpoint, &gets).await?) {
                match reply {
                    Reply::Hit(_) => survey.known += 1,
                    Reply::Miss => survey.missing.push(*bucket),
                    _ => survey.unclear += 1,
                }
            }
        }
        self.read_in_round(buckets.len(), survey.unclear);
        Ok(survey)
    }

    /// Of these buckets, those that do not know the mark although their server answers: a router may report a miss for one
    /// that is down, but it cannot store a record there.
    async fn torn(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        buckets: &[Bucket],
        now: UnixSeconds,
    ) -> Result<Vec<Bucket>, Unknown> {
        let (value, expires) = (Value::of_bucket(random_bytes()), now.saturating_add(BRIEF));
        let mut torn = Vec::new();
        for some in buckets.chunks(A_WRITE / 2) {
            let pair = |bucket: &Bucket| {
                let key = RecordKey::in_bucket(*bucket, &random_bytes());
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

    /// Finds buckets that know the mark and have lost other records: there witnesses prove nothing.
    async fn find_parted(&mut self, endpoint: usize, key: TokenKeyId, id: &MarkId) -> Result<(), Unknown> {
        let mut parted: Vec<_> = Bucket::all().collect();
        // Twice, because a server may come back between the two replies of one bucket.
        for _ in 0..2 {
            parted = self.without_sentinels(endpoint, id, &parted).await?;
        }
        let epoch = self.store.epochs.find(key);
        if !parted.is_empty() && epoch.is_some_and(|epoch| epoch.set_parted()) {
            tracing::error!(
                token_key = %&key.to_hex()[..8], buckets = parted.len(),
                "the double-spend store has lost records and kept the witnesses beside them, so spent tokens may be admitted \
                 again: a router keeps records of one bucket on several servers (twemproxy needs hash_tag: \"||\"), or a \
                 server evicts. Mend that, and rotate the issuer's key"
            );
        }
        Ok(())
    }

    /// Of these buckets, those with a witness and without the record beside it.
    async fn without_sentinels(
        &mut self,
        endpoint: usize,
        id: &MarkId,
        buckets: &[Bucket],
    ) -> Result<Vec<Bucket>, Unknown> {
        let mut found = Vec::new();
        for some in buckets.chunks(A_WRITE / 2) {
            let gets = |bucket: &Bucket| [sentinel(*bucket, id), witness(*bucket, id)].map(Command::Get);
            let replies = self.request(endpoint, &some.iter().flat_map(gets).collect::<Vec<_>>()).await?;
            let pairs = some.iter().zip(replies.chunks(2));
            found.extend(
                pairs
                    .filter(|(_, pair)| matches!(pair, [Reply::Miss, Reply::Hit(_)]))
                    .map(|(bucket, _)| *bucket),
            );
        }
        Ok(found)
    }

    /// Reads the offers with these numbers. Of several copies the first counts, so that gateways agree.
    async fn read_offers(
        &mut self,
        endpoint: usize,
        key: TokenKeyId,
        numbers: Range<u32>,
    ) -> Result<Offers, Unknown> {
        let mut found = Offers { latest: None, unclear: false };
        let keys: Vec<_> =
            numbers.flat_map(|number| self.offers(key, number).map(|key| (number, key))).collect();
        for some in keys.chunks(A_WRITE) {
            let gets: Vec<_> = some.iter().map(|(_, key)| Command::Get(*key)).collect();
            for ((number, _), reply) in some.iter().zip(self.request(endpoint, &gets).await?) {
                match reply {
                    Reply::Hit(value) if found.latest.is_none_or(|(latest, _)| latest < *number) => {
                        found.latest =
                            value.decode().map(|bytes| (*number, Mark::new(bytes))).or(found.latest);
                    }
                    Reply::Hit(_) | Reply::Miss => {}
                    _ => found.unclear = true,
                }
            }
        }
        Ok(found)
    }

    /// The records of an offer. Other names than these, as for canaries, would lie on one server.
    fn offers(&self, key: TokenKeyId, number: u32) -> [RecordKey; COPIES as usize] {
        // The names of the gateway, by what becomes of a constant mark: gateways of other names have marks of their own.
        let names = self.store.options.marks.as_ref().map(|marks| (marks.id)(key, Mark::new([0; 16])));
        let names = TokenKeyId(names.map_or([0; 32], |names| *names.as_bytes()));
        std::array::from_fn(|copy| {
            let mut nonce = [0; 32];
            nonce[..4].copy_from_slice(&number.to_be_bytes());
            nonce[4] = copy as u8;
            let name = SpentKey::derive(TokenType::BlindRsa2048, names, Nonce(nonce));
            RecordKey::new(Kind::Offer, name.as_bytes())
        })
    }
}
