//! The accounts that are in memory: those that requested tokens a short while ago.
//!
//! An account has one [`Holder`] here while anything of its usage is not in the database, so there is one count of it. What is
//! known of its credentials may be forgotten at any time, and is when the account changes. Only credentials of accounts are here: nothing
//! that a stranger sends adds to it.

use super::NoAccount;
use super::api_key::KeyDigest;
use super::records::Terms;
use super::tiers::Allowance;
use crate::burst::Pace;
use crate::quota::{Meter, Quota};
use crate::share::SharesInForce;
use parking_lot::Mutex;
use postern_config::ConfigDuration;
use postern_daemon::fair_queue::Claim;
use postern_daemon::tls::PublicKeyDigest;
use postern_token::UnixSeconds;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Calls of [`Active::let_go`] without a request after which an account leaves memory: a minute's.
const IDLE: u32 = 30;
/// Credentials of one account in memory. The database has fewer; an authorizer may say of any number of keys that they are one
/// account's. The oldest leaves.
const MOST_CREDENTIALS: usize = 64;

/// One account that requests tokens.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) name: Arc<str>,
    /// Distinguishes accounts where their names do not belong. Never 0.
    pub(crate) number: u64,
    pub(crate) meter: Arc<Meter>,
    pub(crate) pace: Pace,
    /// Turns of the signing queue in a row. 0 until it has terms, which counts as 1.
    turns: AtomicU32,
    /// It waits in the ledger's queue.
    pub(crate) is_queued: AtomicBool,
    idle: AtomicU32,
}

/// By what an account is known. An API key and a public key of the same hash are different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    /// The SHA-256 of an API key.
    ApiKey(KeyDigest),
    /// The public key of a client's certificate.
    Certificate(PublicKeyDigest),
}

/// Whether a credential gets tokens at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) enabled: bool,
    pub(crate) expires_at: Option<UnixSeconds>,
    pub(crate) key_retires_at: Option<UnixSeconds>,
    /// Until when the authorizer's answer holds, if it was one.
    pub(crate) known_until: Option<Instant>,
}

/// What was found of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) standing: Standing,
}

#[derive(Debug, Default)]
pub(crate) struct Active {
    state: Mutex<State>,
    /// Which part of each quota this issuer gives.
    shares: SharesInForce,
}

#[derive(Debug, Default)]
struct State {
    by_credential: HashMap<Credential, (Arc<Holder>, Standing)>,
    by_name: HashMap<Arc<str>, Resident>,
    /// Counts the changes, so that what was read before one is not taken for the present.
    generation: u64,
}

#[derive(Debug)]
struct Resident {
    holder: Arc<Holder>,
    credentials: Vec<Credential>,
}

impl Standing {
    pub(crate) const GOOD: Self =
        Self { enabled: true, expires_at: None, key_retires_at: None, known_until: None };

    /// Whether the answer still holds.
    pub(crate) fn is_known(&self, now: Instant) -> bool {
        self.known_until.is_none_or(|end| now < end)
    }

    pub(crate) fn admit(&self, now: UnixSeconds) -> Result<(), NoAccount> {
        let is_over = |time: Option<UnixSeconds>| time.is_some_and(|time| time <= now);
        if is_over(self.key_retires_at) {
            Err(NoAccount::Retired)
        } else if !self.enabled {
            Err(NoAccount::Disabled)
        } else if is_over(self.expires_at) {
            Err(NoAccount::Expired)
        } else {
            Ok(())
        }
    }
}

impl Holder {
    pub(crate) fn claim(&self) -> Claim {
        let turns = NonZeroU32::new(self.turns.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN);
        Claim { caller: self.number, turns }
    }
}

impl Active {
    pub(crate) fn new(shares: SharesInForce) -> Self {
        Self { state: Mutex::default(), shares }
    }

    /// The account of a credential, if it is in memory.
    pub(crate) fn get(&self, credential: &Credential) -> Option<(Arc<Holder>, Standing)> {
        let state = self.state.lock();
        let (holder, standing) = state.by_credential.get(credential)?;
        holder.idle.store(0, Ordering::Relaxed);
        Some((holder.clone(), *standing))
    }

    /// To be read before the database is.
    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Takes what was found since `generation`; nothing where something has changed since.
    pub(crate) fn insert(
        &self,
        generation: u64,
        credential: Credential,
        found: Found,
        allowance: &Allowance,
    ) -> Option<Arc<Holder>> {
        let state = &mut *self.state.lock();
        if state.generation != generation {
            return None;
        }
        let name: Arc<str> = found.name.into();
        let resident = state.by_name.entry(name.clone()).or_insert_with(|| Resident::new(name, &self.shares));
        resident.holder.meter.set_quota(allowance.quota);
        resident.holder.pace.set(allowance.burst, self.shares.load().configured());
        resident.holder.turns.store(allowance.turns.get(), Ordering::Relaxed);
        resident.holder.idle.store(0, Ordering::Relaxed);
        if state.by_credential.insert(credential, (resident.holder.clone(), found.standing)).is_none() {
            if resident.credentials.len() >= MOST_CREDENTIALS {
                state.by_credential.remove(&resident.credentials.remove(0));
            }
            resident.credentials.push(credential);
        }
        Some(resident.holder.clone())
    }

    /// A credential is no longer an account's.
    pub(crate) fn forget_credential(&self, credential: &Credential) {
        let state = &mut *self.state.lock();
        let Some((holder, _)) = state.by_credential.remove(credential) else { return };
        if let Some(resident) = state.by_name.get_mut(&holder.name) {
            resident.credentials.retain(|known| known != credential);
        }
    }

    /// One account has changed.
    pub(crate) fn forget(&self, name: &str) {
        let state = &mut *self.state.lock();
        state.generation += 1;
        if let Some(resident) = state.by_name.get_mut(name) {
            for credential in std::mem::take(&mut resident.credentials) {
                state.by_credential.remove(&credential);
            }
        }
    }

    /// Any account may have changed.
    pub(crate) fn forget_all(&self) {
        let state = &mut *self.state.lock();
        state.generation += 1;
        state.by_credential.clear();
        state.by_name.values_mut().for_each(|resident| resident.credentials.clear());
    }

    /// One account, if it is in memory.
    pub(crate) fn holder(&self, name: &str) -> Option<Arc<Holder>> {
        self.state.lock().by_name.get(name).map(|resident| resident.holder.clone())
    }

    pub(crate) fn holders(&self) -> Vec<Arc<Holder>> {
        self.state.lock().by_name.values().map(|resident| resident.holder.clone()).collect()
    }

    /// Lets go of the accounts that have requested nothing for a while and are written down.
    pub(crate) fn let_go(&self) -> usize {
        let State { by_credential, by_name, .. } = &mut *self.state.lock();
        by_name.retain(|_, resident| {
            let stays = resident.is_needed();
            if !stays {
                resident.credentials.iter().for_each(|known| drop(by_credential.remove(known)));
            }
            stays
        });
        by_name.len()
    }
}

impl Resident {
    fn new(name: Arc<str>, shares: &SharesInForce) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let holder = Holder {
            name,
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            meter: Arc::new(Meter::new(Quota::new(0, ConfigDuration::secs(1)), shares.clone())),
            pace: Pace::default(),
            turns: AtomicU32::new(0),
            is_queued: AtomicBool::new(false),
            idle: AtomicU32::new(0),
        };
        Self { holder: Arc::new(holder), credentials: Vec::new() }
    }

    fn is_needed(&self) -> bool {
        let Holder { meter, idle, .. } = &*self.holder;
        let is_idle = idle.fetch_add(1, Ordering::Relaxed) >= IDLE;
        // A request under way may still count with it, or take back what it has counted.
        let is_held =
            Arc::strong_count(&self.holder) > 1 + self.credentials.len() || Arc::strong_count(meter) > 1;
        !is_idle || is_held || !meter.is_settled()
    }
}

#[cfg(test)]
mod tests;
