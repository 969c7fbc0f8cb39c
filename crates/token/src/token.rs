//! `Token` (RFC 9577, section 2.2.1), which a client presents.

use crate::encoding::{Reader, WireError};
use crate::ids::{ChallengeDigest, Nonce, SpentKey, TokenKeyId, TokenType};
use std::fmt;

/// Length of a token of type 2, the longest known type, in bytes.
pub const MAX_TOKEN_LEN: usize = PREFIX_LEN + 256;
/// Length of token_type, nonce, challenge_digest and token_key_id, which the authenticator covers.
const PREFIX_LEN: usize = 2 + 32 + 32 + 32;

/// A well-formed token. Neither its authenticator nor its challenge is verified.
///
/// ```text
/// struct {
///     uint16_t token_type;
///     uint8_t nonce[32];
///     uint8_t challenge_digest[32];
///     uint8_t token_key_id[32];
///     uint8_t authenticator[Nk];
/// } Token;
/// ```
///
/// A token lives on the stack (at most [`MAX_TOKEN_LEN`] bytes) and keeps the exact bytes that were signed.
#[derive(Clone, Copy)]
pub struct Token {
    bytes: [u8; MAX_TOKEN_LEN],
    token_type: TokenType,
    len: usize,
}

impl Token {
    /// Parses the whole of `bytes`. Does not allocate.
    ///
    /// # Errors
    /// An unknown type, or a length that is not exactly that type's.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let token_type = TokenType::from_code(reader.u16("token_type")?);
        let Some(authenticator_len) = token_type.authenticator_len() else {
            return Err(WireError::Field { field: "token_type", offset: 0, reason: "is not a known type" });
        };
        reader.take("nonce", 32)?;
        reader.take("challenge_digest", 32)?;
        reader.take("token_key_id", 32)?;
        reader.take("authenticator", authenticator_len)?;
        reader.finish()?;
        let mut token = Self { bytes: [0; MAX_TOKEN_LEN], token_type, len: bytes.len() };
        token.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(token)
    }

    /// Joins a signed input and its authenticator.
    pub fn assemble(input: &TokenInput, authenticator: &[u8]) -> Result<Self, WireError> {
        Self::parse(&[&input.0[..], authenticator].concat())
    }

    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    pub fn nonce(&self) -> Nonce {
        Nonce(self.field(2))
    }

    /// Returns the digest of the challenge that the token answers.
    pub fn challenge_digest(&self) -> ChallengeDigest {
        ChallengeDigest(self.field(34))
    }

    pub fn token_key_id(&self) -> TokenKeyId {
        TokenKeyId(self.field(66))
    }

    /// Returns the 98 bytes before the authenticator, which it covers.
    pub fn signed_input(&self) -> &[u8] {
        &self.bytes[..PREFIX_LEN]
    }

    /// Returns the signature or VOPRF output, Nk bytes.
    pub fn authenticator(&self) -> &[u8] {
        &self.bytes[PREFIX_LEN..self.len]
    }

    /// Returns the exact bytes that were parsed.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the key of the token's record in the double-spend store.
    pub fn spent_key(&self) -> SpentKey {
        SpentKey::derive(self.token_type, self.token_key_id(), self.nonce())
    }

    fn field(&self, offset: usize) -> [u8; 32] {
        let mut field = [0; 32];
        field.copy_from_slice(&self.bytes[offset..offset + 32]);
        field
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(type {}, redacted)", self.token_type.code())
    }
}

/// The 98 bytes that an issuer signs blindly (RFC 9578, section 6.1): a token without its authenticator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenInput([u8; PREFIX_LEN]);

impl TokenInput {
    pub fn new(token_type: TokenType, nonce: Nonce, challenge: ChallengeDigest, key: TokenKeyId) -> Self {
        let mut bytes = [0; PREFIX_LEN];
        bytes[..2].copy_from_slice(&token_type.code().to_be_bytes());
        bytes[2..34].copy_from_slice(&nonce.0);
        bytes[34..66].copy_from_slice(&challenge.0);
        bytes[66..].copy_from_slice(&key.0);
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; PREFIX_LEN] {
        &self.0
    }

    pub(crate) const fn token_type(&self) -> TokenType {
        TokenType::from_code(u16::from_be_bytes([self.0[0], self.0[1]]))
    }
}

redacted!(TokenInput);
