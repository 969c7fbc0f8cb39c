//! The challenges that this gateway hands out, one for each token type, each with a mark of the store.

use crate::config::ChallengeConfig;
use parking_lot::RwLock;
use postern_spend::Marks;
use postern_token::header::{Challenge, Quoting};
use postern_token::{
    ChallengeDigest, ChallengeError, Mark, MarkId, TokenChallenge, TokenKeyId, TokenType, TokenTypes,
    TrustedKey, UnixSeconds,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// For how long a challenge may be kept at most. Where three replicas vote, another mark is offered while tokens
/// of the old one are still good, so no refusal tells clients of it.
const MARKED: Duration = Duration::from_secs(600);

/// The token types of keys, for the store: it knows a key by its id alone, and the id of a mark depends on the type. Holds
/// the private keys that this gateway has had since its start: whatever is not here is of type 2.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyTypes(Arc<RwLock<HashMap<TokenKeyId, TokenType>>>);

impl KeyTypes {
    /// Before the store hears of these keys.
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

/// The challenges, which change only by their mark while the gateway runs.
#[derive(Clone)]
pub(crate) struct Offer {
    issuer_name: String,
    origins: Vec<String>,
    /// The origins, joined by commas.
    names: String,
    types: TokenTypes,
    key_types: KeyTypes,
    max_age: Duration,
    quoting: Quoting,
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
            quoting: if config.bare { Quoting::Bare } else { Quoting::Quoted },
            origins,
        })
    }

    /// The types whose tokens are accepted, the preferred one first.
    pub(crate) fn types(&self) -> TokenTypes {
        self.types
    }

    /// The id of the mark in a challenge with this digest. Whether it is one of this gateway's, the store knows.
    pub(crate) fn answered(&self, key: TokenKeyId, digest: ChallengeDigest) -> MarkId {
        MarkId::derive(&self.names, key, digest)
    }

    /// The id of a mark in tokens of a key.
    pub(crate) fn mark_id(&self, key: TokenKeyId, mark: Mark) -> MarkId {
        self.answered(key, ChallengeDigest::of(&self.bytes(self.key_types.of(key), mark)))
    }

    /// How the store binds tokens.
    pub(crate) fn marks(&self) -> Marks {
        let offer = self.clone();
        Marks { id: Arc::new(move |key, mark| offer.mark_id(key, mark)) }
    }

    /// A challenge for a token of `key`, to be kept until `until` at most, as Proxy-Authenticate has it.
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
        challenge.format(self.quoting)
    }

    /// The challenge for tokens of a type. A type that is not accepted has one, too: the store may still know its keys.
    fn bytes(&self, token_type: TokenType, mark: Mark) -> Vec<u8> {
        // All of it was accepted when the offer was made, with a mark of the same length.
        challenge(token_type, &self.issuer_name, &self.origins, mark)
            .map_or_else(|_| Vec::new(), |challenge| challenge.serialize())
    }
}

/// The gateway's names, and behind them one of the mark below the first.
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
            bare: false,
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
