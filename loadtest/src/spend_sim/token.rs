//! Tokens and the keys that sign them.

use super::chance::Chance;
use super::fault::Millis;
use postern_client::rules::CurrentChallenge;
use postern_spend::Epoch;
use postern_token::header::Challenge;
use postern_token::{
    ChallengeDigest, Mark, MarkId, Nonce, SpentKey, TokenChallenge, TokenKeyId, TokenType, UnixSeconds,
};

/// The second at which every run begins.
pub(crate) const EPOCH: u64 = 1_900_000_000;
/// Between the end of a key's tokens and that of their records, as in the gateway.
pub(crate) const RECORD_MARGIN: u64 = 3_600;
/// The name of the gateways.
pub(crate) const ORIGIN: &str = "proxy.example";

/// For how many seconds a challenge with a mark is good, by `gateway/src/keys/offer.rs`.
const MARKED: u64 = 600;

/// A key of the issuer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPlan {
    /// From when on it signs.
    pub(crate) from: Millis,
    /// After how many seconds of the run its tokens end.
    pub(crate) ends: u64,
}

/// A token, for as long as there are presentations of it.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) number: usize,
    pub(crate) key: SpentKey,
    /// What it was signed for.
    pub(crate) epoch: Epoch,
    pub(crate) not_after: UnixSeconds,
}

/// The id of a mark in tokens of a key: a digest of the challenge, as far as it differs here.
pub(crate) fn mark_id(key: TokenKeyId, mark: Mark) -> MarkId {
    MarkId::derive(ORIGIN, key, ChallengeDigest::of(mark.as_bytes()))
}

/// What a gateway asks for: tokens of a key, and what binds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The key's number.
    pub(crate) key: usize,
    pub(crate) mark: Mark,
}

impl Offer {
    /// The challenge as an agent reads it.
    pub(crate) fn challenge(&self) -> Option<CurrentChallenge> {
        let marked = self.mark.second_name(ORIGIN);
        let names = [ORIGIN, &marked];
        let challenge = TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &names).ok()?;
        let max_age = Some(MARKED);
        let token_key = Some(vec![self.key as u8 + 1; 342]);
        CurrentChallenge::new(Challenge { bytes: challenge.serialize(), token_key, max_age })
    }
}

impl KeyPlan {
    /// What a gateway offers under the key with this number.
    pub(crate) fn epoch(&self, number: usize) -> Epoch {
        let key = TokenKeyId([number as u8 + 1; 32]);
        Epoch { key, expires: UnixSeconds(EPOCH + self.ends + RECORD_MARGIN), mark: None }
    }

    /// A token for the challenge of a gateway.
    pub(crate) fn mint(&self, offer: Offer, number: usize, chance: &mut Chance) -> Token {
        let mut epoch = self.epoch(offer.key);
        epoch.mark = Some(mark_id(epoch.key, offer.mark));
        let key = SpentKey::derive(TokenType::BlindRsa2048, epoch.key, Nonce(chance.bytes()));
        Token { number, key, epoch, not_after: self.ends() }
    }

    /// When its first tokens are signed.
    pub(crate) fn begins(&self) -> UnixSeconds {
        UnixSeconds(EPOCH + self.from.div_ceil(1_000))
    }

    /// When its tokens end.
    pub(crate) fn ends(&self) -> UnixSeconds {
        UnixSeconds(EPOCH + self.ends)
    }
}
