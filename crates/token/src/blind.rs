//! Client side of issuance: blinding and finalizing (RFC 9578, sections 5.1, 5.3, 6.1 and 6.3).

use crate::encoding::WireError;
use crate::ids::{ChallengeDigest, Nonce, TokenKeyId, TokenType};
use crate::issuance::{self, AmortizedRequest, AmortizedResponse, BLINDED_LEN, TokenRequest, TokenResponse};
use crate::spki::{self, KeyError};
use crate::token::{Token, TokenInput};
use crate::voprf::{self, Blinds, Evaluated};
use blind_rsa_signatures::reexports::rand::CryptoRng;
use blind_rsa_signatures::{
    BlindSignature, BlindingResult, DefaultRng, Deterministic, PSS, PublicKey, Sha384,
};
use std::fmt;

/// An issuer's public key, with which a client requests tokens.
#[derive(Clone)]
pub struct IssuerKey {
    id: TokenKeyId,
    token_type: TokenType,
    public_key: Box<[u8]>,
    public: Public,
}

type RsaKey = PublicKey<Sha384, PSS, Deterministic>;

#[derive(Clone)]
enum Public {
    /// Type 2.
    Rsa(Box<RsaKey>),
    /// Types 1 and 5.
    Voprf(voprf::PublicKey),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlindError {
    #[error("the token request could not be blinded under this issuer key")]
    Blind,
    #[error("the issuer's answer is not a signature under the key it publishes")]
    BadResponse,
    #[error("the issuer's answer is not the response to a batch: {0}")]
    Form(#[source] WireError),
}

#[derive(Clone, Debug)]
pub enum BatchRequest {
    /// Elements of a private type, with one proof.
    Amortized(AmortizedRequest),
    /// One request per token, of any type.
    Generic(Vec<TokenRequest>),
}

#[derive(Debug, Default)]
pub struct Batch {
    /// Verified tokens.
    pub tokens: Vec<Token>,
    /// Number of tokens that the issuer did not issue.
    pub not_issued: usize,
    /// Number of responses that do not unblind to a token of the issuer's key.
    pub bad: usize,
}

impl IssuerKey {
    /// Parses a published key; [`SigningKey::public_key`](crate::SigningKey::public_key) describes its form.
    ///
    /// # Errors
    /// Not a key of this type in its canonical encoding, or a type that is not minted.
    pub fn from_public_key(token_type: TokenType, bytes: &[u8]) -> Result<Self, KeyError> {
        let public = if token_type == TokenType::BlindRsa2048 {
            spki::rsa_public_key(bytes)?;
            Public::Rsa(Box::new(PublicKey::from_spki(bytes).map_err(|_| KeyError::NotAType2Key)?))
        } else {
            let key = voprf::PublicKey::parse(token_type, bytes);
            Public::Voprf(key.ok_or(KeyError::NotAnElement(token_type))?)
        };
        Ok(Self { id: TokenKeyId::of(bytes), token_type, public_key: bytes.into(), public })
    }

    /// Parses a published key of type 2 (342 bytes).
    ///
    /// # Errors
    /// Anything but a type 2 key in its canonical encoding.
    pub fn from_spki(bytes: &[u8]) -> Result<Self, KeyError> {
        Self::from_public_key(TokenType::BlindRsa2048, bytes)
    }

    /// Starts a token for `challenge`, with a fresh nonce. Takes hundreds of microseconds of CPU.
    pub fn request(&self, challenge: ChallengeDigest) -> Result<(TokenRequest, PendingToken), BlindError> {
        self.request_with(&mut DefaultRng, challenge)
    }

    /// Does the same as [`IssuerKey::request`] with the caller's random source, for known-answer tests of type 2. The source
    /// supplies the nonce (32 bytes), then for type 2 the salt (48 bytes) and the blind. The blinds of types 1 and 5 come from
    /// the system.
    pub fn request_with<R: CryptoRng + ?Sized>(
        &self,
        rng: &mut R,
        challenge: ChallengeDigest,
    ) -> Result<(TokenRequest, PendingToken), BlindError> {
        let input = self.input(rng, challenge);
        let (blinded, secret) = match &self.public {
            Public::Rsa(key) => {
                let blinding = key.blind(rng, input.as_bytes()).map_err(|_| BlindError::Blind)?;
                let blinded = blinding.blind_message.0.clone();
                (blinded, Unblinding::Rsa { key: key.clone(), blinding: Box::new(blinding) })
            }
            Public::Voprf(key) => {
                let (blinded, blinds) = key.blind(&[input]).ok_or(BlindError::Blind)?;
                (blinded, Unblinding::Voprf(blinds))
            }
        };
        if self.token_type == TokenType::BlindRsa2048 && blinded.len() != BLINDED_LEN {
            return Err(BlindError::Blind);
        }
        let request = TokenRequest::of(self.token_type, self.id, &blinded);
        Ok((request, PendingToken { input, secret }))
    }

    /// Starts `count` tokens for `challenge`: an amortized batch for types 1 and 5, a generic batch for type 2. Takes hundreds of
    /// microseconds of CPU per token.
    pub fn request_batch(
        &self,
        challenge: ChallengeDigest,
        count: usize,
    ) -> Result<(BatchRequest, PendingBatch), BlindError> {
        let Public::Voprf(key) = &self.public else {
            let each = (0..count).map(|_| self.request(challenge)).collect::<Result<Vec<_>, _>>()?;
            let (requests, pending) = each.into_iter().unzip();
            return Ok((BatchRequest::Generic(requests), PendingBatch(PendingKind::Generic(pending))));
        };
        let inputs: Vec<_> = (0..count).map(|_| self.input(&mut DefaultRng, challenge)).collect();
        let (elements, blinds) = key.blind(&inputs).ok_or(BlindError::Blind)?;
        let (token_type, truncated_token_key_id) = (self.token_type, self.id.truncated());
        let request = AmortizedRequest { token_type, truncated_token_key_id, elements };
        let pending = PendingKind::Amortized { token_type, inputs, blinds };
        Ok((BatchRequest::Amortized(request), PendingBatch(pending)))
    }

    fn input<R: CryptoRng + ?Sized>(&self, rng: &mut R, challenge: ChallengeDigest) -> TokenInput {
        let mut nonce = [0; 32];
        rng.fill_bytes(&mut nonce);
        TokenInput::new(self.token_type, Nonce(nonce), challenge, self.id)
    }
}

published_key!(IssuerKey);

impl fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuerKey({:?}, type {})", self.id, self.token_type.code())
    }
}

impl BatchRequest {
    pub const fn media_type(&self) -> &'static str {
        match self {
            Self::Amortized(_) => issuance::AMORTIZED_REQUEST_MEDIA_TYPE,
            Self::Generic(_) => issuance::GENERIC_REQUEST_MEDIA_TYPE,
        }
    }

    pub const fn response_media_type(&self) -> &'static str {
        match self {
            Self::Amortized(_) => issuance::AMORTIZED_RESPONSE_MEDIA_TYPE,
            Self::Generic(_) => issuance::GENERIC_RESPONSE_MEDIA_TYPE,
        }
    }

    pub fn serialize(&self) -> Vec<u8> {
        match self {
            Self::Amortized(request) => request.serialize(),
            Self::Generic(requests) => issuance::serialize_generic_request(requests),
        }
    }
}

/// Client state of an outstanding request: the secret that unblinds the response.
pub struct PendingToken {
    input: TokenInput,
    secret: Unblinding,
}

enum Unblinding {
    Rsa { key: Box<RsaKey>, blinding: Box<BlindingResult> },
    Voprf(Blinds),
}

impl PendingToken {
    /// Unblinds the issuer's response and verifies the resulting token. Takes tens of microseconds of CPU, or milliseconds for
    /// type 1.
    ///
    /// # Errors
    /// [`BlindError::BadResponse`]: the issuer used another key, or none.
    pub fn finalize(self, response: &TokenResponse) -> Result<Token, BlindError> {
        let Self { input, secret } = self;
        let authenticator = match secret {
            Unblinding::Rsa { key, blinding } => {
                let blind_signature = BlindSignature(response.as_bytes().to_vec());
                let signature = key.finalize(&blind_signature, &blinding, input.as_bytes());
                signature.map_err(|_| BlindError::BadResponse)?.0
            }
            Unblinding::Voprf(blinds) => {
                let element_len = voprf::lengths(input.token_type()).map_or(0, |lengths| lengths.element);
                let split = response.as_bytes().split_at_checked(element_len);
                let (elements, proof) = split.ok_or(BlindError::BadResponse)?;
                let evaluated = Evaluated { elements: elements.to_vec(), proof: proof.to_vec() };
                let outputs = blinds.finalize(&[input], &evaluated).ok_or(BlindError::BadResponse)?;
                outputs.into_iter().next().ok_or(BlindError::BadResponse)?
            }
        };
        Token::assemble(&input, &authenticator).map_err(|_| BlindError::BadResponse)
    }
}

redacted!(PendingToken);

/// Client state of an outstanding batch.
pub struct PendingBatch(PendingKind);

enum PendingKind {
    Amortized { token_type: TokenType, inputs: Vec<TokenInput>, blinds: Blinds },
    Generic(Vec<PendingToken>),
}

impl PendingBatch {
    /// Unblinds the issuer's response (bytes of the request's response media type) and verifies every token.
    ///
    /// # Errors
    /// [`BlindError::Form`]: the response is malformed. [`BlindError::BadResponse`]: the proof of an amortized batch is invalid,
    /// so none of its tokens is good, or a generic batch has another number of responses than of requests.
    pub fn finalize(self, response: &[u8]) -> Result<Batch, BlindError> {
        match self.0 {
            PendingKind::Amortized { token_type, inputs, blinds } => {
                let response = AmortizedResponse::parse(token_type, response).map_err(BlindError::Form)?;
                let outputs = blinds.finalize(&inputs, &response.0).ok_or(BlindError::BadResponse)?;
                let joined =
                    inputs.iter().zip(&outputs).map(|(input, output)| Token::assemble(input, output));
                let tokens = joined.collect::<Result<_, _>>().map_err(|_| BlindError::BadResponse)?;
                Ok(Batch { tokens, ..Batch::default() })
            }
            PendingKind::Generic(pending) => finalize_each(pending, response),
        }
    }
}

fn finalize_each(pending: Vec<PendingToken>, response: &[u8]) -> Result<Batch, BlindError> {
    let responses = issuance::parse_generic_response(response).map_err(BlindError::Form)?;
    if responses.len() != pending.len() {
        return Err(BlindError::BadResponse); // responses cannot be matched to requests
    }
    let mut batch = Batch::default();
    for (pending, response) in pending.into_iter().zip(responses) {
        match response {
            None => batch.not_issued += 1,
            Some((token_type, response)) if token_type == pending.input.token_type() => {
                match pending.finalize(&response) {
                    Ok(token) => batch.tokens.push(token),
                    Err(_) => batch.bad += 1,
                }
            }
            Some(_) => batch.bad += 1,
        }
    }
    Ok(batch)
}

redacted!(PendingBatch);
