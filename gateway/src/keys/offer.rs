//! The challenges that this gateway hands out, one for each token type, with or without a mark of the store.

use crate::config::{Bind, ChallengeConfig};
use crate::keys::key_types::KeyTypes;
use postern_spend::Marks;
use postern_token::header::{Challenge, Quoting};
use postern_token::{
    ChallengeDigest, ChallengeError, Mark, MarkId, TokenChallenge, TokenKeyId, TokenType, TokenTypes,
    TrustedKey, UnixSeconds,
};
use std::sync::Arc;
use std::time::Duration;

/// For how long a challenge with a mark may be kept at most. Where three replicas vote, another mark is offered while tokens
/// of the old one are still good, so no refusal tells clients of it.
const MARKED: Duration = Duration::from_secs(600);

/// The challenges, which change only by their mark while the gateway runs.
#[derive(Clone)]
pub(crate) struct Offer {
    issuer_name: String,
    origins: Vec<String>,
    /// The origins, joined by commas.
    names: String,
    bind: Bind,
    types: TokenTypes,
    /// Without a mark, in the order of `types`.
    unmarked: Vec<Unmarked>,
    key_types: KeyTypes,
    max_age: Duration,
    quoting: Quoting,
}

/// The challenge for tokens of one type, and its digest.
#[derive(Clone)]
struct Unmarked {
    token_type: TokenType,
    bytes: Vec<u8>,
    digest: ChallengeDigest,
}

/// What a token's challenge digest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// It answers this gateway's challenge without a mark.
    Unmarked,
    /// It answers another challenge: this gateway's with a mark, if the store knows the mark by this id.
    Marked(MarkId),
}

impl Offer {
    pub(crate) fn new(
        config: &ChallengeConfig,
        types: TokenTypes,
        key_types: KeyTypes,
    ) -> Result<Self, ChallengeError> {
        let origins: Vec<String> = config.origin.split(',').map(|name| name.trim().to_owned()).collect();
        let unmarked = |token_type| {
            let challenge = challenge(token_type, &config.issuer_name, &origins)?;
            Ok(Unmarked { token_type, bytes: challenge.serialize(), digest: challenge.digest() })
        };
        Ok(Self {
            issuer_name: config.issuer_name.clone(),
            names: origins.join(","),
            bind: config.bind,
            types,
            unmarked: types.iter().map(unmarked).collect::<Result<_, _>>()?,
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

    /// What a token of an accepted type with this digest answers; `None` for a challenge that cannot be this gateway's.
    pub(crate) fn answered(
        &self,
        token_type: TokenType,
        key: TokenKeyId,
        digest: ChallengeDigest,
    ) -> Option<Answered> {
        if self.unmarked(token_type)?.digest == digest {
            return Some(Answered::Unmarked);
        }
        let id = || MarkId::derive(&self.names, key, digest);
        self.binds().then(|| Answered::Marked(id()))
    }

    /// The id of a mark in tokens of a key.
    pub(crate) fn mark_id(&self, key: TokenKeyId, mark: Mark) -> MarkId {
        let bytes = self.bytes(self.key_types.of(key), Some(mark));
        MarkId::derive(&self.names, key, ChallengeDigest::of(&bytes))
    }

    fn unmarked(&self, token_type: TokenType) -> Option<&Unmarked> {
        self.unmarked.iter().find(|unmarked| unmarked.token_type == token_type)
    }

    /// Whether marks of the store bind tokens.
    pub(crate) fn binds(&self) -> bool {
        self.bind != Bind::Off
    }

    /// How the store binds tokens, if it does.
    pub(crate) fn marks(&self) -> Option<Marks> {
        let offer = self.clone();
        let id = Arc::new(move |key, mark| offer.mark_id(key, mark));
        self.binds().then(|| Marks { id, plants: self.bind == Bind::Offer })
    }

    /// A challenge for a token of `key`, to be kept until `until` at most, as Proxy-Authenticate has it.
    pub(crate) fn challenge(
        &self,
        key: &TrustedKey,
        mark: Option<Mark>,
        now: UnixSeconds,
        until: UnixSeconds,
    ) -> String {
        let longest = if mark.is_some() { self.max_age.min(MARKED) } else { self.max_age };
        let max_age = longest.min(now.until(until));
        let challenge = Challenge {
            bytes: self.bytes(key.key.token_type(), mark),
            token_key: Some(key.key.public_key().to_vec()),
            max_age: Some(max_age.as_secs()),
        };
        challenge.format(self.quoting)
    }

    /// The challenge for tokens of a type. A type that is not accepted has one, too: the store may still know its keys.
    fn bytes(&self, token_type: TokenType, mark: Option<Mark>) -> Vec<u8> {
        let mut origins = self.origins.clone();
        if let (Some(mark), [origin, ..]) = (mark, &*self.origins) {
            origins.push(mark.second_name(origin));
        }
        // The names without a mark were accepted when the offer was made.
        challenge(token_type, &self.issuer_name, &origins)
            .map_or_else(|_| self.unmarked[0].bytes.clone(), |challenge| challenge.serialize())
    }
}

fn challenge(
    token_type: TokenType,
    issuer_name: &str,
    origins: &[String],
) -> Result<TokenChallenge, ChallengeError> {
    let origins: Vec<&str> = origins.iter().map(String::as_str).collect();
    TokenChallenge::new(token_type, issuer_name, None, &origins)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSA: TokenType = TokenType::BlindRsa2048;

    fn offer(origin: &str, bind: Bind) -> Result<Offer, ChallengeError> {
        let config = ChallengeConfig {
            issuer_name: "issuer.example".to_owned(),
            origin: origin.to_owned(),
            max_age: postern_config::ConfigDuration::hours(1),
            bare: false,
            bind,
        };
        Offer::new(&config, TokenTypes::PUBLIC, KeyTypes::default())
    }

    #[test]
    fn another_list_of_names_is_another_challenge() {
        let (one, two) =
            (offer("proxy.example", Bind::Off), offer("proxy.example, second.example", Bind::Off));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(two.answered(RSA, TokenKeyId([1; 32]), one.unmarked[0].digest), None);
        let challenge = TokenChallenge::parse(&two.bytes(RSA, None)).unwrap();
        assert!(challenge.names_origin("proxy.example") && challenge.names_origin("second.example"));
        assert!(offer("proxy.example,", Bind::Off).is_err());
    }

    #[test]
    fn a_token_for_a_marked_challenge_is_known_by_the_marks_id() {
        let (offer, key, mark) =
            (offer("proxy.example", Bind::Accept).unwrap(), TokenKeyId([1; 32]), Mark::new([2; 16]));
        let marked = ChallengeDigest::of(&offer.bytes(RSA, Some(mark)));
        assert_eq!(offer.answered(RSA, key, marked), Some(Answered::Marked(offer.mark_id(key, mark))));
        assert_eq!(offer.answered(RSA, key, offer.unmarked[0].digest), Some(Answered::Unmarked));
        assert_ne!(offer.mark_id(key, mark), offer.mark_id(TokenKeyId([3; 32]), mark));
        let challenge = TokenChallenge::parse(&offer.bytes(RSA, Some(mark))).unwrap();
        assert_eq!(Mark::of_challenge(&challenge, "proxy.example"), Some(mark));
    }
}
