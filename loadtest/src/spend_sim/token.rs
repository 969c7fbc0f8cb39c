//! Tokens, the keys that sign them, and the tokens that attackers have seen.

use super::chance::Chance;
use super::fault::Millis;
use parking_lot::Mutex;
use postern_client::rules::CurrentChallenge;
use postern_spend::Epoch;
use postern_token::header::Challenge;
use postern_token::{
    ChallengeDigest, Mark, MarkId, Nonce, SpentKey, TokenChallenge, TokenKeyId, TokenType, UnixSeconds,
};
use std::sync::Arc;

/// Unix time at which every run begins, in seconds.
pub(crate) const EPOCH: u64 = 1_900_000_000;
/// Time between the end of a key's tokens and the end of their records, in seconds, as in the gateway.
pub(crate) const RECORD_MARGIN: u64 = 3_600;
/// Origin of the gateways.
pub(crate) const ORIGIN: &str = "proxy.example";

/// Maximum age of a challenge with a mark, in seconds, by `gateway/src/keys/offer.rs`.
const MARKED: u64 = 600;

/// A key of the issuer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPlan {
    /// Start of signing, in milliseconds of the run.
    pub(crate) from: Millis,
    /// End of the key's tokens, in seconds of the run.
    pub(crate) ends: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) number: usize,
    pub(crate) key: SpentKey,
    /// The epoch that the token was signed for.
    pub(crate) epoch: Epoch,
    pub(crate) not_after: UnixSeconds,
}

/// Returns the id of a mark in tokens of a key, from a digest of the mark: only the mark differs between challenges here.
pub(crate) fn mark_id(key: TokenKeyId, mark: Mark) -> MarkId {
    MarkId::derive(ORIGIN, key, ChallengeDigest::of(mark.as_bytes()))
}

/// A gateway's request for tokens: their key, and the mark that binds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Number of the key.
    pub(crate) key: usize,
    pub(crate) mark: Mark,
}

impl Offer {
    /// Returns the challenge as an agent reads it.
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
    /// Returns the epoch that a gateway offers under the key with this number.
    pub(crate) fn epoch(&self, number: usize) -> Epoch {
        let key = TokenKeyId([number as u8 + 1; 32]);
        Epoch { key, expires: UnixSeconds(EPOCH + self.ends + RECORD_MARGIN), mark: None }
    }

    /// Mints a token for a gateway's challenge.
    pub(crate) fn mint(&self, offer: Offer, number: usize, chance: &mut Chance) -> Token {
        let mut epoch = self.epoch(offer.key);
        epoch.mark = Some(mark_id(epoch.key, offer.mark));
        let key = SpentKey::derive(TokenType::BlindRsa2048, epoch.key, Nonce(chance.bytes()));
        Token { number, key, epoch, not_after: self.ends() }
    }

    /// Returns the time from which tokens are signed.
    pub(crate) fn begins(&self) -> UnixSeconds {
        UnixSeconds(EPOCH + self.from.div_ceil(1_000))
    }

    /// Returns the end of the key's tokens.
    pub(crate) fn ends(&self) -> UnixSeconds {
        UnixSeconds(EPOCH + self.ends)
    }
}

/// Knowledge of attackers: the tokens that were presented, and those that were admitted.
#[derive(Debug, Default)]
pub(crate) struct WireTap {
    sent: Mutex<Vec<Arc<Token>>>,
    admitted: Mutex<Vec<Arc<Token>>>,
}

impl WireTap {
    pub(crate) fn sent(&self, token: &Arc<Token>) {
        self.sent.lock().push(Arc::clone(token));
    }

    pub(crate) fn admitted(&self, token: &Arc<Token>) {
        self.admitted.lock().push(Arc::clone(token));
    }

    /// `true` if no token has been presented yet.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent.lock().is_empty()
    }

    /// Returns one of the presented tokens.
    pub(crate) fn any(&self, chance: &mut Chance) -> Option<Arc<Token>> {
        pick(&self.sent.lock(), chance)
    }

    /// Returns one of the admitted tokens.
    pub(crate) fn any_admitted(&self, chance: &mut Chance) -> Option<Arc<Token>> {
        pick(&self.admitted.lock(), chance)
    }

    pub(crate) fn count_admitted(&self) -> usize {
        self.admitted.lock().len()
    }
}

fn pick(tokens: &[Arc<Token>], chance: &mut Chance) -> Option<Arc<Token>> {
    (!tokens.is_empty()).then(|| Arc::clone(&tokens[chance.index(tokens.len())]))
}
