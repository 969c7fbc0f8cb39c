//! Verification: with the issuer's public key for type 2 (RFC 9578, section 6.4: RSASSA-PSS, SHA-384, salt of 48 bytes), with the
//! issuer's secret for the private types 1 and 5 (section 5.4). The keys that a verifier trusts, each within a time window.

use crate::ids::UnixSeconds;
use crate::ids::{TokenKeyId, TokenType};
use crate::spki::{self, KeyError};
use crate::token::Token;
use crate::voprf::Evaluator;
use aws_lc_rs::signature::{ParsedPublicKey, RSA_PSS_2048_8192_SHA384};
use std::fmt;
use std::sync::Arc;

/// A parsed key, ready to verify tokens (crates/token/benches/README.md lists the time per token).
pub struct VerifyingKey {
    id: TokenKeyId,
    token_type: TokenType,
    public_key: Box<[u8]>,
    means: Means,
}

enum Means {
    /// Type 2.
    Rsa(ParsedPublicKey),
    /// Types 1 and 5.
    Voprf(Evaluator),
}

/// The authenticator is not valid for this token under this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token's signature does not verify under the issuer's key")]
pub struct BadSignature;

impl VerifyingKey {
    /// Parses a published key of type 2 ([`SPKI_LEN`](crate::SPKI_LEN) bytes).
    ///
    /// # Errors
    /// Anything but a type 2 key in its canonical encoding.
    pub fn from_spki(bytes: &[u8]) -> Result<Self, KeyError> {
        let rsa_public_key = spki::rsa_public_key(bytes)?;
        let parsed = ParsedPublicKey::new(&RSA_PSS_2048_8192_SHA384, rsa_public_key)
            .map_err(|_| KeyError::NotAType2Key)?;
        Ok(Self::new(TokenType::BlindRsa2048, bytes, Means::Rsa(parsed)))
    }

    /// Parses an issuer's secret of a private type: a scalar of 48 bytes for type 1, of 32 bytes for type 5.
    pub fn from_secret(token_type: TokenType, secret: &[u8]) -> Result<Self, KeyError> {
        let evaluator = Evaluator::parse(token_type, secret).ok_or(KeyError::NotASecret(token_type))?;
        Ok(Self::new(token_type, &evaluator.public_key(), Means::Voprf(evaluator)))
    }

    fn new(token_type: TokenType, public_key: &[u8], means: Means) -> Self {
        Self { id: TokenKeyId::of(public_key), token_type, public_key: public_key.into(), means }
    }

    /// Verifies the authenticator over the token's exact bytes, and that the token names this key.
    ///
    /// # Errors
    /// [`BadSignature`], without the reason.
    pub fn verify(&self, token: &Token) -> Result<(), BadSignature> {
        if token.token_type() != self.token_type || token.token_key_id() != self.id {
            return Err(BadSignature);
        }
        let (input, authenticator) = (token.signed_input(), token.authenticator());
        let is_good = match &self.means {
            Means::Rsa(parsed) => parsed.verify_sig(input, authenticator).is_ok(),
            Means::Voprf(evaluator) => evaluator.is_output(input, authenticator),
        };
        if is_good { Ok(()) } else { Err(BadSignature) }
    }
}

published_key!(VerifyingKey);

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({:?}, type {})", self.id, self.token_type.code())
    }
}

/// Time in which a key's tokens are accepted: from `not_before`, inclusive, to `not_after`, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First second in which tokens are accepted.
    pub not_before: UnixSeconds,
    /// First second in which tokens are no longer accepted.
    pub not_after: UnixSeconds,
}

impl Window {
    /// The window from 1970 to the end of time.
    pub const ALWAYS: Self = Self { not_before: UnixSeconds(0), not_after: UnixSeconds::MAX };

    pub fn contains(&self, now: UnixSeconds) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

/// A key and its window.
#[derive(Clone, Debug)]
pub struct TrustedKey {
    pub key: Arc<VerifyingKey>,
    /// Time in which its tokens are accepted.
    pub window: Window,
    /// End of the key in the issuer's directory: the first second in which no verifier accepts its tokens. `window` may end
    /// earlier at one verifier, which no longer finds the key listed, but never later.
    pub directory_not_after: UnixSeconds,
}

impl TrustedKey {
    /// Creates a key that is accepted for as long as its issuer lists it.
    pub fn new(key: Arc<VerifyingKey>, window: Window) -> Self {
        Self { key, window, directory_not_after: window.not_after }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    #[error("the token was issued under a key that this gateway does not know")]
    Unknown,
    #[error("the token was issued under a key that has been retired")]
    Retired,
    #[error("the token was issued under a key that is not in use yet")]
    NotYet,
}

/// Keys of one issuer, newest first. Lookups are linear, because a set holds only a handful of keys.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<TrustedKey>,
}

impl KeySet {
    /// Creates a set of `keys`; of keys with the same id, the first is kept.
    pub fn new(keys: impl IntoIterator<Item = TrustedKey>) -> Self {
        let mut unique: Vec<TrustedKey> = Vec::new();
        for trusted in keys {
            if unique.iter().all(|known| known.key.id() != trusted.key.id()) {
                unique.push(trusted);
            }
        }
        unique.sort_by_key(|trusted| std::cmp::Reverse(trusted.window.not_before));
        Self { keys: unique }
    }

    /// Returns the key with this id if its tokens are accepted at `now`.
    pub fn find(&self, id: TokenKeyId, now: UnixSeconds) -> Result<&TrustedKey, KeyRefusal> {
        let trusted = self.keys.iter().find(|trusted| trusted.key.id() == id).ok_or(KeyRefusal::Unknown)?;
        match trusted.window {
            window if now >= window.not_after => Err(KeyRefusal::Retired),
            window if now < window.not_before => Err(KeyRefusal::NotYet),
            _ => Ok(trusted),
        }
    }

    /// Returns the key to mint tokens with: the newest of those in use at `now`.
    pub fn newest(&self, now: UnixSeconds) -> Option<&TrustedKey> {
        self.keys.iter().find(|trusted| trusted.window.contains(now))
    }

    /// Iterates over all keys, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &TrustedKey> {
        self.keys.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
