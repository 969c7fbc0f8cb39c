//! The challenge that this gateway hands out, with or without a mark of the store.

use crate::config::{Bind, ChallengeConfig};
use http::HeaderValue;
use postern_spend::Marks;
use postern_token::header::{Challenge, Quoting};
use postern_token::{
    ChallengeDigest, ChallengeError, Mark, MarkId, TokenChallenge, TokenKeyId, TokenType, TrustedKey,
    UnixSeconds,
};
use std::sync::Arc;
use std::time::Duration;

/// For how long a challenge with a mark may be kept at most. Where three replicas vote, another mark is offered while tokens
/// of the old one are still good, so no refusal tells clients of it.
const MARKED: Duration = Duration::from_secs(600);

/// The challenge, which changes only by its mark while the gateway runs.
#[derive(Clone)]
pub(crate) struct Offer {
    issuer_name: String,
    origins: Vec<String>,
    /// The origins, joined by commas.
    names: String,
    bind: Bind,
    /// The challenge without a mark, and its digest.
    bytes: Vec<u8>,
    digest: ChallengeDigest,
    max_age: Duration,
    quoting: Quoting,
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
    pub(crate) fn new(config: &ChallengeConfig) -> Result<Self, ChallengeError> {
        let origins: Vec<String> = config.origin.split(',').map(|name| name.trim().to_owned()).collect();
        let unmarked = challenge(&config.issuer_name, &origins)?;
        Ok(Self {
            issuer_name: config.issuer_name.clone(),
            names: origins.join(","),
            bind: config.bind,
            bytes: unmarked.serialize(),
            digest: unmarked.digest(),
            max_age: config.max_age.get(),
            quoting: if config.bare { Quoting::Bare } else { Quoting::Quoted },
            origins,
        })
    }

    /// What a token with this digest answers; `None` for a challenge that cannot be this gateway's.
    pub(crate) fn answered(&self, key: TokenKeyId, digest: ChallengeDigest) -> Option<Answered> {
        if digest == self.digest {
            return Some(Answered::Unmarked);
        }
        let id = || MarkId::derive(&self.names, key, digest);
        self.binds().then(|| Answered::Marked(id()))
    }

    /// The id of a mark in tokens of a key.
    pub(crate) fn mark_id(&self, key: TokenKeyId, mark: Mark) -> MarkId {
        MarkId::derive(&self.names, key, ChallengeDigest::of(&self.bytes(Some(mark))))
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

    /// The value of Proxy-Authenticate: a challenge for a token of `key`, to be kept until `until` at most.
    pub(crate) fn header(
        &self,
        key: &TrustedKey,
        mark: Option<Mark>,
        now: UnixSeconds,
        until: UnixSeconds,
    ) -> Option<HeaderValue> {
        let longest = if mark.is_some() { self.max_age.min(MARKED) } else { self.max_age };
        let max_age = longest.min(now.until(until));
        let challenge = Challenge {
            bytes: self.bytes(mark),
            token_key: Some(key.key.public_key().to_vec()),
            max_age: Some(max_age.as_secs()),
        };
        HeaderValue::from_str(&challenge.format(self.quoting)).ok()
    }

    fn bytes(&self, mark: Option<Mark>) -> Vec<u8> {
        let (Some(mark), [origin, ..]) = (mark, &*self.origins) else { return self.bytes.clone() };
        let mut origins = self.origins.clone();
        origins.push(mark.second_name(origin));
        // The names without a mark were accepted when the offer was made.
        challenge(&self.issuer_name, &origins)
            .map_or_else(|_| self.bytes.clone(), |marked| marked.serialize())
    }
}

fn challenge(issuer_name: &str, origins: &[String]) -> Result<TokenChallenge, ChallengeError> {
    let origins: Vec<&str> = origins.iter().map(String::as_str).collect();
    TokenChallenge::new(TokenType::BlindRsa2048, issuer_name, None, &origins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(origin: &str, bind: Bind) -> Result<Offer, ChallengeError> {
        Offer::new(&ChallengeConfig {
            issuer_name: "issuer.example".to_owned(),
            origin: origin.to_owned(),
            max_age: postern_config::ConfigDuration::hours(1),
            bare: false,
            bind,
        })
    }

    #[test]
    fn another_list_of_names_is_another_challenge() {
        let (one, two) =
            (offer("proxy.example", Bind::Off), offer("proxy.example, second.example", Bind::Off));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(two.answered(TokenKeyId([1; 32]), one.digest), None);
        let challenge = TokenChallenge::parse(&two.bytes).unwrap();
        assert!(challenge.names_origin("proxy.example") && challenge.names_origin("second.example"));
        assert!(offer("proxy.example,", Bind::Off).is_err());
    }

    #[test]
    fn a_token_for_a_marked_challenge_is_known_by_the_marks_id() {
        let (offer, key, mark) =
            (offer("proxy.example", Bind::Accept).unwrap(), TokenKeyId([1; 32]), Mark::new([2; 16]));
        let marked = ChallengeDigest::of(&offer.bytes(Some(mark)));
        assert_eq!(offer.answered(key, marked), Some(Answered::Marked(offer.mark_id(key, mark))));
        assert_eq!(offer.answered(key, offer.digest), Some(Answered::Unmarked));
        assert_ne!(offer.mark_id(key, mark), offer.mark_id(TokenKeyId([3; 32]), mark));
        let challenge = TokenChallenge::parse(&offer.bytes(Some(mark))).unwrap();
        assert_eq!(Mark::of_challenge(&challenge, "proxy.example"), Some(mark));
    }
}
