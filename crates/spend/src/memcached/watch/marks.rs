//! The maintenance of marks: plants and offers them, detects where they are lost, and closes those that prove nothing any more.
//!
//! A mark has a witness in each bucket of each replica. The witnesses are written once, before the mark is offered, and never
//! again: where one is missing later, other records of its bucket may be missing too, and tokens of the mark are void there.
//! Then the next mark is planted. Spends are safe whatever happens here, because each reads the witness itself.

use super::Rounds;
use super::marking::{Loss, MOST_MARKS, Marking, Sentinels};
use super::witnesses::{Offers, void};
use crate::Unknown;
use crate::memcached::bucket::Bucket;
use crate::memcached::endpoint::{Endpoint, Unfit, look_up};
use crate::memcached::inspect::{buckets, evicts, settings};
use crate::memcached::serial::SerialConnection;
use crate::memcached::votes::REPLICAS;
use crate::memcached::world::{jittered, random_bytes};
use postern_token::{Mark, MarkId, TokenKeyId, UnixSeconds};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::sleep;

/// The longest time for which a gateway waits for another to plant the next mark.
const OTHERS_FIRST: Duration = Duration::from_secs(2);

/// The buckets that replicas do not know any more.
struct Losses {
    /// Each bucket, once for each replica where it is torn.
    torn: Vec<Bucket>,
    at: [bool; REPLICAS],
    answering: usize,
    /// `true` if every replica knows the mark in every bucket.
    is_whole: bool,
}

impl Rounds {
    /// Maintains the marks of all keys on offer, through one endpoint of each replica that answers. Failures are retried in the
    /// next round.
    pub(super) async fn watch_marks(&mut self) {
        let keys = self.store.marked.keys();
        self.markings.retain(|key, _| keys.contains(key));
        for key in keys {
            // A key that left and came back within a round has no offer, and starts from the beginning.
            let continues =
                |marking: &Marking| marking.offered.is_none() || self.store.marked.offered(key).is_some();
            let mut marking = self.markings.remove(&key).filter(continues).unwrap_or_default();
            if let Err(reason) = self.watch_mark(key, &mut marking).await {
                tracing::debug!(%reason, "the marks of a key could not be read");
            }
            self.markings.insert(key, marking);
        }
        let used_up = self.markings.iter().find(|(_, marking)| marking.is_used_up());
        let was_used_up = self.store.seen.used_up.swap(used_up.is_some(), Relaxed);
        if let Some((key, _)) = used_up.filter(|_| !was_used_up) {
            tracing::error!(
                token_key = %key.short(),
                "the double-spend store has lost the records of this key {MOST_MARKS} times, and no further mark follows: every \
                 token of the key is refused. Mend the store, then run `postern issuer key rotate`"
            );
        }
    }

    async fn watch_mark(&mut self, key: TokenKeyId, marking: &mut Marking) -> Result<(), Unknown> {
        let Some((number, id)) = marking.offered else {
            let offers = self.read_offers(key, 0..MOST_MARKS).await?;
            if !self.adopt(key, marking, &offers) && marking.begins(offers.unclear.is_some()) {
                self.plant(key, marking, 0).await?;
            }
            return Ok(());
        };
        let newer = self.read_offers(key, marking.newer_offers(number)).await?;
        if self.adopt(key, marking, &newer) {
            return Ok(());
        }
        for sentinels in &mut marking.sentinels {
            self.read_sentinels(key, sentinels).await;
        }
        let is_suspect = marking.suspects(|| self.store.marked.take_suspicion(key));
        let (looks, due) = (marking.looks(self.replicas.len(), is_suspect), marking.due());
        if !looks && !marking.looks_back() {
            return Ok(());
        }
        let looks_at_all = is_suspect || marking.loss.is_some();
        let all: Vec<_> = Bucket::all().collect();
        let found = self.losses(&id, if looks_at_all { &all } else { &due }).await;
        if found.torn.is_empty() {
            if found.is_whole && looks_at_all && marking.heals(found.answering) {
                self.store.marked.set_torn(key, 0, Default::default());
                tracing::info!(token_key = %key.short(), "the double-spend store knows the mark again, in every bucket");
            }
            return Ok(());
        }
        if !looks {
            return Ok(()); // known: sentinels that are read again and again would be the last records to be evicted
        }
        // A detected loss may have spared witnesses, too, of any mark.
        for sentinels in &mut marking.sentinels {
            sentinels.read_all();
            self.read_sentinels(key, sentinels).await;
        }
        let losses = self.losses(&id, &all).await;
        self.count_loss(key, marking, &losses)?;
        self.renew_mark(key, marking, number).await
    }

    /// Reads the sentinels of a mark that are due, and closes the mark where one is missing next to its witness. A failed read
    /// is covered by the next group.
    async fn read_sentinels(&mut self, key: TokenKeyId, sentinels: &mut Sentinels) {
        if sentinels.planted.is_none() {
            sentinels.planted = self.planted(&sentinels.mark).await;
        }
        let due = sentinels.due(self.began);
        let mut is_read = true;
        for endpoint in self.replicas.clone() {
            is_read &= self.find_parted(endpoint, key, sentinels, &due).await.is_ok();
        }
        if !is_read && due.len() == Bucket::all().count() {
            sentinels.read_all(); // a loss was seen: all must be read
        }
        if let Some(expires) = self.end_of(key) {
            self.close(sentinels, expires).await;
        }
    }

    /// Reads these buckets of each replica that answers.
    async fn losses(&mut self, id: &MarkId, buckets: &[Bucket]) -> Losses {
        let mut losses = Losses { torn: Vec::new(), at: [false; REPLICAS], answering: 0, is_whole: true };
        for endpoint in self.replicas.clone() {
            // A replica that fails hides no loss of the others.
            let Ok(survey) = self.survey(endpoint, id, buckets).await else {
                losses.is_whole = false;
                continue;
            };
            losses.at[self.replica(endpoint)] |= !survey.torn.is_empty();
            losses.torn.extend(survey.torn);
            losses.answering += 1;
            let is_known = survey.known.len() == buckets.len();
            losses.is_whole &= is_known;
            // Another gateway may have planted the mark: what was unfit here was fit there.
            if is_known && self.markings.values().all(|marking| marking.offered.is_some()) {
                self.store.seen.unfit.lock()[self.replica(endpoint)] = None;
            }
        }
        losses
    }

    /// Plants the next mark after a loss, unless another gateway does so within a moment.
    async fn renew_mark(
        &mut self,
        key: TokenKeyId,
        marking: &mut Marking,
        number: u32,
    ) -> Result<(), Unknown> {
        if !marking.may_follow(number) {
            return Ok(());
        }
        sleep(jittered(OTHERS_FIRST)).await;
        let offers = self.read_offers(key, number + 1..MOST_MARKS).await?;
        let is_clear = |marking: &mut Marking| offers.unclear != Some(number + 1) || marking.begins(true);
        if !self.adopt(key, marking, &offers) && is_clear(marking) {
            self.plant(key, marking, number + 1).await?;
        }
        Ok(())
    }

    /// Counts and reports the buckets that no longer know the mark.
    fn count_loss(&self, key: TokenKeyId, marking: &mut Marking, losses: &Losses) -> Result<(), Unknown> {
        let Losses { torn, at, answering, .. } = losses;
        let (majority, of) = (self.store.options.replicas.majority(), Bucket::all().count());
        let Some(void) = void(torn, *answering, majority) else { return Err(Unknown::Rejected) };
        let lacking = torn.iter().collect::<HashSet<_>>().len();
        self.store.marked.set_torn(key, void, (lacking, *at));
        if !marking.is_worse(Loss { void, answering: *answering }) {
            return Ok(());
        }
        let token_key = key.short();
        if void > 0 {
            tracing::error!(
                token_key,
                torn = void,
                of,
                "the double-spend store has lost records: a server came back empty, or is another one. That share of the tokens \
                 of this mark is void, so that none is admitted twice; tokens of a new mark take their place"
            );
        } else {
            tracing::warn!(
                token_key,
                torn = torn.len(),
                of,
                "a replica of the double-spend store has lost records, or never had them: a server came back empty, or was \
                 away. The other two decide, so no token is void; a new mark, which all replicas know, takes the place of this one"
            );
        }
        Ok(())
    }

    /// Offers the latest of these marks. Returns `false` if there is none.
    fn adopt(&self, key: TokenKeyId, marking: &mut Marking, offers: &Offers) -> bool {
        offers.before.iter().for_each(|mark| marking.know(self.store.mark_id(key, *mark)));
        let Some((number, mark)) = offers.latest else { return false };
        let id = self.store.mark_id(key, mark);
        marking.adopt(number, id);
        tracing::info!(token_key = %key.short(), number, "tokens are requested for this mark of the store");
        self.store.marked.offer(key, mark, id);
        true
    }

    /// Draws a mark, writes its witnesses, reads all of them back, and offers the mark unless another gateway was faster.
    async fn plant(&mut self, key: TokenKeyId, marking: &mut Marking, number: u32) -> Result<(), Unknown> {
        let (count, majority) = (self.store.options.replicas.count(), self.store.options.replicas.majority());
        let Some(expires) = self.end_of(key) else { return Ok(()) };
        if !marking.is_due()
            || !marking.reaches(self.finds_replicas().await)
            || !marking.tries(self.replicas.len() == count)
        {
            return Ok(());
        }
        let mark = Mark::new(random_bytes());
        let id = self.store.mark_id(key, mark);
        let all: Vec<_> = Bucket::all().collect();
        let mut surveys = Vec::new();
        for endpoint in self.replicas.clone() {
            let Some(connection) = self.connect_to_fit(endpoint).await else { continue };
            if self.write_once(connection, endpoint, &id, expires).await.is_ok() {
                surveys.push(self.survey(endpoint, &id, &all).await.unwrap_or_default());
            }
        }
        let is_known = |bucket: &Bucket| {
            surveys.iter().filter(|survey| survey.known.contains(bucket)).count() >= majority
        };
        let known = Bucket::all().filter(is_known).count();
        let whole = surveys.iter().filter(|survey| survey.known.len() == all.len()).count();
        if !marking.may_offer(known, (whole, self.replicas.len(), count)) {
            return Err(Unknown::Rejected);
        }
        self.write_offer(key, number, mark).await;
        let winner = self.read_offers(key, number..number + 1).await?;
        self.adopt(key, marking, &winner);
        if winner.latest.is_some_and(|(_, winner)| winner == mark) {
            self.store.counters.marks_planted.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Looks up the addresses of the replicas that answer. Returns `true` if all are found soon: an attempt to connect would end
    /// before a slow name server answers.
    async fn finds_replicas(&self) -> bool {
        if self.store.world.is_some() {
            return true; // a simulation has no names
        }
        let answers = |endpoint: &&Arc<Endpoint>| {
            self.replicas.iter().any(|answering| self.replica(*answering) == endpoint.replica)
        };
        look_up(self.store.endpoints.iter().filter(answers), self.store.options.connect_timeout).await
    }

    /// Returns a connection to plant a mark over. `None` if an address of the replica is unfit, or `endpoint` stores nothing.
    async fn connect_to_fit(&mut self, endpoint: usize) -> Option<SerialConnection> {
        let replica = self.replica(endpoint);
        let (mut unfit, mut fit) = (None, None);
        for index in 0..self.store.endpoints.len() {
            if self.replica(index) != replica {
                continue;
            }
            match self.judge(index).await {
                Some(Err(reason)) => unfit = Some((index, reason)),
                Some(Ok(connection)) if index == endpoint => fit = Some(connection),
                Some(Ok(_)) | None => {}
            }
        }
        let reason = unfit.map(|(_, reason)| reason);
        let before = std::mem::replace(&mut self.store.seen.unfit.lock()[replica], reason);
        if let Some((index, reason)) = unfit
            && before != Some(reason)
        {
            tracing::error!(address = %self.store.endpoints[index].address, "this {}", reason.explanation());
        }
        fit.filter(|_| unfit.is_none())
    }

    /// Returns the reason why witnesses at an endpoint would prove nothing, or the connection to it. `None` if it cannot be
    /// reached, or stores nothing.
    async fn judge(&self, index: usize) -> Option<Result<SerialConnection, Unfit>> {
        let patience = self.store.options.connect_timeout;
        let mut examined = self.connect(index).await.ok()?;
        let settings = settings(&mut examined.stream, patience).await;
        match settings.as_deref().map(evicts) {
            Some(Some(true)) => return Some(Err(Unfit::Evicts)),
            Some(Some(false)) => return Some(Ok(examined)),
            Some(None) => {}                                    // a router
            None => examined = self.connect(index).await.ok()?, // a router may close it on an unknown command
        }
        if self.store.world.is_some() {
            return Some(Ok(examined)); // simulated servers return no numbers
        }
        // Another connection, since a reply to one of these commands may still come. It is opened now, while its name is known.
        let connection = self.connect(index).await.ok();
        match buckets(&mut examined.stream, patience).await? {
            Ok(()) => connection.map(Ok),
            Err(unfit) => Some(Err(unfit)),
        }
    }

    pub(super) fn end_of(&self, key: TokenKeyId) -> Option<UnixSeconds> {
        self.store.epochs.find(key).map(|epoch| epoch.expires())
    }
}
