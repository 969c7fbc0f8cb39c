//! `TokenRequest` and `TokenResponse` (RFC 9578, sections 5.1, 5.2, 6.1 and 6.2): what client and issuer exchange for one
//! token.

use crate::encoding::{Reader, WireError};
use crate::ids::{TokenKeyId, TokenType};
use crate::voprf;
use std::fmt;

/// The media type of a request, without parameters.
pub const REQUEST_MEDIA_TYPE: &str = "application/private-token-request";
/// The media type of a response, without parameters (privacypass-ts refuses one with a parameter).
pub const RESPONSE_MEDIA_TYPE: &str = "application/private-token-response";
/// The length of a blinded message and of a blind signature of type 2, in bytes.
pub const BLINDED_LEN: usize = 256;
/// The length of a request of type 2, in bytes: no other type's is longer.
pub const REQUEST_LEN: usize = PREFIX_LEN + BLINDED_LEN;

/// token_type and truncated_token_key_id.
const PREFIX_LEN: usize = 2 + 1;

/// A request for one token: 52 bytes for type 1, 259 for type 2, 35 for type 5.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRequest {
    token_type: TokenType,
    /// The last byte of the id of the key that shall sign.
    pub truncated_token_key_id: u8,
    blinded_message: Box<[u8]>,
}

impl TokenRequest {
    /// A request of type 2 to `key`, for a signature on `blinded_message` (big-endian).
    #[must_use]
    pub fn new(key: TokenKeyId, blinded_message: [u8; BLINDED_LEN]) -> Self {
        Self::of(TokenType::BlindRsa2048, key, &blinded_message)
    }

    pub(crate) fn of(token_type: TokenType, key: TokenKeyId, blinded_message: &[u8]) -> Self {
        let blinded_message = blinded_message.into();
        Self { token_type, truncated_token_key_id: key.truncated(), blinded_message }
    }

    /// Reads the whole of `bytes`.
    ///
    /// # Errors
    /// Another token type than 1, 2 or 5, or a length that is not that type's; an issuer answers either with 422.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let request = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(request)
    }

    /// Reads the request that comes next, and leaves what follows it.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let offset = reader.offset();
        let token_type = TokenType::from_code(reader.u16("token_type")?);
        let Some(blinded_len) = blinded_len(token_type) else {
            return Err(not_issued(offset));
        };
        let truncated_token_key_id = reader.u8("truncated_token_key_id")?;
        let blinded_message = reader.take("blinded_msg", blinded_len)?.into();
        Ok(Self { token_type, truncated_token_key_id, blinded_message })
    }

    /// The wire form.
    #[must_use]
    pub fn serialize(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PREFIX_LEN + self.blinded_message.len());
        bytes.extend_from_slice(&self.token_type.code().to_be_bytes());
        bytes.push(self.truncated_token_key_id);
        bytes.extend_from_slice(&self.blinded_message);
        bytes
    }

    /// The kind of token that is requested.
    #[must_use]
    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// The blinded token input: a number, big-endian, for type 2, and an element of the group for types 1 and 5.
    #[must_use]
    pub fn blinded_message(&self) -> &[u8] {
        &self.blinded_message
    }
}

impl fmt::Debug for TokenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token_type, truncated_token_key_id, .. } = self;
        write!(f, "TokenRequest(type {}, key …{truncated_token_key_id:02x}, redacted)", token_type.code())
    }
}

/// The answer to one request: 145 bytes for type 1, 256 for type 2, 96 for type 5.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenResponse(Box<[u8]>);

impl TokenResponse {
    /// Reads the whole of `bytes` as an answer to a request of `token_type`.
    ///
    /// # Errors
    /// A type that is not issued, or a length that is not that type's.
    pub fn parse(token_type: TokenType, bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let response = Self::read(token_type, &mut reader)?;
        reader.finish()?;
        Ok(response)
    }

    pub(crate) fn read(token_type: TokenType, reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let (field, len) = match voprf::lengths(token_type) {
            Some(lengths) => ("evaluate_msg and evaluate_proof", lengths.element + lengths.proof),
            None if token_type == TokenType::BlindRsa2048 => ("blind_sig", BLINDED_LEN),
            None => return Err(not_issued(reader.offset())),
        };
        Ok(Self(reader.take(field, len)?.into()))
    }

    pub(crate) fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The wire form: a blind signature, or an evaluated element and its proof.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenResponse(redacted)")
    }
}

/// The length of what a request of this type has blinded; nothing for a type that is not issued.
pub(crate) const fn blinded_len(token_type: TokenType) -> Option<usize> {
    match voprf::lengths(token_type) {
        Some(lengths) => Some(lengths.element),
        None if matches!(token_type, TokenType::BlindRsa2048) => Some(BLINDED_LEN),
        None => None,
    }
}

pub(crate) fn not_issued(offset: usize) -> WireError {
    let reason = "is not 1, 2 or 5, the types that can be issued";
    WireError::Field { field: "token_type", offset, reason }
}
