//! Verification: with the issuer's public key for type 2 (RFC 9578, section 6.4: RSASSA-PSS, SHA-384, salt of 48 bytes), with
//! its secret for the private types 1 and 5 (section 5.4).

use crate::ids::{TokenKeyId, TokenType};
use crate::spki::{self, KeyError};
use crate::token::Token;
use crate::voprf::Evaluator;
use aws_lc_rs::signature::{ParsedPublicKey, RSA_PSS_2048_8192_SHA384};
use std::fmt;

/// A key that is read once and ready to verify (crates/token/benches/README.md has the time a token takes).
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

/// The authenticator is not this key's over this token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token's signature does not verify under the issuer's key")]
pub struct BadSignature;

impl VerifyingKey {
    /// Reads a published key of type 2 ([`spki`](crate::SPKI_LEN) bytes).
    ///
    /// # Errors
    /// Anything but a type 2 key in its one spelling.
    pub fn from_spki(bytes: &[u8]) -> Result<Self, KeyError> {
        let rsa_public_key = spki::rsa_public_key(bytes)?;
        let parsed = ParsedPublicKey::new(&RSA_PSS_2048_8192_SHA384, rsa_public_key)
            .map_err(|_| KeyError::NotAType2Key)?;
        Ok(Self::new(TokenType::BlindRsa2048, bytes, Means::Rsa(parsed)))
    }

    /// Reads the secret of a private type, as the issuer keeps it: a scalar of 48 bytes for type 1, of 32 for type 5.
    ///
    /// # Errors
    /// Not a secret of this type.
    pub fn from_secret(token_type: TokenType, secret: &[u8]) -> Result<Self, KeyError> {
        let evaluator = Evaluator::parse(token_type, secret).ok_or(KeyError::NotASecret(token_type))?;
        Ok(Self::new(token_type, &evaluator.public_key(), Means::Voprf(evaluator)))
    }

    fn new(token_type: TokenType, public_key: &[u8], means: Means) -> Self {
        Self { id: TokenKeyId::of(public_key), token_type, public_key: public_key.into(), means }
    }

    /// Checks the token's authenticator over its exact bytes, and that the token names this key.
    ///
    /// # Errors
    /// [`BadSignature`], without what differed.
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

    /// The SHA-256 of the published form.
    #[must_use]
    pub const fn id(&self) -> TokenKeyId {
        self.id
    }

    /// The kind of token it verifies.
    #[must_use]
    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// The published form, as `token-key` carries it.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({:?}, type {})", self.id, self.token_type.code())
    }
}
