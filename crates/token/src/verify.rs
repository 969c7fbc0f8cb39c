//! Verification of type 2 tokens (RFC 9578, section 6.4): RSASSA-PSS, SHA-384, salt of 48 bytes.

use crate::ids::{TokenKeyId, TokenType};
use crate::spki::{self, KeyError};
use crate::token::Token;
use aws_lc_rs::signature::{ParsedPublicKey, RSA_PSS_2048_8192_SHA384};
use std::fmt;

/// An issuer's public key, parsed once and ready to verify (crates/token/benches/README.md has the time a token takes).
pub struct VerifyingKey {
    id: TokenKeyId,
    spki: Box<[u8]>,
    parsed: ParsedPublicKey,
}

/// The signature is not this key's over this token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token's signature does not verify under the issuer's key")]
pub struct BadSignature;

impl VerifyingKey {
    /// Reads a published key ([`spki`](crate::SPKI_LEN) bytes).
    ///
    /// # Errors
    /// Anything but a type 2 key in its one spelling.
    pub fn from_spki(bytes: &[u8]) -> Result<Self, KeyError> {
        let rsa_public_key = spki::rsa_public_key(bytes)?;
        let parsed = ParsedPublicKey::new(&RSA_PSS_2048_8192_SHA384, rsa_public_key)
            .map_err(|_| KeyError::NotAType2Key)?;
        Ok(Self { id: TokenKeyId::of(bytes), spki: bytes.into(), parsed })
    }

    /// Checks the token's signature over its exact bytes, and that the token names this key.
    ///
    /// # Errors
    /// [`BadSignature`], without what differed.
    pub fn verify(&self, token: &Token) -> Result<(), BadSignature> {
        if token.token_type() != TokenType::BlindRsa2048 || token.token_key_id() != self.id {
            return Err(BadSignature);
        }
        self.parsed.verify_sig(token.signed_input(), token.authenticator()).map_err(|_| BadSignature)
    }

    /// The SHA-256 of the published form.
    #[must_use]
    pub const fn id(&self) -> TokenKeyId {
        self.id
    }

    /// The published form, as `token-key` carries it.
    #[must_use]
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({:?})", self.id)
    }
}
