//! Blind signing, type 2 (RFC 9578, section 6.2): what the issuer does.

use crate::ids::TokenKeyId;
use crate::issuance::{TokenRequest, TokenResponse};
use crate::spki;
use postern_raw_rsa::PrivateKey;
use std::fmt;

/// An issuer's key, ready to sign.
pub struct SigningKey {
    id: TokenKeyId,
    spki: Box<[u8]>,
    private: PrivateKey,
}

/// Why a key cannot sign, or a request cannot be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The private key is unusable.
    #[error("the issuer key is unusable: {0}")]
    Key(#[source] postern_raw_rsa::Error),
    /// The key's public exponent is not 65537.
    #[error("the issuer key must have the public exponent 65537")]
    Exponent,
    /// The request names another key by its truncated id.
    #[error(
        "the request is for another key (truncated token key id {asked:#04x}, this key's is {ours:#04x})"
    )]
    OtherKey {
        /// The type in the request.
        asked: u8,
        /// What this key has.
        ours: u8,
    },
    /// The blinded message is not a number from 2 to the modulus less 2.
    #[error("the blinded message is not a number from 2 to n - 2, for the key's modulus n")]
    OutOfRange,
}

impl SigningKey {
    /// Makes a new RSA-2048 key and returns its PKCS#8 form, to be kept on disk with mode 0600. Takes tens of
    /// milliseconds to a second.
    ///
    /// # Errors
    /// The system gave no randomness.
    pub fn generate_pkcs8() -> Result<Vec<u8>, SignError> {
        PrivateKey::generate_pkcs8().map_err(SignError::Key)
    }

    /// Reads a PKCS#8 key.
    ///
    /// # Errors
    /// Not a PKCS#8 RSA key of 2048 bits with exponent 65537.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, SignError> {
        let private = PrivateKey::from_pkcs8(der).map_err(SignError::Key)?;
        let spki = spki::published(private.public_key_der()).map_err(|_| SignError::Exponent)?;
        Ok(Self { id: TokenKeyId::of(&spki), spki: spki.into(), private })
    }

    /// Signs one request. Hundreds of microseconds of CPU: belongs on a bounded pool, not on an async worker.
    ///
    /// # Errors
    /// [`SignError::OtherKey`] or [`SignError::OutOfRange`]; an issuer answers either with 422.
    pub fn sign(&self, request: &TokenRequest) -> Result<TokenResponse, SignError> {
        let (asked, ours) = (request.truncated_token_key_id, self.id.truncated());
        if asked != ours {
            return Err(SignError::OtherKey { asked, ours });
        }
        self.private.apply(&request.blinded_message).map(TokenResponse).map_err(|_| SignError::OutOfRange)
    }

    /// The SHA-256 of the published form.
    #[must_use]
    pub const fn id(&self) -> TokenKeyId {
        self.id
    }

    /// The published form (342 bytes).
    #[must_use]
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({:?}, redacted)", self.id)
    }
}
