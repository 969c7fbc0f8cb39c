//! The gateway's challenges, one per token type, each with a mark of the store.

use crate::config::ChallengeConfig;
use parking_lot::RwLock;
use postern_spend::Marks;
use postern_token::header::Challenge;
use postern_token::{
    ChallengeDigest, ChallengeError, Mark, MarkId, TokenChallenge, TokenKeyId, TokenType, TokenTypes,
    TrustedKey, UnixSeconds,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest time that a challenge may be kept. Where three replicas vote, a new mark is offered while tokens of the old one are
/// still accepted, so no refusal informs clients of the change.
const MARKED: Duration = Duration::from_secs(600);

/// Token types by key, for the store: it identifies a key by its id alone, and the id of a mark depends on the type. Contains the
/// private keys seen since the gateway's start; any other key is of type 2.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyTypes(Arc<RwLock<HashMap<TokenKeyId, TokenType>>>);

impl KeyTypes {
    /// Records the types of `keys`; must be called before the store receives them.
    pub(crate) fn learn<'a>(&self, keys: impl Iterator<Item = &'a TrustedKey>) {
        let private = keys.filter(|known| known.key.token_type().is_private());
        let types: Vec<_> = private.map(|known| (known.key.id(), known.key.token_type())).collect();
        if !types.is_empty() {
            self.0.write().extend(types);
        }
    }

    pub(crate) fn of(&self, key: TokenKeyId) -> TokenType {
        self.0.read().get(&key).copied().unwrap_or(TokenType::BlindRsa2048)
    }
}

/// The challenges; only their mark changes while the gateway runs.
#[derive(Clone)]
pub(crate) struct Offer {
    issuer_name: String,
    origins: Vec<String>,
    /// The origins, joined by commas.
    names: String,
    /// Accepted token types, the preferred one first.
    pub(crate) types: TokenTypes,
    key_types: KeyTypes,
    max_age: Duration,
}

impl Offer {
    pub(crate) fn new(
        config: &ChallengeConfig,
        types: TokenTypes,
        key_types: KeyTypes,
    ) -> Result<Self, ChallengeError> {
        let origins: Vec<String> = config.origin.split(',').map(|name| name.trim().to_owned()).collect();
        for token_type in types.iter() {
            challenge(token_type, &config.issuer_name, &origins, Mark::new([0; 16]))?;
        }
        Ok(Self {
            issuer_name: config.issuer_name.clone(),
            names: origins.join(","),
            types,
            key_types,
            max_age: config.max_age.get(),
            origins,
        })
    }

    /// Returns the id of the mark in a challenge with this digest. The store determines if the mark is one of this gateway's.
    pub(crate) fn answered(&self, key: TokenKeyId, digest: ChallengeDigest) -> MarkId {
        MarkId::derive(&self.names, key, digest)
    }

    pub(crate) fn mark_id(&self, key: TokenKeyId, mark: Mark) -> MarkId {
        self.answered(key, ChallengeDigest::of(&self.bytes(self.key_types.of(key), mark)))
    }

    pub(crate) fn marks(&self) -> Marks {
        let offer = self.clone();
        Marks { id: Arc::new(move |key, mark| offer.mark_id(key, mark)) }
    }

    /// Returns a challenge for a token of `key` in the syntax of Proxy-Authenticate; it may be kept until `until` at most.
    pub(crate) fn challenge(
        &self,
        key: &TrustedKey,
        mark: Mark,
        now: UnixSeconds,
        until: UnixSeconds,
    ) -> String {
        let max_age = self.max_age.min(MARKED).min(now.until(until));
        let challenge = Challenge {
            bytes: self.bytes(key.key.token_type(), mark),
            token_key: Some(key.key.public_key().to_vec()),
            max_age: Some(max_age.as_secs()),
        };
        challenge.format()
    }

    /// Serializes the challenge for tokens of a type, accepted or not: the store may still know keys of other types.
    fn bytes(&self, token_type: TokenType, mark: Mark) -> Vec<u8> {
        // `Offer::new` has accepted the same values with a mark of the same length.
        challenge(token_type, &self.issuer_name, &self.origins, mark)
            .map_or_else(|_| Vec::new(), |challenge| challenge.serialize())
    }
}

/// Builds a challenge with the gateway's names, followed by the name that carries the mark, a subdomain of the first.
fn challenge(
    token_type: TokenType,
    issuer_name: &str,
    origins: &[String],
    mark: Mark,
) -> Result<TokenChallenge, ChallengeError> {
    let of_mark = origins.first().map(|origin| mark.second_name(origin));
    let names: Vec<&str> = origins.iter().chain(&of_mark).map(String::as_str).collect();
    TokenChallenge::new(token_type, issuer_name, None, &names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSA: TokenType = TokenType::BlindRsa2048;
    const KEY: TokenKeyId = TokenKeyId([1; 32]);

    fn offer(origin: &str) -> Result<Offer, ChallengeError> {
        let config = ChallengeConfig {
            issuer_name: "issuer.example".to_owned(),
            origin: origin.to_owned(),
            max_age: postern_config::ConfigDuration::hours(1),
        };
        Offer::new(&config, TokenTypes::PUBLIC, KeyTypes::default())
    }

    #[test]
    fn another_list_of_names_is_another_challenge() {
        let (one, two) = (offer("proxy.example").unwrap(), offer("proxy.example, second.example").unwrap());
        let mark = Mark::new([2; 16]);
        assert_ne!(one.mark_id(KEY, mark), two.mark_id(KEY, mark));
        let challenge = TokenChallenge::parse(&two.bytes(RSA, mark)).unwrap();
        for name in ["proxy.example", "second.example", &mark.second_name("proxy.example")] {
            assert!(challenge.names_origin(name), "{name}");
        }
        assert!(offer("proxy.example,").is_err());
    }

    #[test]
    fn a_token_is_known_by_its_marks_id() {
        let (offer, mark) = (offer("proxy.example").unwrap(), Mark::new([2; 16]));
        let marked = ChallengeDigest::of(&offer.bytes(RSA, mark));
        assert_eq!(offer.answered(KEY, marked), offer.mark_id(KEY, mark));
        assert_ne!(offer.mark_id(KEY, mark), offer.mark_id(TokenKeyId([3; 32]), mark));
        let challenge = TokenChallenge::parse(&offer.bytes(RSA, mark)).unwrap();
        assert_eq!(Mark::of_challenge(&challenge, "proxy.example"), Some(mark));
    }
}
