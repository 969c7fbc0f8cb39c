//! The cache of keys known to be spent: a replay of one is refused without a store command. A spent key never becomes
//! unspent while the epoch lives, so entries never go stale.

use crate::embedded::ShortKey;
use hashbrown::HashTable;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};

const SHARDS: usize = 16;
/// What an entry takes: a key of 16 bytes and a byte of the table, which is at least 7/16 full when it is replaced.
const BYTES_PER_KEY: usize = 40;

/// A set of spent keys that never takes more than its share of memory: it keeps the latest and forgets the others, in
/// two generations, of which the older is dropped when the younger is full.
pub(crate) struct SpentCache {
    hasher: RandomState,
    shards: Box<[Mutex<Generations>]>,
    /// Keys in one generation of one shard.
    capacity: usize,
}

#[derive(Default)]
struct Generations {
    young: HashTable<ShortKey>,
    old: HashTable<ShortKey>,
}

impl SpentCache {
    /// A cache that takes at most about `bytes`; 0 keeps nothing.
    pub(crate) fn new(bytes: usize) -> Self {
        let capacity = bytes / BYTES_PER_KEY / SHARDS / 2;
        Self { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| Mutex::default()).collect(), capacity }
    }

    pub(crate) fn contains(&self, key: ShortKey) -> bool {
        let hash = self.hasher.hash_one(key);
        let shard = self.shard(hash).lock();
        let found = |table: &HashTable<ShortKey>| table.find(hash, |other| *other == key).is_some();
        found(&shard.young) || found(&shard.old)
    }

    pub(crate) fn insert(&self, key: ShortKey) {
        if self.capacity == 0 {
            return;
        }
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        let forgotten = if shard.young.len() >= self.capacity {
            let full = std::mem::take(&mut shard.young);
            std::mem::replace(&mut shard.old, full)
        } else {
            HashTable::new()
        };
        shard.young.entry(hash, |other| *other == key, |other| self.hasher.hash_one(other)).or_insert(key);
        drop(shard);
        drop(forgotten); // outside of the lock: giving memory back takes a while
    }

    pub(crate) fn len(&self) -> usize {
        let count = |shard: &Mutex<Generations>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(count).sum()
    }

    /// The shard comes from bits that the tables within do not use.
    fn shard(&self, hash: u64) -> &Mutex<Generations> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
