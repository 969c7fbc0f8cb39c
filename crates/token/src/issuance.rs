//! `TokenRequest` and `TokenResponse` of type 2 (RFC 9578, sections 6.1 and 6.2): what client and issuer exchange.

use crate::encoding::{Reader, WireError};
use crate::ids::{TokenKeyId, TokenType};
use std::fmt;

/// The media type of a request, without parameters.
pub const REQUEST_MEDIA_TYPE: &str = "application/private-token-request";
/// The media type of a response, without parameters (privacypass-ts refuses one with a parameter).
pub const RESPONSE_MEDIA_TYPE: &str = "application/private-token-response";
/// The length of a blinded message and of a blind signature, in bytes.
pub const BLINDED_LEN: usize = 256;
/// The length of a request of type 2, in bytes.
pub const REQUEST_LEN: usize = 2 + 1 + BLINDED_LEN;

/// A request for one blind signature: 259 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The last byte of the id of the key that shall sign.
    pub truncated_token_key_id: u8,
    /// The blinded token input, big-endian.
    pub blinded_message: [u8; BLINDED_LEN],
}

impl TokenRequest {
    /// A request to `key` for a signature on `blinded_message`.
    #[must_use]
    pub const fn new(key: TokenKeyId, blinded_message: [u8; BLINDED_LEN]) -> Self {
        Self { truncated_token_key_id: key.truncated(), blinded_message }
    }

    /// Reads the whole of `bytes`.
    ///
    /// # Errors
    /// Another token type than 2, or a length other than [`REQUEST_LEN`]; an issuer answers either with 422.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        if TokenType::from_code(reader.u16("token_type")?) != TokenType::BlindRsa2048 {
            let reason = "is not 2, the only type issued here";
            return Err(WireError::Field { field: "token_type", offset: 0, reason });
        }
        let truncated_token_key_id = reader.u8("truncated_token_key_id")?;
        let blinded_message = reader.array("blinded_msg")?;
        reader.finish()?;
        Ok(Self { truncated_token_key_id, blinded_message })
    }

    /// The wire form.
    #[must_use]
    pub fn serialize(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..2].copy_from_slice(&TokenType::BlindRsa2048.code().to_be_bytes());
        bytes[2] = self.truncated_token_key_id;
        bytes[3..].copy_from_slice(&self.blinded_message);
        bytes
    }
}

impl fmt::Debug for TokenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenRequest(key …{:02x}, redacted)", self.truncated_token_key_id)
    }
}

/// A blind signature: 256 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenResponse(pub [u8; BLINDED_LEN]);

impl TokenResponse {
    /// Reads the whole of `bytes`.
    ///
    /// # Errors
    /// A length other than [`BLINDED_LEN`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let signature = reader.array("blind_sig")?;
        reader.finish()?;
        Ok(Self(signature))
    }
}

impl fmt::Debug for TokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenResponse(redacted)")
    }
}
