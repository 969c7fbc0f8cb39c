//! The in-memory set of spent keys: 256 shards, 17 bytes per bucket.

use super::format::ShortKey;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};

const SHARDS: usize = 256;

/// A set of keys for concurrent insertion by many threads.
///
/// Keys are hashed with SipHash under a random key of this process: clients choose their nonces and can search for spent keys
/// with chosen bits, so a table indexed by those bits could be flooded into one bucket.
///
/// Tables grow by doubling, shard by shard: growing a set of four million keys blocks one shard while 16,000 keys move, not all
/// callers while four million do.
pub(crate) struct Index {
    hasher: RandomState,
    shards: Box<[Shard]>,
}

/// A shard on its own cache line, so that cores working on neighbouring shards do not contend.
#[repr(align(64))]
#[derive(Default)]
struct Shard(Mutex<HashTable<ShortKey>>);

impl Index {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// Adds a key; returns `false` if it was present.
    pub(crate) fn insert(&self, key: ShortKey) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut table = self.shard(hash).lock();
        match table.entry(hash, |other| *other == key, |other| self.hasher.hash_one(other)) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(key);
                true
            }
        }
    }

    /// Adds many keys, shard by shard. For millions of keys several times faster than one by one: a shard's table fits the
    /// processor's cache, and its lock is taken once.
    pub(crate) fn insert_all(&self, keys: impl IntoIterator<Item = ShortKey>) {
        let mut by_shard: Vec<Vec<(u64, ShortKey)>> = vec![Vec::new(); SHARDS];
        for key in keys {
            let hash = self.hasher.hash_one(key);
            by_shard[shard_of(hash)].push((hash, key));
        }
        for (shard, keys) in self.shards.iter().zip(by_shard) {
            let mut table = shard.0.lock();
            for (hash, key) in keys {
                let entry = table.entry(hash, |other| *other == key, |other| self.hasher.hash_one(other));
                entry.or_insert(key);
            }
        }
    }

    pub(crate) fn contains(&self, key: ShortKey) -> bool {
        let hash = self.hasher.hash_one(key);
        self.shard(hash).lock().find(hash, |other| *other == key).is_some()
    }

    /// Makes room for about `keys` keys in total, so that loading them moves none twice.
    pub(crate) fn reserve(&self, keys: usize) {
        for shard in &self.shards {
            shard.0.lock().reserve(keys / SHARDS, |other| self.hasher.hash_one(other));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables: usize = self.shards.iter().map(|shard| shard.0.lock().allocation_size()).sum();
        tables + SHARDS * size_of::<Shard>()
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<ShortKey>> {
        &self.shards[shard_of(hash)].0
    }
}

/// Selects the shard by bits 32 to 39: the table within takes its bucket from the low bits and its tag from the top.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_only_in_their_last_bits_spread_over_the_shards() {
        let index = Index::new();
        for low in 0..100_000_u128 {
            assert!(index.insert(ShortKey(low << 100)));
        }
        let fullest = index.shards.iter().map(|shard| shard.0.lock().len()).max().unwrap();
        assert!(fullest < 600, "about 390 a shard are expected, the fullest has {fullest}");
        assert_eq!(index.len(), 100_000);
        assert!(index.contains(ShortKey(5 << 100)) && !index.contains(ShortKey(5)));
    }
}
