//! The epochs that this process knows: when their records expire, whether some were lost, which keys are known spent.

use super::cache::SpentCache;
use super::published::Published;
use crate::Unknown;
use crate::embedded::ShortKey;
use parking_lot::RwLock;
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// One epoch of the shared store.
pub(crate) struct EpochState {
    pub(crate) key: TokenKeyId,
    /// The expiry of the first caller, which becomes the epoch's if the store has no marker of the epoch.
    pub(crate) wanted: UnixSeconds,
    /// The expiry of its records, once the epoch markers have been read.
    expires: Published<UnixSeconds>,
    lost: AtomicBool,
    /// A mark binds its tokens, also after its key has retired.
    bound: AtomicBool,
    /// Of tokens that a mark binds: records were lost, and the witnesses beside them were not.
    parted: AtomicBool,
    spent: SpentCache,
}

impl EpochState {
    /// The expiry in the store's epoch markers.
    pub(crate) fn expires(&self) -> Option<UnixSeconds> {
        self.expires.get()
    }

    /// Sets the expiry that was read from the epoch markers.
    pub(crate) fn adopt(&self, expires: UnixSeconds) {
        self.expires.publish(expires);
    }

    /// Lets records that are written from now on last at least this long.
    pub(crate) fn prolong(&self, expires: UnixSeconds) {
        if self.expires().is_none_or(|present| present < expires) {
            self.expires.publish(expires);
        }
    }

    /// Waits until the epoch markers have been read.
    pub(crate) async fn adopted(&self, patience: Duration) -> Result<UnixSeconds, Unknown> {
        timeout(patience, self.expires.wait()).await.map_err(|_| Unknown::TimedOut)
    }

    /// Marks some of its records as lost. Returns true the first time.
    pub(crate) fn set_lost(&self) -> bool {
        !self.lost.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(crate) fn set_bound(&self) {
        if !self.is_bound() {
            self.bound.store(true, Ordering::Release);
        }
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.bound.load(Ordering::Acquire)
    }

    /// Marks some of its records as lost without their witnesses. Returns true the first time.
    pub(crate) fn set_parted(&self) -> bool {
        !self.parted.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_parted(&self) -> bool {
        self.parted.load(Ordering::Acquire)
    }

    /// Whether spent tokens may be spent again.
    pub(crate) fn may_admit_again(&self) -> bool {
        if self.is_bound() { self.is_parted() } else { self.is_lost() }
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

    /// The epoch, added to the list if need be.
    pub(crate) fn enter(&self, key: TokenKeyId, wanted: UnixSeconds) -> Arc<EpochState> {
        let mut list = self.list.write();
        if let Some(known) = list.iter().find(|epoch| epoch.key == key) {
            return Arc::clone(known);
        }
        let epoch = Arc::new(EpochState {
            key,
            wanted,
            expires: Published::default(),
            lost: AtomicBool::new(false),
            bound: AtomicBool::new(false),
            parted: AtomicBool::new(false),
            spent: SpentCache::new(self.cache_bytes),
        });
        list.push(Arc::clone(&epoch));
        epoch
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<EpochState>> {
        self.list.read().clone()
    }

    /// Forgets epochs that have expired. If one is used again, the epoch markers still hold its expiry: they never
    /// expire.
    pub(crate) fn drop_expired(&self, now: UnixSeconds) -> usize {
        let mut list = self.list.write();
        let over = |epoch: &Arc<EpochState>| now >= epoch.expires().unwrap_or(epoch.wanted);
        list.extract_if(.., |epoch| over(epoch)).count()
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
        assert_eq!(epoch.expires(), None);
        for (expires, expected) in [(100, 100), (90, 100), (100, 100), (120, 120), (110, 120)] {
            epoch.prolong(UnixSeconds(expires));
            assert_eq!(epoch.expires(), Some(UnixSeconds(expected)));
        }
    }

    #[tokio::test]
    async fn who_waits_for_the_expiry_gets_what_was_adopted() {
        let epoch = epoch();
        assert_eq!(epoch.adopted(Duration::from_millis(1)).await, Err(Unknown::TimedOut));
        epoch.adopt(UnixSeconds(200));
        assert_eq!(epoch.adopted(Duration::from_millis(1)).await, Ok(UnixSeconds(200)));
    }

    /// Of tokens that a mark binds, only a loss that spared the witnesses may admit one again.
    #[test]
    fn a_loss_is_new_once_and_matters_by_what_binds_the_tokens() {
        let epoch = epoch();
        assert!(!epoch.is_lost() && !epoch.is_parted() && !epoch.may_admit_again());
        assert!(epoch.set_lost() && !epoch.set_lost());
        assert!(epoch.is_lost() && !epoch.is_parted() && epoch.may_admit_again());
        assert!(!epoch.is_bound());
        epoch.set_bound();
        assert!(epoch.is_bound() && !epoch.may_admit_again());
        assert!(epoch.set_parted() && !epoch.set_parted());
        assert!(epoch.is_parted() && epoch.may_admit_again());
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
        assert!(
            Arc::ptr_eq(&first, &epochs.enter(KEY, UnixSeconds(300))),
            "the first caller's expiry counts"
        );
        assert!(epochs.find(other).is_none());
        epochs.enter(other, UnixSeconds(100)).adopt(UnixSeconds(200));
        assert_eq!(epochs.drop_expired(UnixSeconds(99)), 0);
        assert_eq!(epochs.drop_expired(UnixSeconds(100)), 1, "what the store holds counts, once it is known");
        assert!(epochs.find(KEY).is_none() && epochs.find(other).is_some());
        assert_eq!((epochs.drop_expired(UnixSeconds(200)), epochs.all().len()), (1, 0));
    }
}
