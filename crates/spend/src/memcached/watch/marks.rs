//! Plants marks, offers them, finds out where they are no longer known, and closes those that prove nothing any more.
//!
//! A mark has a witness in each bucket of each replica. The witnesses are written once, before the mark is offered, and
//! never again: where one is missing later, other records of its bucket may be missing too, and tokens of the mark are void
//! there. Then the next mark is planted. Spends are safe whatever happens here, because each reads the witness itself.

use super::Rounds;
use super::marking::{Look, Loss, MOST_MARKS, Marking};
use super::sentinels::Sentinels;
use super::witnesses::{Offers, void};
use crate::Unknown;
use crate::memcached::WHOLE_BUCKETS;
use crate::memcached::bucket::Bucket;
use crate::memcached::inspect::{evicts, parts};
use crate::memcached::serial::SerialConnection;
use crate::memcached::undo::{Undo, is_undone};
use crate::memcached::world::{jittered, random_bytes};
use postern_token::{Mark, MarkId, TokenKeyId, UnixSeconds};
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::sleep;

/// The longest a gateway waits for another to plant the next mark.
const OTHERS_FIRST: Duration = Duration::from_secs(2);

impl Rounds {
    /// Looks after the marks of all keys on offer, through one endpoint of each replica that answers. What fails is tried
    /// again in the next round.
    pub(super) async fn watch_marks(&mut self, replicas: &[usize], now: UnixSeconds) {
        let keys = self.store.marked.keys();
        self.markings.retain(|key, _| keys.contains(key));
        for key in keys {
            // A key that left and came back within a round is without an offer, and begins anew.
            let goes_on = |marking: &Marking| marking.offered.is_none() || self.store.marked.has_offer(key);
            let mut marking = self.markings.remove(&key).filter(goes_on).unwrap_or_default();
            if let Err(reason) = self.watch_mark(replicas, key, &mut marking, now).await {
                tracing::debug!(%reason, "the marks of a key could not be read");
            }
            self.markings.insert(key, marking);
        }
    }

    async fn watch_mark(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        let Some((number, id)) = marking.offered else {
            let offers = self.read_offers(replicas, key, 0..MOST_MARKS).await?;
            if !self.adopt(key, marking, &offers) && marking.begins(offers.unclear.is_some()) {
                self.plant(replicas, key, marking, 0).await?;
            }
            return Ok(());
        };
        let newer = self.read_offers(replicas, key, marking.newer_offers(number)).await?;
        if self.adopt(key, marking, &newer) {
            return Ok(());
        }
        for sentinels in &mut marking.sentinels {
            self.read_sentinels(replicas, key, sentinels, now).await;
        }
        let is_suspect = marking.suspects(|| self.store.marked.take_suspicion(key));
        let look = marking.look(replicas.len(), is_suspect);
        let looks_at_all = is_suspect || look == Look::Only;
        let buckets = if looks_at_all { Bucket::all().collect() } else { marking.due() };
        if look == Look::Not {
            return Ok(());
        }
        let is_torn = self.is_torn(replicas, &id, &buckets, now).await;
        if is_torn == Some(false) && looks_at_all && marking.heals() {
            self.store.marked.set_torn(key, 0, 0);
            tracing::info!(token_key = %key.short(), "the double-spend store knows the mark again, in every bucket");
        }
        if is_torn != Some(true) {
            return Ok(());
        }
        // A loss that is seen may have spared witnesses, too, of any mark.
        for sentinels in &mut marking.sentinels {
            sentinels.read_all();
            self.read_sentinels(replicas, key, sentinels, now).await;
        }
        if look == Look::AndCount {
            self.count_loss(replicas, key, marking, &id, now).await?;
        }
        self.renew_mark(replicas, key, marking, number).await
    }

    /// Reads the sentinels of a mark that are due, and closes the mark where one is missing beside its witness. What fails is
    /// shown by the next group, too.
    async fn read_sentinels(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        sentinels: &mut Sentinels,
        now: UnixSeconds,
    ) {
        if sentinels.planted.is_none() {
            sentinels.planted = self.planted(replicas, &sentinels.mark, now).await;
        }
        let due = sentinels.due(now);
        let mut is_read = true;
        for endpoint in replicas {
            is_read &= self.find_parted(*endpoint, key, sentinels, &due).await.is_ok();
        }
        if !is_read && due.len() == Bucket::all().count() {
            sentinels.read_all(); // a loss was seen, and is looked for until all are read
        }
        if let Some(expires) = self.end_of(key) {
            self.close(replicas, sentinels, expires).await;
        }
    }

    /// Whether some replica has lost the mark in one of these buckets. `None` where none is known to, and not all could be read.
    async fn is_torn(
        &mut self,
        replicas: &[usize],
        id: &MarkId,
        buckets: &[Bucket],
        now: UnixSeconds,
    ) -> Option<bool> {
        let mut is_whole = true;
        for endpoint in replicas {
            let Ok(survey) = self.survey(*endpoint, id, buckets).await else {
                is_whole = false;
                continue;
            };
            is_whole &= survey.known.len() == buckets.len();
            if is_undone(Undo::WitnessAgain) && !survey.missing.is_empty() {
                self.write_again(*endpoint, id, &survey.missing).await;
            }
            let torn = self.torn(*endpoint, id, &survey, now).await;
            if torn.is_ok_and(|torn| !torn.is_empty()) {
                return Some(true);
            }
        }
        is_whole.then_some(false)
    }

    /// Some buckets have lost the mark: plants the next one, unless another gateway does so within a moment.
    async fn renew_mark(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        number: u32,
    ) -> Result<(), Unknown> {
        if !marking.may_follow(number) {
            return Ok(());
        }
        sleep(jittered(OTHERS_FIRST)).await;
        let offers = self.read_offers(replicas, key, number + 1..MOST_MARKS).await?;
        let is_clear = |marking: &mut Marking| offers.unclear != Some(number + 1) || marking.begins(true);
        if !self.adopt(key, marking, &offers) && is_clear(marking) {
            self.plant(replicas, key, marking, number + 1).await?;
        }
        Ok(())
    }

    /// Counts where the mark is no longer known, and reports it.
    async fn count_loss(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        id: &MarkId,
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        let all: Vec<_> = Bucket::all().collect();
        let (mut torn, mut answering) = (Vec::new(), 0);
        for endpoint in replicas {
            // One that fails hides no loss of the others.
            let Ok(survey) = self.survey(*endpoint, id, &all).await else { continue };
            let Ok(here) = self.torn(*endpoint, id, &survey, now).await else { continue };
            torn.extend(here);
            answering += 1;
        }
        let majority = self.store.options.replicas.majority();
        if answering < majority {
            return Err(Unknown::Rejected);
        }
        let void = void(&torn, answering, majority);
        self.store.marked.set_torn(key, void, torn.iter().collect::<HashSet<_>>().len());
        if !marking.is_worse(Loss { void, answering: replicas.len() }) {
            return Ok(());
        }
        let token_key = key.short();
        if void > 0 {
            tracing::error!(
                token_key,
                torn = void,
                of = all.len(),
                "the double-spend store has lost records: a server came back empty, or is another one. That share of the tokens \
                 of this mark is void, so that none is admitted twice; tokens of a new mark take their place"
            );
        } else {
            tracing::warn!(
                token_key,
                torn = torn.len(),
                of = all.len(),
                "a replica of the double-spend store has lost records, or never had them: a server came back empty, or was \
                 away. The other two decide, so no token is void; a new mark, which all replicas know, takes the place of this one"
            );
        }
        Ok(())
    }

    /// Takes the latest of these offers, if there is one.
    fn adopt(&self, key: TokenKeyId, marking: &mut Marking, offers: &Offers) -> bool {
        offers.before.iter().for_each(|mark| marking.know(self.store.mark_id(key, *mark)));
        let Some((number, mark)) = offers.latest else { return false };
        let id = self.store.mark_id(key, mark);
        marking.adopt(number, id);
        tracing::info!(token_key = %key.short(), number, "tokens are requested for this mark of the store");
        self.store.marked.offer(key, mark, id);
        true
    }

    /// Draws a mark, writes its witnesses, reads all of them back, and offers it unless another gateway was faster.
    async fn plant(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        number: u32,
    ) -> Result<(), Unknown> {
        let (count, majority) = (self.store.options.replicas.count(), self.store.options.replicas.majority());
        let Some(expires) = self.end_of(key) else { return Ok(()) };
        if !marking.tries(replicas.len() == count) {
            return Ok(());
        }
        let mark = Mark::new(random_bytes());
        let id = self.store.mark_id(key, mark);
        let all: Vec<_> = Bucket::all().collect();
        let mut surveys = Vec::new();
        for endpoint in replicas {
            let Some(connection) = self.connect_to_fit(*endpoint).await else { continue };
            if self.write_once(connection, *endpoint, &id, expires).await.is_err() {
                continue;
            }
            surveys.push(self.survey(*endpoint, &id, &all).await.unwrap_or_default());
        }
        let is_known = |bucket: &Bucket| {
            surveys.iter().filter(|survey| survey.known.contains(bucket)).count() >= majority
        };
        let known = Bucket::all().filter(is_known).count();
        let whole = surveys.iter().filter(|survey| survey.is_whole()).count();
        if !marking.may_offer(known, (whole, replicas.len(), count)) {
            return Err(Unknown::Rejected);
        }
        self.write_offer(replicas, key, (number, mark)).await;
        let winner = self.read_offers(replicas, key, number..number + 1).await?;
        self.adopt(key, marking, &winner);
        if winner.latest.is_some_and(|(_, winner)| winner == mark) {
            self.store.counters.planted();
        }
        Ok(())
    }

    /// A connection to plant a mark over; `None` where witnesses would prove nothing: a memcached drops records when it is full, or a
    /// router keeps records of one bucket on several servers.
    async fn connect_to_fit(&mut self, endpoint: usize) -> Option<SerialConnection> {
        let replica = self.store.endpoints[endpoint].replica();
        let (mut is_evicting, mut is_parting, mut fit) = (false, false, None);
        for index in 0..self.store.endpoints.len() {
            if self.store.endpoints[index].replica() != replica {
                continue;
            }
            let Ok(connection) = self.connect(index).await else { continue };
            let (evicts, parts, kept) = self.judge(index, connection).await;
            is_evicting |= evicts;
            is_parting |= parts;
            if index == endpoint {
                fit = kept;
            }
        }
        let address = self.store.endpoints[endpoint].address();
        if !self.store.evicting[replica].swap(is_evicting, Relaxed) && is_evicting {
            tracing::error!(
                %address,
                "a memcached drops records when it is full, so that spent tokens would be good again: no mark is planted there. \
                 Start it with -M"
            );
        }
        if !self.store.parting[replica].swap(is_parting, Relaxed) && is_parting {
            tracing::error!(
                %address,
                "a router keeps records of one bucket on several servers, so that spent tokens would be good again after a loss: \
                 no mark is planted there. {WHOLE_BUCKETS}"
            );
        }
        match fit {
            _ if is_evicting || is_parting => None,
            None => self.connect(endpoint).await.ok(),
            fit => fit,
        }
    }

    /// Whether what is at the end of a connection evicts, and whether it parts buckets; and the connection, if it is still of use.
    /// One is enough for both where it may be: behind a slow name server each is dear.
    async fn judge(
        &self,
        index: usize,
        mut connection: SerialConnection,
    ) -> (bool, bool, Option<SerialConnection>) {
        let patience = self.store.options.connect_timeout;
        match evicts(&mut connection, patience).await {
            Some(true) => return (true, false, Some(connection)),
            Some(false) => {}
            None => match self.connect(index).await {
                Ok(another) => connection = another,
                Err(_) => return (false, false, None),
            },
        }
        if self.store.endpoints[index].is_simulated() {
            return (false, false, Some(connection)); // its servers give no numbers
        }
        match parts(&mut connection, patience).await {
            Some(parts) => (false, parts, Some(connection)),
            None => (false, false, None),
        }
    }

    /// When a key's records end.
    pub(super) fn end_of(&self, key: TokenKeyId) -> Option<UnixSeconds> {
        self.store.epochs.find(key).map(|epoch| epoch.expires())
    }
}
