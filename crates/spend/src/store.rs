//! The choice of a store at run time.

use crate::{Embedded, Epoch, Seen, Spend, SpendStore, StoreError, Unknown};
use postern_token::{SpentKey, UnixSeconds};

/// The store a configuration chose: what a gateway holds, so that nothing in it is generic over the store.
#[derive(Debug)]
pub enum Store {
    /// One process, one directory.
    Embedded(Embedded),
}

impl Store {
    /// Gives back what expired epochs hold; see [`Embedded::drop_expired`]. Blocks on the disk: call it on a blocking
    /// thread, every minute or so.
    ///
    /// # Errors
    /// When the disk refuses. The epochs stay, and refuse all the same.
    pub fn drop_expired(&self, now: UnixSeconds) -> Result<usize, StoreError> {
        match self {
            Self::Embedded(store) => store.drop_expired(now),
        }
    }
}

impl SpendStore for Store {
    async fn seen(&self, key: &SpentKey, epoch: &Epoch) -> Result<Seen, Unknown> {
        match self {
            Self::Embedded(store) => store.seen(key, epoch).await,
        }
    }

    async fn spend(&self, key: &SpentKey, epoch: &Epoch, now: UnixSeconds) -> Result<Spend, Unknown> {
        match self {
            Self::Embedded(store) => store.spend(key, epoch, now).await,
        }
    }

    async fn ready(&self) -> Result<(), Unknown> {
        match self {
            Self::Embedded(store) => store.ready().await,
        }
    }
}
