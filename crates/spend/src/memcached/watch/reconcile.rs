//! Reconciles the canaries of each epoch: reads them, writes those that are missing, and reports losses.

use super::Rounds;
use crate::memcached::canary::{Canaries, GROUP, GROUPS, Mark, NEVER, adds, due, gets};
use crate::memcached::epochs::EpochState;
use crate::memcached::protocol::{RecordKey, Reply};
use crate::memcached::undo::{Undo, is_undone};
use crate::{Binding, Unknown};
use postern_token::UnixSeconds;
use std::collections::HashSet;
use std::sync::Arc;

/// While an epoch is this young, in seconds, the gateway that began it still writes the sentinels.
const YOUNG: u64 = 60;
/// Groups of sentinels written in one round: 320 records.
const GROUPS_A_ROUND: u32 = 20;

/// How a round went.
pub(super) struct Reconciled {
    /// Every epoch that is in use could be begun.
    pub(super) usable: bool,
    /// All epochs could be reconciled.
    pub(super) complete: bool,
}

/// What the watch remembers of an epoch.
pub(super) struct Progress {
    mark: Mark,
    /// The epoch markers that were written or read: one of them that is missing was lost. The others could not be
    /// written yet, because a server was away.
    planted: HashSet<RecordKey>,
    /// Whether all were, by any gateway.
    whole: bool,
    /// This process began the epoch.
    begun_here: bool,
    sentinels: Sentinels,
    /// The last group that was read.
    read: Option<u32>,
}

/// When an epoch began, and when its records end.
pub(super) struct Begun {
    pub(super) created: UnixSeconds,
    pub(super) expires: UnixSeconds,
    /// By this process.
    pub(super) begun_here: bool,
}

impl Progress {
    pub(super) fn epoch(&self) -> Begun {
        Begun { created: self.mark.created, expires: self.mark.expires, begun_here: self.begun_here }
    }

    /// Gateways that begin an epoch at once, while some canaries cannot be read or after all were lost, may each have
    /// seen others' marks. Records written under the first expiry are gone after it, so it holds as soon as it is seen.
    fn keep_to_the_first(&mut self, marks: &[Mark]) {
        let first = marks.iter().map(|mark| mark.expires).min();
        self.mark.expires = first.map_or(self.mark.expires, |first| first.min(self.mark.expires));
    }
}

/// How far the sentinels are.
enum Sentinels {
    /// This process writes them: the number of groups that are done, and those of them that could not be written.
    Writing(u32, Vec<RecordKey>),
    /// Another process does, or did.
    Elsewhere,
    Complete,
}

/// What was found under some canaries' keys.
pub(super) struct Found {
    pub(super) marks: Vec<Mark>,
    /// Under which of them.
    there: Vec<RecordKey>,
    /// Those that are not there.
    missing: Vec<RecordKey>,
    /// How many could not be read.
    unclear: usize,
}

impl Found {
    /// How many had been lost before, and were written again.
    fn rewritten(&self) -> usize {
        self.marks.iter().filter(|mark| mark.rewritten).count()
    }
}

/// What came of writing canaries.
#[derive(Default)]
struct Written {
    /// How many did not exist.
    gone: usize,
    /// Those that stand now.
    stand: HashSet<RecordKey>,
}

impl Rounds {
    /// Reconciles all epochs through one endpoint. What fails is tried again in the next round.
    pub(super) async fn reconcile_epochs(&mut self, endpoint: usize, now: UnixSeconds) -> Reconciled {
        let mut reconciled = Reconciled { usable: true, complete: true };
        let epochs = self.store.epochs.all();
        self.progress.retain(|key, _| epochs.iter().any(|epoch| epoch.key == *key));
        self.begun.retain(|key| epochs.iter().any(|epoch| epoch.key == *key));
        for epoch in &epochs {
            if let Err(reason) = self.reconcile(epoch, endpoint, now).await {
                tracing::debug!(%reason, "the canaries of an epoch could not be read");
                reconciled.usable &= epoch.expires().is_none();
                reconciled.complete = false;
            }
        }
        reconciled
    }

    async fn reconcile(
        &mut self,
        epoch: &Arc<EpochState>,
        endpoint: usize,
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        if self.store.is_bound(epoch) && self.progress.contains_key(&epoch.key) {
            return Ok(()); // its witnesses and their sentinels are watched in place of canaries
        }
        self.reconcile_epoch_markers(epoch, endpoint, now).await?;
        self.share_loss(epoch, endpoint).await?;
        if self.store.marked.binding(epoch.key) == Some(Binding::Unknown) {
            return Ok(()); // no token of it can be requested before it is known whether a mark binds them
        }
        self.reconcile_sentinels(epoch, endpoint, now).await
    }

    /// Shares a detected loss with the other gateways, and learns of losses that they detected.
    async fn share_loss(&mut self, epoch: &Arc<EpochState>, endpoint: usize) -> Result<(), Unknown> {
        let flags = Canaries(epoch.key).loss();
        let flags_found = self.find(endpoint, &flags).await?;
        if !epoch.is_lost() {
            self.report(epoch, "epoch_marker", 0, flags_found.marks.len());
        } else if let Some(progress) = self.progress.get(&epoch.key) {
            let mark = Mark { rewritten: true, ..progress.mark };
            self.rewrite(endpoint, &flags_found.missing, mark, NEVER).await?;
        }
        Ok(())
    }

    async fn reconcile_epoch_markers(
        &mut self,
        epoch: &Arc<EpochState>,
        endpoint: usize,
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        let markers = Canaries(epoch.key).epoch_markers();
        let mut found = self.find(endpoint, &markers).await?;
        if !self.progress.contains_key(&epoch.key) {
            found = self.adopt(epoch, endpoint, now, found).await?;
        }
        let Some(progress) = self.progress.get_mut(&epoch.key) else { return Ok(()) };
        progress.keep_to_the_first(&found.marks);
        if epoch.expires() != Some(progress.mark.expires) {
            epoch.adopt(progress.mark.expires); // also when callers' side had forgotten the epoch in between
        }
        progress.planted.extend(&found.there);
        let mark = progress.mark;
        // Another gateway found no marker and began the epoch again, although it existed before.
        let complete = found.missing.is_empty() && found.unclear == 0;
        let begun_again = complete && found.marks.iter().all(|found| found.created > mark.created);
        self.learn_whether_all_were_planted(epoch, endpoint).await?;
        let Some(progress) = self.progress.get(&epoch.key) else { return Ok(()) };
        let whole = progress.whole;
        let is_lost = |key: &_| whole || progress.planted.contains(key) || is_undone(Undo::PlantedCanaries);
        let (lost, never_written): (Vec<_>, Vec<_>) = found.missing.iter().partition(|key| is_lost(*key));
        let again = self.rewrite(endpoint, &lost, Mark { rewritten: true, ..mark }, NEVER).await?;
        self.report(epoch, "epoch_marker", again.gone, found.rewritten() + usize::from(begun_again));
        let planted = self.rewrite(endpoint, &never_written, mark, NEVER).await?;
        let Some(progress) = self.progress.get_mut(&epoch.key) else { return Ok(()) };
        progress.planted.extend(planted.stand);
        if !whole && progress.planted.len() == markers.len() {
            let flags = self.rewrite(endpoint, &Canaries(epoch.key).planted(), mark, NEVER).await?;
            if let Some(progress) = self.progress.get_mut(&epoch.key) {
                progress.whole = !flags.stand.is_empty();
            }
        }
        Ok(())
    }

    /// Reads, until it is so, whether some gateway has planted all epoch markers: then a missing one was lost, also for
    /// a gateway that has never seen it.
    async fn learn_whether_all_were_planted(
        &mut self,
        epoch: &Arc<EpochState>,
        endpoint: usize,
    ) -> Result<(), Unknown> {
        if self.progress.get(&epoch.key).is_some_and(|progress| progress.whole) {
            return Ok(());
        }
        let flags = self.find(endpoint, &Canaries(epoch.key).planted()).await?;
        if flags.marks.is_empty() && flags.missing.is_empty() {
            return Err(Unknown::Rejected); // no server reported a hit or a miss
        }
        if let Some(progress) = self.progress.get_mut(&epoch.key) {
            progress.whole = !flags.marks.is_empty();
        }
        Ok(())
    }

    /// Begins an epoch, or adopts the expiry that the store's epoch markers hold.
    async fn adopt(
        &mut self,
        epoch: &Arc<EpochState>,
        endpoint: usize,
        now: UnixSeconds,
        mut found: Found,
    ) -> Result<Found, Unknown> {
        let markers = Canaries(epoch.key).epoch_markers();
        let mut sentinels = Sentinels::Elsewhere;
        if found.marks.is_empty() {
            if found.missing.is_empty() {
                return Err(Unknown::Rejected); // no server reported a hit or a miss, so it is unknown whether the epoch is new
            }
            // If this process already knows the epoch, the store has lost all its records.
            let rewritten = epoch.expires().is_some();
            if !rewritten {
                tracing::info!(token_key = %epoch.key.short(), "the double-spend store has no record of this key yet");
            }
            let mark = Mark { rewritten, expires: epoch.expires().unwrap_or(epoch.wanted), created: now };
            if !rewritten {
                self.begun.insert(epoch.key); // also if a server is away, and the rest of this fails
            }
            if self.plants() {
                self.rewrite(endpoint, &Canaries(epoch.key).promise(), mark, mark.expires).await?;
            }
            self.rewrite(endpoint, &markers, mark, NEVER).await?;
            // Another gateway may have been faster: the stored markers decide.
            found = self.find(endpoint, &markers).await?;
            sentinels = Sentinels::Writing(0, Vec::new());
        }
        let (Some(expires), Some(created)) = (
            found.marks.iter().map(|mark| mark.expires).min(),
            found.marks.iter().map(|mark| mark.created).min(),
        ) else {
            return Err(Unknown::Rejected);
        };
        let mark = Mark { rewritten: false, expires, created };
        let read = due(created.until(now));
        let planted = found.there.iter().copied().collect();
        let begun_here = self.begun.contains(&epoch.key);
        self.progress
            .insert(epoch.key, Progress { mark, planted, whole: false, begun_here, sentinels, read });
        self.report(epoch, "epoch_marker", 0, found.rewritten());
        epoch.adopt(expires);
        Ok(found)
    }

    async fn reconcile_sentinels(
        &mut self,
        epoch: &Arc<EpochState>,
        endpoint: usize,
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        let Some(progress) = self.progress.get_mut(&epoch.key) else { return Ok(()) };
        let (mark, canaries) = (progress.mark, Canaries(epoch.key));
        let next = match &mut progress.sentinels {
            Sentinels::Writing(done, unwritten) => {
                let until = (*done + GROUPS_A_ROUND).min(GROUPS);
                let mut keys: Vec<_> = (*done..until).flat_map(|group| canaries.sentinels(group)).collect();
                let mut later = unwritten.clone();
                keys.extend(later.drain(..later.len().min(GROUP as usize)));
                let written = self.rewrite(endpoint, &keys, mark, mark.expires).await?;
                later.extend(keys.into_iter().filter(|key| !written.stand.contains(key)));
                if until == GROUPS && later.is_empty() {
                    self.rewrite(endpoint, &canaries.complete(), mark, NEVER).await?;
                    Sentinels::Complete
                } else {
                    Sentinels::Writing(until, later)
                }
            }
            Sentinels::Elsewhere => {
                let complete = self.find(endpoint, &canaries.complete()).await?;
                let young = now.0.saturating_sub(mark.created.0) < YOUNG;
                match (complete.marks.is_empty(), complete.unclear) {
                    (false, _) => Sentinels::Complete,
                    // The gateway that began writing did not finish.
                    (true, 0) if !young => Sentinels::Writing(0, Vec::new()),
                    _ => Sentinels::Elsewhere,
                }
            }
            Sentinels::Complete => {
                self.read_group(epoch, endpoint, now).await?;
                Sentinels::Complete
            }
        };
        if let Some(progress) = self.progress.get_mut(&epoch.key) {
            progress.sentinels = next;
        }
        Ok(())
    }

    /// Reads the group of sentinels that is due, once.
    async fn read_group(
        &mut self,
        epoch: &Arc<EpochState>,
        endpoint: usize,
        now: UnixSeconds,
    ) -> Result<(), Unknown> {
        let Some(progress) = self.progress.get_mut(&epoch.key) else { return Ok(()) };
        let (mark, group) = (progress.mark, due(progress.mark.created.until(now)));
        if group.is_none() || group <= progress.read {
            return Ok(());
        }
        let keys = Canaries(epoch.key).sentinels(group.unwrap_or_default());
        let found = self.find(endpoint, &keys).await?;
        let lost = Mark { rewritten: true, ..mark };
        let gone = self.rewrite(endpoint, &found.missing, lost, mark.expires).await?.gone;
        if let Some(progress) = self.progress.get_mut(&epoch.key) {
            progress.read = group;
        }
        self.report(epoch, "sentinel", gone, found.rewritten());
        Ok(())
    }

    pub(super) async fn find(&mut self, endpoint: usize, keys: &[RecordKey]) -> Result<Found, Unknown> {
        let unanswered = self.unanswered;
        let replies = self.request(endpoint, &gets(keys)).await?;
        if self.unanswered > unanswered && is_undone(Undo::BlindWatch) {
            return Err(Unknown::TimedOut);
        }
        let mut found = Found { marks: Vec::new(), there: Vec::new(), missing: Vec::new(), unclear: 0 };
        for (key, reply) in keys.iter().zip(replies) {
            match reply {
                Reply::Hit(value) => match Mark::parse(&value) {
                    Some(mark) => {
                        found.marks.push(mark);
                        found.there.push(*key);
                    }
                    None => found.unclear += 1,
                },
                Reply::Miss => found.missing.push(*key),
                Reply::Stored | Reply::NotStored | Reply::ServerError => found.unclear += 1,
            }
        }
        self.read_in_round(keys.len(), found.unclear);
        Ok(found)
    }

    /// Writes the canaries that do not exist. A miss alone proves nothing, because a router may report one for a server
    /// that is down; `STORED` proves it.
    async fn rewrite(
        &mut self,
        endpoint: usize,
        keys: &[RecordKey],
        mark: Mark,
        expires: UnixSeconds,
    ) -> Result<Written, Unknown> {
        if keys.is_empty() {
            return Ok(Written::default());
        }
        let replies = self.request(endpoint, &adds(keys, mark, expires)).await?;
        let stands = |reply: &Reply| matches!(reply, Reply::Stored | Reply::NotStored);
        let gone = replies.iter().filter(|reply| **reply == Reply::Stored).count();
        let stand: HashSet<_> =
            keys.iter().zip(&replies).filter(|(_, reply)| stands(reply)).map(|(key, _)| *key).collect();
        self.read_in_round(0, keys.len() - stand.len()); // already counted as requested, and answered like a miss
        Ok(Written { gone, stand })
    }

    /// Records are lost when canaries were gone, or when another gateway has found them gone before.
    fn report(&self, epoch: &EpochState, kind: &str, gone: usize, rewritten: usize) {
        self.store.counters.canaries_lost(gone as u64);
        if !(gone > 0 || rewritten > 0) || !epoch.set_lost() {
            return;
        }
        if epoch.is_bound() {
            tracing::warn!(
                token_key = %epoch.key.short(), kind, gone, found_by_others = rewritten,
                "the double-spend store has lost records: a server came back empty or evicts. Tokens that a mark binds are \
                 not admitted again by it"
            );
        } else {
            tracing::error!(
                token_key = %epoch.key.short(), kind, gone, found_by_others = rewritten,
                "the double-spend store has lost records: a server came back empty or evicts. Tokens of this key that \
                 were spent may be spent again: rotate the issuer's key"
            );
        }
    }
}
