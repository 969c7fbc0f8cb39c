//! A gateway whose tokens a mark binds.

use super::{eventually, fresh};
use postern_spend::memcached::{Client, Memcached, Options};
use postern_spend::{Binding, Epoch, Marks, Spend, SpendStore, Unknown};
use postern_token::{ChallengeDigest, Mark, MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::sync::Arc;

/// A gateway with marks, and the key that it requests tokens of.
pub struct Gateway {
    pub store: Memcached,
    pub client: Client,
    pub epoch: Epoch,
}

/// A token that was not spent through [`Gateway`] yet.
pub struct Token {
    pub key: SpentKey,
    pub mark: Mark,
}

impl Gateway {
    pub async fn start(options: Options, epoch: Epoch, plants: bool) -> Self {
        let store = open(options, plants);
        store.offer(&[epoch]);
        let client = super::client(&store).await;
        Self { store, client, epoch }
    }

    pub async fn mark(&self) -> Mark {
        eventually("a mark on offer", async || match self.store.binding(self.epoch.key) {
            Binding::Offered(mark) => Some(mark),
            _ => None,
        })
        .await
    }

    /// The mark that follows this one.
    pub async fn mark_after(&self, mark: Mark) -> Mark {
        eventually("another mark on offer", async || match self.store.binding(self.epoch.key) {
            Binding::Offered(other) if other != mark => Some(other),
            _ => None,
        })
        .await
    }

    pub async fn spend(&self, token: &Token) -> Result<Spend, Unknown> {
        self.client.spend(&token.key, &self.epoch_of(token), UnixSeconds::now()).await
    }

    /// The epoch of a token, with its mark.
    pub fn epoch_of(&self, token: &Token) -> Epoch {
        Epoch { mark: Some(id(self.epoch.key, token.mark)), ..self.epoch }
    }

    pub fn token(&self, mark: Mark) -> Token {
        Token { key: fresh(&self.epoch), mark }
    }

    pub fn tokens(&self, number: usize, mark: Mark) -> Vec<Token> {
        (0..number).map(|_| self.token(mark)).collect()
    }
}

/// A store with marks.
pub fn open(options: Options, plants: bool) -> Memcached {
    let marks = Some(Marks { id: Arc::new(id), plants });
    Memcached::open(Options { marks, ..options }).unwrap()
}

/// The id of a mark, as a gateway derives it.
pub fn id(key: TokenKeyId, mark: Mark) -> MarkId {
    MarkId::derive("proxy.example", key, ChallengeDigest::of(mark.as_bytes()))
}
