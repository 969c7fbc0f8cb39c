//! Plants marks, offers them, and finds out where they are no longer known.
//!
//! A mark has a witness in each bucket of each replica. The witnesses are written once, before the mark is offered, and
//! never again: where one is missing later, other records of its bucket may be missing too, and tokens of the mark are void
//! there. Then the next mark is planted. Spends are safe whatever happens here, because each reads the witness itself.

use super::Rounds;
use super::marking::{ALL_OFFERS, Begin, Look, Loss, MOST_MARKS, Marking, Unoffered};
use super::witnesses::{Survey, void};
use crate::binding::plants;
use crate::memcached::bucket::Bucket;
use crate::memcached::canary::Canaries;
use crate::memcached::world::{jittered, random_bytes};
use crate::{Binding, Unknown};
use postern_token::{Mark, MarkId, TokenKeyId, UnixSeconds};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::sleep;

/// Offered in place of a mark by a process that plants none, or that has waited long enough for another to plant: the key has
/// none, and others need not wait.
const NONE: [u8; 16] = [0; 16];
/// The longest a gateway waits for another to plant the next mark.
const OTHERS_FIRST: Duration = Duration::from_secs(2);

impl Rounds {
    /// Looks after the marks of all keys on offer, through one endpoint of each replica that answers. What fails is tried
    /// again in the next round.
    pub(super) async fn watch_marks(&mut self, replicas: &[usize], now: UnixSeconds) {
        let keys = self.store.marked.keys();
        self.markings.retain(|key, _| keys.contains(key));
        for key in keys {
            let mut marking = self.markings.remove(&key).unwrap_or_default();
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
        // Its records' end is known once the epoch has been begun.
        let Some(expires) = self.end_of(key) else { return Ok(()) };
        let Some((number, id)) = marking.offered else {
            let is_unmarked = self.store.marked.binding(key) == Some(Binding::Unmarked);
            let mut offers =
                self.read_offers(replicas, key, if is_unmarked { 0..1 } else { ALL_OFFERS }).await?;
            if is_unmarked {
                let later = self.read_offers(replicas, key, marking.next_offers()).await?;
                offers.latest = later.latest.or(offers.latest);
            }
            match offers.latest {
                Some((number, mark)) => self.adopt_offer(key, marking, number, mark),
                None => match marking.begin(&self.unoffered(replicas, key, offers.unclear, now).await) {
                    Begin::Marked => self.plant(replicas, key, marking, 0, expires).await?,
                    Begin::TakenOver => self.plant_after_others(replicas, key, marking, 0).await?,
                    Begin::Later => {}
                    // Whoever comes first decides for all: a planter may be slow, and offer its mark now.
                    Begin::Unmarked => {
                        self.offer(replicas, key, marking, (0, Mark::new(NONE))).await?;
                    }
                },
            }
            return Ok(());
        };
        let newer = self.read_offers(replicas, key, marking.newer_offers(number)).await?;
        if let Some((number, mark)) = newer.latest {
            self.adopt_offer(key, marking, number, mark);
            return Ok(());
        }
        if marking.planted.is_none() {
            marking.planted = self.planted(replicas, &id, now).await;
        }
        let sentinels = marking.due_sentinels(now);
        for endpoint in replicas {
            let _ = self.find_parted(*endpoint, key, &id, &sentinels).await; // the next group will show it, too
        }
        let is_suspect = marking.suspects(|| self.store.marked.take_suspicion(key));
        let buckets = if is_suspect { Bucket::all().collect() } else { marking.due() };
        let look = marking.look(replicas.len(), is_suspect);
        if look == Look::Not || !self.is_torn(replicas, &id, &buckets, now).await {
            return Ok(());
        }
        if look == Look::AndCount {
            self.count_loss(replicas, key, marking, &id, now).await?;
        }
        self.renew_mark(replicas, key, marking, number).await
    }

    /// Whether some replica has lost the mark in one of these buckets.
    async fn is_torn(
        &mut self,
        replicas: &[usize],
        id: &MarkId,
        buckets: &[Bucket],
        now: UnixSeconds,
    ) -> bool {
        for endpoint in replicas {
            let Ok(survey) = self.survey(*endpoint, id, buckets).await else { continue };
            let torn = self.torn(*endpoint, id, &survey.missing, now).await;
            if torn.is_ok_and(|torn| !torn.is_empty()) {
                return true;
            }
        }
        false
    }

    /// When a key's records end.
    pub(super) fn end_of(&self, key: TokenKeyId) -> Option<UnixSeconds> {
        if self.store.options.replicas.are_three() {
            self.store.epochs.find(key)?.expires()
        } else {
            self.progress.get(&key).map(|progress| progress.epoch().expires)
        }
    }

    /// `unclear` is the first offer that may be there.
    async fn unoffered(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        unclear: Option<u32>,
        now: UnixSeconds,
    ) -> Unoffered {
        let is_unmarked = self.store.marked.binding(key) == Some(Binding::Unmarked);
        let is_promised = !is_unmarked && self.plants() && self.is_promised(replicas, key).await;
        let epoch = self.progress.get(&key).map(|progress| progress.epoch());
        let is_begun_here = epoch.as_ref().is_some_and(|epoch| epoch.begun_here);
        // Clocks of gateways differ, so that a key may look older than it is.
        let tolerance = self.store.options.clock_tolerance;
        Unoffered {
            // No process had a key before the one that began it, so there are no later offers than the first.
            is_unclear: if is_begun_here { unclear == Some(0) } else { unclear.is_some() },
            is_unmarked,
            must_be_marked: self.store.options.replicas.are_three(), // there are no other keys
            plants: self.plants(),
            is_begun_here,
            is_promised,
            is_old: epoch.is_some_and(|epoch| epoch.created.until(now) >= tolerance),
        }
    }

    async fn is_promised(&mut self, replicas: &[usize], key: TokenKeyId) -> bool {
        let promise = Canaries(key).promise();
        for endpoint in replicas {
            if self.find(*endpoint, &promise).await.is_ok_and(|found| !found.marks.is_empty()) {
                return true;
            }
        }
        false
    }

    pub(super) fn plants(&self) -> bool {
        plants(self.store.options.marks.as_ref())
    }

    /// Some buckets have lost the mark: plants the next one.
    async fn renew_mark(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        number: u32,
    ) -> Result<(), Unknown> {
        if !marking.may_follow(number, self.store.options.on_loss) {
            return Ok(());
        }
        self.plant_after_others(replicas, key, marking, number + 1).await
    }

    /// Plants the mark with this number, unless another gateway does so within a moment.
    async fn plant_after_others(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        number: u32,
    ) -> Result<(), Unknown> {
        sleep(jittered(OTHERS_FIRST)).await;
        let offers = self.read_offers(replicas, key, number..MOST_MARKS).await?;
        match (offers.latest, self.end_of(key)) {
            (Some((number, mark)), _) => self.adopt_offer(key, marking, number, mark),
            (None, Some(expires)) if offers.unclear != Some(number) => {
                self.plant(replicas, key, marking, number, expires).await?;
            }
            _ => {}
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
            let Ok(here) = self.torn(*endpoint, id, &survey.missing, now).await else { continue };
            torn.extend(here);
            answering += 1;
            let _ = self.find_parted(*endpoint, key, id, &all).await; // again with the next loss
        }
        if answering < self.store.options.replicas.majority() {
            return Err(Unknown::Rejected);
        }
        let void = void(&torn, answering, self.store.options.replicas.majority());
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
                "the double-spend store has lost records: a server came back empty, evicts, or is another one. That share of \
                 the tokens of this mark is void, so that none is admitted twice; tokens of a new mark take their place"
            );
        } else {
            tracing::warn!(
                token_key,
                torn = torn.len(),
                of = all.len(),
                "one replica of the double-spend store has lost records, or never had them: a server came back empty, evicts, \
                 or was away. The others decide, so no token is void; a new mark, which all replicas know, takes the place \
                 of this one"
            );
        }
        Ok(())
    }

    fn adopt_offer(&self, key: TokenKeyId, marking: &mut Marking, number: u32, mark: Mark) {
        if *mark.as_bytes() == NONE {
            if self.plants() && self.store.marked.binding(key) != Some(Binding::Unmarked) {
                tracing::warn!(
                    token_key = %key.short(),
                    "the tokens of this key have no mark: a gateway that plants none began it, or one that could plant none in \
                     time. They stay without until the key is rotated, or until another gateway offers a mark"
                );
            }
            self.store.marked.set(key, Binding::Unmarked, None);
            return;
        }
        let Some(marks) = &self.store.options.marks else { return };
        let id = (marks.id)(key, mark);
        marking.adopt(number, id);
        tracing::info!(token_key = %key.short(), number, "tokens are requested for this mark of the store");
        if let Some(epoch) = self.store.epochs.find(key) {
            epoch.set_bound();
        }
        self.store.marked.set(key, Binding::Offered(mark), Some(id));
    }

    /// Draws a mark, writes its witnesses, reads all of them back, and offers it unless another gateway was faster.
    async fn plant(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        number: u32,
        expires: UnixSeconds,
    ) -> Result<(), Unknown> {
        let Some(marks) = self.store.options.marks.clone() else { return Ok(()) };
        let (count, majority) = (self.store.options.replicas.count(), self.store.options.replicas.majority());
        if !marking.tries(replicas.len() == count) {
            return Ok(());
        }
        let mark = Mark::new(random_bytes());
        let id = (marks.id)(key, mark);
        let (mut surveys, mut overlaps) = (Vec::new(), false);
        for endpoint in replicas {
            let written = self.write_once(*endpoint, &id, expires).await;
            overlaps |= count > 1 && written == Ok(true);
            let all: Vec<_> = Bucket::all().collect();
            surveys.push(match written {
                Ok(_) => self.survey(*endpoint, &id, &all).await.unwrap_or_default(),
                Err(_) => Survey::default(),
            });
        }
        self.set_overlaps(overlaps);
        if overlaps {
            return Err(Unknown::Unproven);
        }
        let is_known = |bucket: &Bucket| {
            surveys.iter().filter(|survey| survey.known.contains(bucket)).count() >= majority
        };
        let known = Bucket::all().filter(is_known).count();
        let is_whole = surveys.iter().filter(|survey| survey.is_whole()).count() == count;
        if !marking.may_offer(known, is_whole) {
            return Err(Unknown::Rejected);
        }
        if self.offer(replicas, key, marking, (number, mark)).await? {
            self.store.counters.planted();
        }
        Ok(())
    }

    /// Offers a mark, and adopts whichever was the first with its number. True if it is this one.
    async fn offer(
        &mut self,
        replicas: &[usize],
        key: TokenKeyId,
        marking: &mut Marking,
        (number, mark): (u32, Mark),
    ) -> Result<bool, Unknown> {
        self.write_offer(replicas, key, (number, mark)).await;
        let winner = self.read_offers(replicas, key, number..number + 1).await?.latest;
        if let Some((number, mark)) = winner {
            self.adopt_offer(key, marking, number, mark);
        }
        Ok(winner.is_some_and(|(_, winner)| winner == mark))
    }
}
