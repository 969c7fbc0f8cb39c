//! Proves that all endpoints lead to the same records.

use super::{Rounds, clock};
use crate::Unknown;
use crate::memcached::probe::{Probes, Proof};
use crate::memcached::protocol::Reply;
use crate::memcached::undo::{Undo, is_undone};
use postern_token::UnixSeconds;
use std::sync::Arc;

impl Rounds {
    /// Reads the probes through every endpoint. Returns an endpoint that leads to the store, if there is one.
    pub(super) async fn prove_endpoints(&mut self, now: UnixSeconds) -> Option<usize> {
        let published = self.publish.get();
        let Some(probes) = published.filter(|probes| !probes.are_old(now)) else {
            return self.renew(now).await;
        };
        let (mut proofs, mut missing) = (Vec::new(), false);
        for endpoint in 0..self.connections.len() {
            let replies = self.read(endpoint, &probes).await;
            missing |= replies.as_ref().is_some_and(|replies| probes.are_missing(replies));
            proofs.push(replies.map_or(Proof::Unclear, |replies| probes.judge(&replies)));
        }
        let whole = proofs.iter().position(|proof| *proof == Proof::Same);
        let Some(same) = whole.or_else(|| proofs.iter().position(|proof| proof.is_some())) else {
            // A server authoritatively reported a miss, so the probes were lost, and other records may be lost too.
            return if proofs.contains(&Proof::Other) { self.renew(now).await } else { None };
        };
        self.judge(same, &proofs, now).await;
        // Some are gone everywhere: a server came back empty, and no new connection would find all of them.
        if whole.is_none() && missing && self.store.intact().is_ok() {
            return self.renew(now).await.or(Some(same));
        }
        Some(same)
    }

    /// Writes new probes through the first endpoint that takes them, and publishes them when no other endpoint
    /// contradicts.
    async fn renew(&mut self, now: UnixSeconds) -> Option<usize> {
        for writer in 0..self.connections.len() {
            let Some(probes) = self.write(writer, Probes::new(now)).await else { continue };
            let mut proofs = Vec::new();
            for endpoint in 0..self.connections.len() {
                proofs.push(self.prove(endpoint, &probes).await);
            }
            if !proofs[writer].is_some() {
                continue;
            }
            self.judge(writer, &proofs, now).await;
            if self.store.endpoints.iter().any(|endpoint| endpoint.is_foreign()) {
                return None;
            }
            // Look for losses before publishing the new probes: once published they prove connections, which could then
            // admit tokens of an epoch whose loss is not detected yet.
            if !self.reconcile_epochs(writer, now).await.usable
                || self.compare_clocks(writer, clock::AT_START).await.is_err()
            {
                return None;
            }
            let before = self.publish.get();
            let continues = match &before {
                Some(before) => self.prove(writer, before).await == Proof::Same,
                None => true,
            };
            self.publish.publish(Arc::new(probes));
            for endpoint in &self.store.endpoints {
                endpoint.forgive();
                if !continues && !is_undone(Undo::OlderProbes) {
                    endpoint.distrust();
                }
            }
            return Some(writer);
        }
        None
    }

    /// Marks endpoints that lead to other records than `same`. A second read has to confirm it, because probes may have
    /// been lost between the write and the first read.
    async fn judge(&mut self, same: usize, proofs: &[Proof], now: UnixSeconds) {
        for (index, proof) in proofs.iter().enumerate() {
            let foreign = match proof {
                Proof::Same => false,
                Proof::Partly if index == same => false,
                // Once foreign, until all probes are read: new ones might all lie in the part that is shared.
                Proof::Partly => {
                    self.store.endpoints[index].is_foreign() || self.lacks(index, same, now).await == Ok(true)
                }
                Proof::Unclear => continue,
                Proof::Other => match self.write(same, Probes::brief(now)).await {
                    Some(again) => {
                        self.prove(index, &again).await == Proof::Other
                            && self.prove(same, &again).await.is_some()
                    }
                    None => continue,
                },
            };
            let endpoint = &self.store.endpoints[index];
            if foreign && !endpoint.is_foreign() {
                tracing::error!(
                    address = %endpoint.address(), other = %self.store.endpoints[same].address(),
                    "two addresses of the double-spend store lead to different records, so each would admit a token once: \
                     every token is refused until they lead to the same records, or one of them is removed"
                );
            }
            endpoint.set_foreign(foreign);
        }
    }

    /// Whether an endpoint leads elsewhere for a part of the keys: it stores probes that `same` already holds. A miss
    /// alone proves nothing, because a router may report one for a server that is down.
    async fn lacks(&mut self, endpoint: usize, same: usize, now: UnixSeconds) -> Result<bool, Unknown> {
        let Some(probes) = self.write(same, Probes::brief(now)).await else { return Ok(false) };
        let there = self.request(same, &probes.gets()).await?;
        let here = self.request(endpoint, &probes.gets()).await?;
        let missed = probes.missed(&there, &here);
        if missed.is_empty() {
            return Ok(false);
        }
        let taken = self.request(endpoint, &missed.others()).await?;
        let Some(twice) = missed.stored(&taken) else { return Ok(false) };
        // Unless they were lost in between.
        Ok(twice.judge(&self.request(same, &twice.gets()).await?).is_some())
    }

    async fn prove(&mut self, endpoint: usize, probes: &Probes) -> Proof {
        self.read(endpoint, probes).await.map_or(Proof::Unclear, |replies| probes.judge(&replies))
    }

    async fn read(&mut self, endpoint: usize, probes: &Probes) -> Option<Vec<Reply>> {
        let replies = self.request(endpoint, &probes.gets()).await.ok()?;
        let unclear = replies.iter().filter(|reply| **reply == Reply::ServerError).count();
        self.read_in_round(replies.len(), unclear);
        Some(replies)
    }
}
