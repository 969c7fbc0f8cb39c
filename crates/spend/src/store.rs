//! The store selected at run time.

use crate::memcached::{Client, Memcached};
use crate::{Embedded, Epoch, ExchangeLog, Hint, Spend, SpendStore, StoreError, Unknown};
use postern_token::{Mark, SpentKey, TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::time::Instant;

/// The configured store, opened once per process.
pub enum Backend {
    Embedded(Arc<Embedded>),
    Memcached(Memcached),
}

impl Backend {
    /// Returns a store for the current runtime. A shared store opens its connections from that runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn store(&self) -> Store {
        match self {
            Self::Embedded(store) => Store::Embedded(Arc::clone(store)),
            Self::Memcached(memcached) => Store::Memcached(memcached.client()),
        }
    }

    /// Returns `Ok` if a spend could be answered now.
    pub fn ready(&self) -> Result<(), Unknown> {
        match self {
            Self::Embedded(store) => store.serving(),
            Self::Memcached(memcached) => memcached.health().ready,
        }
    }

    /// Returns `true` if the store has retired the epoch of a key, and so refuses all of its tokens, whatever the key directory
    /// lists.
    #[must_use]
    pub fn has_retired(&self, key: TokenKeyId, now: UnixSeconds) -> bool {
        match self {
            Self::Embedded(store) => store.has_retired(key),
            Self::Memcached(memcached) => memcached.has_retired(key, now),
        }
    }

    /// Requests tokens for the keys of these epochs, so that the store can bind them. Blocks on the disk if the store is
    /// embedded.
    pub fn offer(&self, epochs: &[Epoch]) {
        match self {
            Self::Embedded(store) => store.offer(epochs),
            Self::Memcached(memcached) => memcached.offer(epochs),
        }
    }

    /// Returns the mark that binds the tokens of a key. `None` if no token can be requested: the store has not been read, the first
    /// mark is being planted, or every token of the mark is void.
    #[must_use]
    pub fn binding(&self, key: TokenKeyId) -> Option<Mark> {
        match self {
            Self::Embedded(store) => store.binding(key),
            Self::Memcached(memcached) => memcached.binding(key),
        }
    }

    /// Frees the resources of expired epochs; see [`Embedded::drop_expired`]. Blocks on the disk: call it on a blocking thread,
    /// about once a minute.
    ///
    /// # Errors
    /// The disk failed. The epochs stay, and still refuse.
    pub fn drop_expired(&self, now: UnixSeconds, monotonic: Instant) -> Result<usize, StoreError> {
        match self {
            Self::Embedded(store) => store.drop_expired(now, monotonic),
            Self::Memcached(memcached) => Ok(memcached.drop_expired(now)),
        }
    }
}

/// The store as one runtime uses it. The gateway uses this enum instead of being generic over the store. Clones share the store.
#[derive(Clone)]
pub enum Store {
    Embedded(Arc<Embedded>),
    Memcached(Client),
}

impl SpendStore for Store {
    async fn check_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        log: &mut ExchangeLog,
    ) -> Result<Hint, Unknown> {
        match self {
            Self::Embedded(store) => store.check_with(key, epoch, log).await,
            Self::Memcached(client) => client.check_with(key, epoch, log).await,
        }
    }

    async fn spend_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        match self {
            Self::Embedded(store) => store.spend_with(key, epoch, now, log).await,
            Self::Memcached(client) => client.spend_with(key, epoch, now, log).await,
        }
    }

    fn serving(&self) -> Result<(), Unknown> {
        match self {
            Self::Embedded(store) => store.serving(),
            Self::Memcached(client) => client.serving(),
        }
    }
}
