//! The choice of a store at run time.

use crate::memcached::{Client, Memcached};
use crate::{Binding, Embedded, Epoch, ExchangeLog, Hint, Spend, SpendStore, StoreError, Unknown};
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::time::Instant;

/// What a configuration chose, opened once a process.
#[derive(Debug)]
pub enum Backend {
    /// One process, one directory.
    Embedded(Arc<Embedded>),
    /// A fleet that shares memcached servers.
    Memcached(Memcached),
}

impl Backend {
    /// The store for the present runtime, which a shared store connects from.
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

    /// Whether a spend could be answered now.
    ///
    /// # Errors
    /// Why not.
    pub async fn ready(&self) -> Result<(), Unknown> {
        match self {
            Self::Embedded(store) => store.serving(),
            Self::Memcached(memcached) => memcached.health().ready,
        }
    }

    /// Why every token of a key is refused now, if it is: the store has retired the epoch, whatever the key directory lists.
    #[must_use]
    pub fn refuses(&self, key: TokenKeyId, now: UnixSeconds) -> Option<Unknown> {
        match self {
            Self::Embedded(store) => store.has_retired(key).then_some(Unknown::EpochRetired),
            Self::Memcached(memcached) => memcached.refuses(key, now),
        }
    }

    /// Requests tokens of these epochs' keys, so that the store can bind them. Blocks on the disk where the store is embedded.
    pub fn offer(&self, epochs: &[Epoch]) {
        match self {
            Self::Embedded(store) => store.offer(epochs),
            Self::Memcached(memcached) => memcached.offer(epochs),
        }
    }

    /// What binds the tokens of a key.
    #[must_use]
    pub fn binding(&self, key: TokenKeyId) -> Binding {
        match self {
            Self::Embedded(store) => store.binding(key),
            Self::Memcached(memcached) => memcached.binding(key),
        }
    }

    /// Gives back what expired epochs hold; see [`Embedded::drop_expired`]. Blocks on the disk: call it on a blocking
    /// thread, every minute or so.
    ///
    /// # Errors
    /// When the disk refuses. The epochs stay, and refuse all the same.
    pub fn drop_expired(&self, now: UnixSeconds, monotonic: Instant) -> Result<usize, StoreError> {
        match self {
            Self::Embedded(store) => store.drop_expired(now, monotonic),
            Self::Memcached(memcached) => Ok(memcached.drop_expired(now)),
        }
    }
}

/// The store in the hands of one runtime: nothing in a gateway is generic over it. Clones share it.
#[derive(Clone)]
pub enum Store {
    /// One process, one directory.
    Embedded(Arc<Embedded>),
    /// A fleet that shares memcached servers.
    Memcached(Client),
}

impl Store {
    /// Whether a verdict can be expected now, as far as this process knows. Costs a few atomic loads, so callers may
    /// use it on each request. A caller that is refused here need not read the token, so the client does not lose it.
    ///
    /// # Errors
    /// Why not.
    pub fn serving(&self) -> Result<(), Unknown> {
        match self {
            Self::Embedded(store) => store.serving(),
            Self::Memcached(client) => client.serving(),
        }
    }
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

    async fn ready(&self) -> Result<(), Unknown> {
        match self {
            Self::Embedded(store) => store.ready().await,
            Self::Memcached(client) => client.ready().await,
        }
    }
}
