//! Tokens and the keys that sign them.

use super::chance::Chance;
use super::deployment::{EPOCH, RECORD_MARGIN};
use super::fault::Millis;
use postern_spend::Binding;
use postern_spend::Epoch;
use postern_token::{ChallengeDigest, Mark, MarkId, Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};

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
    MarkId::derive("proxy.example", key, ChallengeDigest::of(mark.as_bytes()))
}

impl KeyPlan {
    /// What a gateway offers under the key with this number.
    pub(crate) fn epoch(&self, number: usize) -> Epoch {
        let key = TokenKeyId([number as u8 + 1; 32]);
        Epoch { key, expires: UnixSeconds(EPOCH + self.ends + RECORD_MARGIN), mark: None }
    }

    /// A token for the challenge of a gateway that offers this binding; `None` if it offers none.
    pub(crate) fn mint(
        &self,
        key_number: usize,
        number: usize,
        binding: Binding,
        chance: &mut Chance,
    ) -> Option<Token> {
        let mut epoch = self.epoch(key_number);
        epoch.mark = match binding {
            Binding::Unknown => return None,
            Binding::Unmarked => None,
            Binding::Offered(mark) => Some(mark_id(epoch.key, mark)),
        };
        let key = SpentKey::derive(TokenType::BlindRsa2048, epoch.key, Nonce(chance.bytes()));
        Some(Token { number, key, epoch, not_after: UnixSeconds(EPOCH + self.ends) })
    }
}
