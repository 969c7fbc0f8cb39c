//! Blinding and finalizing, type 2 (RFC 9578, sections 6.1 and 6.3): what the client does.

use crate::ids::{ChallengeDigest, Nonce, TokenKeyId, TokenType};
use crate::issuance::{BLINDED_LEN, TokenRequest, TokenResponse};
use crate::spki::{self, KeyError};
use crate::token::{Token, TokenInput};
use blind_rsa_signatures::reexports::rand::CryptoRng;
use blind_rsa_signatures::{
    BlindSignature, BlindingResult, DefaultRng, Deterministic, PSS, PublicKey, Sha384,
};
use std::fmt;

/// An issuer's public key as a client uses it.
#[derive(Clone)]
pub struct IssuerKey {
    id: TokenKeyId,
    spki: Box<[u8]>,
    public: PublicKey<Sha384, PSS, Deterministic>,
}

/// Why no token came of an exchange with the issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlindError {
    /// The system gave no randomness, or the key's numbers cannot be used.
    #[error("the token request could not be blinded under this issuer key")]
    Blind,
    /// The issuer's answer does not unblind to a signature of its key.
    #[error("the issuer's answer is not a signature under the key it publishes")]
    BadResponse,
}

impl IssuerKey {
    /// Reads a published key (342 bytes).
    ///
    /// # Errors
    /// Anything but a type 2 key in its one spelling.
    pub fn from_spki(bytes: &[u8]) -> Result<Self, KeyError> {
        spki::rsa_public_key(bytes)?;
        let public = PublicKey::from_spki(bytes).map_err(|_| KeyError::NotAType2Key)?;
        Ok(Self { id: TokenKeyId::of(bytes), spki: bytes.into(), public })
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

    /// Begins a token for `challenge`: a fresh nonce, blinded. Hundreds of microseconds of CPU.
    ///
    /// # Errors
    /// [`BlindError::Blind`].
    pub fn request(&self, challenge: ChallengeDigest) -> Result<(TokenRequest, PendingToken), BlindError> {
        self.request_with(&mut DefaultRng, challenge)
    }

    /// [`IssuerKey::request`] with a random source of the caller's: for known-answer tests. It draws the nonce (32
    /// bytes), the salt (48) and the blind, in this order.
    ///
    /// # Errors
    /// [`BlindError::Blind`].
    pub fn request_with<R: CryptoRng + ?Sized>(
        &self,
        rng: &mut R,
        challenge: ChallengeDigest,
    ) -> Result<(TokenRequest, PendingToken), BlindError> {
        let mut nonce = [0; 32];
        rng.fill_bytes(&mut nonce);
        let input = TokenInput::new(TokenType::BlindRsa2048, Nonce(nonce), challenge, self.id);
        let blinding = self.public.blind(rng, input.as_bytes()).map_err(|_| BlindError::Blind)?;
        let blinded: [u8; BLINDED_LEN] =
            blinding.blind_message.0.as_slice().try_into().map_err(|_| BlindError::Blind)?;
        let pending = PendingToken { key: self.clone(), input, blinding };
        Ok((TokenRequest::new(self.id, blinded), pending))
    }
}

impl fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuerKey({:?})", self.id)
    }
}

/// What the client keeps while the issuer signs: the secret that unblinds the answer.
pub struct PendingToken {
    key: IssuerKey,
    input: TokenInput,
    blinding: BlindingResult,
}

impl PendingToken {
    /// Unblinds the issuer's answer and verifies the token that comes of it. Tens of microseconds of CPU.
    ///
    /// # Errors
    /// [`BlindError::BadResponse`]: the issuer signed with another key, or not at all.
    pub fn finalize(self, response: &TokenResponse) -> Result<Token, BlindError> {
        let blind_signature = BlindSignature(response.0.to_vec());
        let signature = self
            .key
            .public
            .finalize(&blind_signature, &self.blinding, self.input.as_bytes())
            .map_err(|_| BlindError::BadResponse)?;
        Token::assemble(&self.input, &signature.0).map_err(|_| BlindError::BadResponse)
    }
}

impl fmt::Debug for PendingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingToken(redacted)")
    }
}
