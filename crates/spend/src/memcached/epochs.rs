//! The epochs known to this process: the expiry of their records, and their keys known to be spent.

use crate::embedded::{Index, ShortKey};
use parking_lot::RwLock;
use postern_token::{TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) struct EpochState {
    pub(crate) key: TokenKeyId,
    expires: AtomicU64,
    pub(crate) spent: SpentCache,
}

impl EpochState {
    /// Returns the expiry of records that are written now.
    pub(crate) fn expires(&self) -> UnixSeconds {
        UnixSeconds(self.expires.load(Ordering::Acquire))
    }

    /// Moves the expiry of later records to `expires`, if that is later.
    pub(crate) fn prolong(&self, expires: UnixSeconds) {
        if self.expires() < expires {
            self.expires.fetch_max(expires.0, Ordering::AcqRel);
        }
    }
}

/// All known epochs: few, so a list.
pub(crate) struct Epochs {
    list: RwLock<Vec<Arc<EpochState>>>,
    cache_bytes: usize,
}

impl Epochs {
    /// `cache_bytes` limits the memory for spent keys, per epoch.
    pub(crate) fn new(cache_bytes: usize) -> Self {
        Self { list: RwLock::default(), cache_bytes }
    }

    pub(crate) fn find(&self, key: TokenKeyId) -> Option<Arc<EpochState>> {
        self.list.read().iter().find(|epoch| epoch.key == key).cloned()
    }

    /// Returns the epoch, and adds it if it is new. Its records last until `expires` at least.
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

    pub(crate) fn remembered(&self) -> usize {
        self.list.read().iter().map(|epoch| epoch.spent.len()).sum()
    }

    pub(crate) fn drop_expired(&self, now: UnixSeconds) -> usize {
        self.list.write().extract_if(.., |epoch| now >= epoch.expires()).count()
    }
}

/// Memory per entry: a 16-byte key and a byte of the table, which is at least 7/16 full when it is replaced.
const BYTES_PER_KEY: usize = 40;

/// A set of keys known to be spent, in bounded memory: a replay of one is refused without a store command. A spent key never
/// becomes unspent while the epoch lives, so entries never become stale. The set keeps the latest keys in two generations, and
/// drops the older generation when the younger is full.
pub(crate) struct SpentCache {
    /// The younger generation, and the older one.
    generations: RwLock<[Index; 2]>,
    /// Keys in the younger generation, and the most that it holds.
    young: AtomicUsize,
    capacity: usize,
}

impl SpentCache {
    /// Creates a cache of at most about `bytes`; 0 keeps nothing.
    fn new(bytes: usize) -> Self {
        let generations = RwLock::new([Index::new(), Index::new()]);
        Self { generations, young: AtomicUsize::new(0), capacity: bytes / BYTES_PER_KEY / 2 }
    }

    pub(crate) fn contains(&self, key: ShortKey) -> bool {
        self.generations.read().iter().any(|generation| generation.contains(key))
    }

    pub(crate) fn insert(&self, key: ShortKey) {
        if self.capacity == 0 || !self.generations.read()[0].insert(key) {
            return;
        }
        if self.young.fetch_add(1, Ordering::Relaxed) + 1 == self.capacity {
            let mut generations = self.generations.write();
            let full = std::mem::replace(&mut generations[0], Index::new());
            let forgotten = std::mem::replace(&mut generations[1], full);
            self.young.store(0, Ordering::Relaxed);
            drop(generations);
            drop(forgotten); // outside of the lock: freeing memory is slow
        }
    }

    fn len(&self) -> usize {
        self.generations.read().iter().map(Index::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let key = |byte| ShortKey(byte);
        let (epoch, forgetful) = (Epochs::new(1 << 20).enter(KEY, UnixSeconds(100)), epoch());
        for epoch in [&epoch, &forgetful] {
            [1, 2, 2].map(key).into_iter().for_each(|key| epoch.spent.insert(key));
        }
        assert_eq!([1, 2, 3].map(|byte| epoch.spent.contains(key(byte))), [true, true, false]);
        assert_eq!((epoch.spent.len(), forgetful.spent.len()), (2, 0));
        assert!(!forgetful.spent.contains(key(1)));
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

    #[test]
    fn what_was_put_in_last_is_there_and_memory_is_bounded() {
        let cache = SpentCache::new(64 * 1024);
        let keys = 100_000_u128;
        for key in 0..keys {
            cache.insert(ShortKey(key));
            assert!(cache.contains(ShortKey(key)));
        }
        assert!(cache.len() * BYTES_PER_KEY <= 64 * 1024, "{} keys", cache.len());
        assert!((keys - 500..keys).all(|key| cache.contains(ShortKey(key))));
        assert!(!cache.contains(ShortKey(0)));
    }

    #[test]
    fn a_cache_of_no_bytes_keeps_nothing() {
        let cache = SpentCache::new(0);
        cache.insert(ShortKey(1));
        assert_eq!(cache.len(), 0);
    }
}
