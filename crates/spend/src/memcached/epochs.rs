//! The epochs that this process knows: when their records expire, and which keys are known spent.

use super::cache::SpentCache;
use crate::embedded::ShortKey;
use parking_lot::RwLock;
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One epoch of the shared store.
pub(crate) struct EpochState {
    pub(crate) key: TokenKeyId,
    expires: AtomicU64,
    spent: SpentCache,
}

impl EpochState {
    /// The expiry of records that are written now.
    pub(crate) fn expires(&self) -> UnixSeconds {
        UnixSeconds(self.expires.load(Ordering::Acquire))
    }

    /// Lets records that are written from now on last at least this long.
    pub(crate) fn prolong(&self, expires: UnixSeconds) {
        if self.expires() < expires {
            self.expires.fetch_max(expires.0, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_known_spent(&self, key: &SpentKey) -> bool {
        self.spent.contains(ShortKey::of(key))
    }

    pub(crate) fn remember_spent(&self, key: &SpentKey) {
        self.spent.insert(ShortKey::of(key));
    }

    pub(crate) fn remembered(&self) -> usize {
        self.spent.len()
    }
}

/// All of them: few, so a list.
pub(crate) struct Epochs {
    list: RwLock<Vec<Arc<EpochState>>>,
    cache_bytes: usize,
}

impl Epochs {
    /// `cache_bytes` is what the keys known to be spent may take for each epoch.
    pub(crate) fn new(cache_bytes: usize) -> Self {
        Self { list: RwLock::default(), cache_bytes }
    }

    pub(crate) fn find(&self, key: TokenKeyId) -> Option<Arc<EpochState>> {
        self.list.read().iter().find(|epoch| epoch.key == key).cloned()
    }

    /// The epoch, added to the list if need be. Its records last until `expires` at least.
    pub(crate) fn enter(&self, key: TokenKeyId, expires: UnixSeconds) -> Arc<EpochState> {
        if let Some(known) = self.find(key) {
            known.prolong(expires);
            return known;
        }
        let mut list = self.list.write();
        if let Some(known) = list.iter().find(|epoch| epoch.key == key) {
            known.prolong(expires);
            return Arc::clone(known);
        }
        let (spent, end) = (SpentCache::new(self.cache_bytes), AtomicU64::new(expires.0));
        let epoch = Arc::new(EpochState { key, expires: end, spent });
        list.push(Arc::clone(&epoch));
        epoch
    }

    /// Keys known to be spent, of all epochs.
    pub(crate) fn remembered(&self) -> usize {
        self.list.read().iter().map(|epoch| epoch.remembered()).sum()
    }

    /// Forgets epochs that have expired.
    pub(crate) fn drop_expired(&self, now: UnixSeconds) -> usize {
        self.list.write().extract_if(.., |epoch| now >= epoch.expires()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::{Nonce, TokenType};

    const KEY: TokenKeyId = TokenKeyId([1; 32]);

    fn epoch() -> Arc<EpochState> {
        Epochs::new(0).enter(KEY, UnixSeconds(100))
    }

    #[test]
    fn records_are_prolonged_and_never_shortened() {
        let epoch = epoch();
        for (expires, expected) in [(100, 100), (90, 100), (120, 120), (110, 120)] {
            epoch.prolong(UnixSeconds(expires));
            assert_eq!(epoch.expires(), UnixSeconds(expected));
        }
    }

    #[test]
    fn spent_keys_are_remembered_as_far_as_there_is_memory() {
        let key = |byte| SpentKey::derive(TokenType::BlindRsa2048, KEY, Nonce([byte; 32]));
        let (epoch, forgetful) = (Epochs::new(1 << 20).enter(KEY, UnixSeconds(100)), epoch());
        for epoch in [&epoch, &forgetful] {
            [1, 2, 2].map(key).iter().for_each(|key| epoch.remember_spent(key));
        }
        assert_eq!([1, 2, 3].map(|byte| epoch.is_known_spent(&key(byte))), [true, true, false]);
        assert_eq!((epoch.remembered(), forgetful.remembered()), (2, 0));
        assert!(!forgetful.is_known_spent(&key(1)));
    }

    #[test]
    fn an_epoch_is_one_until_it_has_expired() {
        let (epochs, other) = (Epochs::new(0), TokenKeyId([2; 32]));
        let first = epochs.enter(KEY, UnixSeconds(100));
        assert!(Arc::ptr_eq(&first, &epochs.enter(KEY, UnixSeconds(90))));
        assert!(epochs.find(other).is_none());
        epochs.enter(other, UnixSeconds(100));
        epochs.enter(other, UnixSeconds(200));
        assert_eq!(epochs.drop_expired(UnixSeconds(99)), 0);
        assert_eq!(epochs.drop_expired(UnixSeconds(100)), 1, "the latest expiry counts");
        assert!(epochs.find(KEY).is_none() && epochs.find(other).is_some());
        assert_eq!((epochs.drop_expired(UnixSeconds(200)), epochs.remembered()), (1, 0));
    }
}
