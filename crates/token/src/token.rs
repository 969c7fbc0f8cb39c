//! `Token` (RFC 9577, section 2.2.1): what a client presents.

use crate::encoding::{Reader, WireError};
use crate::ids::{ChallengeDigest, Nonce, SpentKey, TokenKeyId, TokenType};
use std::fmt;

/// The length of a token of type 2 in bytes; no known type is longer.
pub const MAX_TOKEN_LEN: usize = PREFIX_LEN + 256;
/// token_type, nonce, challenge_digest and token_key_id: what the authenticator signs.
const PREFIX_LEN: usize = 2 + 32 + 32 + 32;

/// A token, well-formed and nothing more: neither its signature nor its challenge has been looked at.
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
/// It lives on the stack (at most [`MAX_TOKEN_LEN`] bytes) and keeps the exact bytes that were signed.
#[derive(Clone, Copy)]
pub struct Token {
    bytes: [u8; MAX_TOKEN_LEN],
    token_type: TokenType,
    len: usize,
}

impl Token {
    /// Reads the whole of `bytes`. No allocation.
    ///
    /// # Errors
    /// A type this crate does not know, or a length that is not exactly that type's.
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

    /// Joins what was signed and its signature.
    ///
    /// # Errors
    /// The authenticator has not the length of the input's type.
    pub fn assemble(input: &TokenInput, authenticator: &[u8]) -> Result<Self, WireError> {
        let mut bytes = Vec::with_capacity(MAX_TOKEN_LEN);
        bytes.extend_from_slice(&input.0);
        bytes.extend_from_slice(authenticator);
        Self::parse(&bytes)
    }

    /// The kind of token.
    #[must_use]
    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// The client's random bytes.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        Nonce(self.field(2))
    }

    /// Which challenge the token answers.
    #[must_use]
    pub fn challenge_digest(&self) -> ChallengeDigest {
        ChallengeDigest(self.field(34))
    }

    /// Which key signed it.
    #[must_use]
    pub fn token_key_id(&self) -> TokenKeyId {
        TokenKeyId(self.field(66))
    }

    /// The bytes the authenticator is over: all before it (98).
    #[must_use]
    pub fn signed_input(&self) -> &[u8] {
        &self.bytes[..PREFIX_LEN]
    }

    /// The signature or VOPRF output, Nk bytes.
    #[must_use]
    pub fn authenticator(&self) -> &[u8] {
        &self.bytes[PREFIX_LEN..self.len]
    }

    /// The exact bytes that were parsed.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The key under which the double-spend store remembers this token.
    #[must_use]
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

/// The 98 bytes a client has signed blind (RFC 9578, section 6.1): a token without its authenticator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenInput([u8; PREFIX_LEN]);

impl TokenInput {
    /// Joins the fields.
    #[must_use]
    pub fn new(token_type: TokenType, nonce: Nonce, challenge: ChallengeDigest, key: TokenKeyId) -> Self {
        let mut bytes = [0; PREFIX_LEN];
        bytes[..2].copy_from_slice(&token_type.code().to_be_bytes());
        bytes[2..34].copy_from_slice(&nonce.0);
        bytes[34..66].copy_from_slice(&challenge.0);
        bytes[66..].copy_from_slice(&key.0);
        Self(bytes)
    }

    /// The wire form.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; PREFIX_LEN] {
        &self.0
    }
}

impl fmt::Debug for TokenInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenInput(redacted)")
    }
}
