//! Accounts in memory: those that requested tokens recently.
//!
//! An account has one [`Holder`] while any of its usage is not in the database, so its tokens are counted in one place. Its
//! credentials may be dropped at any time, and are dropped when the account changes. Only credentials of accounts are kept:
//! requests of strangers use no memory here.

use super::api_key::KeyDigest;
use super::configured::Allowance;
use super::records::Terms;
use crate::quota::{Meter, Pace, Quota};
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

/// Calls of [`Active::let_go`] without a request after which an account leaves memory: about one minute.
const IDLE: u32 = 30;
/// Credentials of one account in memory; the oldest is evicted. The database allows fewer, but an authorizer may assign any
/// number of keys to one account.
const MOST_CREDENTIALS: usize = 64;

/// An account in memory.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) name: Arc<str>,
    /// Identifier of the account in this process, for places where names do not belong. Never 0.
    pub(crate) number: u64,
    pub(crate) meter: Arc<Meter>,
    pub(crate) pace: Pace,
    /// Consecutive turns in the signing queue. 0 until the account has terms, which counts as 1.
    turns: AtomicU32,
    /// `true` while the account is in the ledger's queue.
    pub(crate) is_queued: AtomicBool,
    idle: AtomicU32,
}

/// Identification of an account. An API key and a public key with the same hash are distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    ApiKey(KeyDigest),
    Certificate(PublicKeyDigest),
}

/// Conditions on which a credential gets tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) enabled: bool,
    pub(crate) expires_at: Option<UnixSeconds>,
    pub(crate) key_retires_at: Option<UnixSeconds>,
    /// Expiry of the authorizer's answer; `None` if the credential is in the database.
    pub(crate) known_until: Option<Instant>,
}

/// The reason no account was found that gets tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoAccount {
    /// No API key: `Authorization: Bearer KEY` is absent, repeated or malformed.
    Missing,
    /// The API key belongs to no account.
    Unknown,
    /// The API key begins like one of this issuer's, and is malformed or fails its checksum.
    Damaged,
    /// The API key is past its retirement time.
    Retired,
    /// The account is disabled.
    Disabled,
    /// The account has expired.
    Expired,
    /// The account has the terms of a tier that is not in the configuration.
    NoTier,
    /// No API key, and the client's certificate belongs to no account.
    StrangeCertificate,
    /// The client's certificate belongs to another account than the API key.
    Contradiction,
    /// The authorizer denied the key, with its reason if it gave one.
    Denied(Option<Arc<str>>),
    /// The authorizer gave no valid answer about the key.
    Unanswered,
    /// The question was not sent to the authorizer: too many keys that it has not allowed before arrived at once.
    Crowded,
    /// The accounts cannot be read.
    Unreadable,
}

/// The result of a credential's lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) standing: Standing,
}

#[derive(Debug, Default)]
pub(crate) struct Active {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_credential: HashMap<Credential, (Arc<Holder>, Standing)>,
    by_name: HashMap<Arc<str>, Resident>,
    /// Number of changes. Data that was read before a change is not cached as current.
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

    /// Returns `true` unless the authorizer's answer has expired.
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
    /// Returns the account of a credential if it is in memory, and resets its idle time.
    pub(crate) fn get(&self, credential: &Credential) -> Option<(Arc<Holder>, Standing)> {
        let state = self.state.lock();
        let (holder, standing) = state.by_credential.get(credential)?;
        holder.idle.store(0, Ordering::Relaxed);
        Some((holder.clone(), *standing))
    }

    /// Returns the present generation, to be read before the database.
    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Caches the result of a lookup that began at `generation`; `None` if anything has changed since.
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
        state.drop_credential(&credential); // the authorizer may have moved it to this account from another one
        let name: Arc<str> = found.name.into();
        let resident = state.by_name.entry(name.clone()).or_insert_with(|| Resident::new(name));
        resident.holder.meter.set_quota(allowance.quota);
        resident.holder.pace.set(allowance.burst);
        resident.holder.turns.store(allowance.turns.get(), Ordering::Relaxed);
        resident.holder.idle.store(0, Ordering::Relaxed);
        if resident.credentials.len() >= MOST_CREDENTIALS {
            state.by_credential.remove(&resident.credentials.remove(0));
        }
        resident.credentials.push(credential);
        state.by_credential.insert(credential, (resident.holder.clone(), found.standing));
        Some(resident.holder.clone())
    }

    /// Drops a credential that no longer belongs to an account.
    pub(crate) fn forget_credential(&self, credential: &Credential) {
        self.state.lock().drop_credential(credential);
    }

    /// Drops the credentials of an account that has changed.
    pub(crate) fn forget(&self, name: &str) {
        let state = &mut *self.state.lock();
        state.generation += 1;
        if let Some(resident) = state.by_name.get_mut(name) {
            for credential in std::mem::take(&mut resident.credentials) {
                state.by_credential.remove(&credential);
            }
        }
    }

    /// Drops all credentials, when any account may have changed.
    pub(crate) fn forget_all(&self) {
        let state = &mut *self.state.lock();
        state.generation += 1;
        state.by_credential.clear();
        state.by_name.values_mut().for_each(|resident| resident.credentials.clear());
    }

    pub(crate) fn holder(&self, name: &str) -> Option<Arc<Holder>> {
        self.state.lock().by_name.get(name).map(|resident| resident.holder.clone())
    }

    pub(crate) fn holders(&self) -> Vec<Arc<Holder>> {
        self.state.lock().by_name.values().map(|resident| resident.holder.clone()).collect()
    }

    /// Evicts accounts that are idle and fully recorded. Returns the number of accounts that stay.
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

impl State {
    fn drop_credential(&mut self, credential: &Credential) {
        let Some((holder, _)) = self.by_credential.remove(credential) else { return };
        if let Some(resident) = self.by_name.get_mut(&holder.name) {
            resident.credentials.retain(|known| known != credential);
        }
    }
}

impl Resident {
    fn new(name: Arc<str>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let holder = Holder {
            name,
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            meter: Arc::new(Meter::new(Quota::new(0, ConfigDuration::secs(1)))),
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
        // A request in progress may still count tokens with it, or take back counted ones.
        let is_held =
            Arc::strong_count(&self.holder) > 1 + self.credentials.len() || Arc::strong_count(meter) > 1;
        !is_idle || is_held || !meter.is_settled()
    }
}

#[cfg(test)]
mod tests;
