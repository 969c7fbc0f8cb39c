//! The issuer's directory (RFC 9578, section 4): its request URI and its keys.

use crate::encoding::{Base64Error, decode_base64url_vec, encode_base64url};
use crate::ids::UnixSeconds;
use crate::ids::{TokenKeyId, TokenType};
use serde::{Deserialize, Serialize};

pub const DIRECTORY_PATH: &str = "/.well-known/private-token-issuer-directory";
pub const DIRECTORY_MEDIA_TYPE: &str = "application/private-token-issuer-directory";

/// An issuer's directory. Unknown fields are ignored, as RFC 9578 requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Directory {
    /// URI to which requests are POSTed: absolute, or relative to the directory's own URL.
    pub issuer_request_uri: String,
    /// Keys, in the issuer's order of preference.
    pub token_keys: Vec<DirectoryKey>,
    /// Maximum number of tokens in a batch. Not in the draft: Postern's issuer adds it so that clients need not guess, and other
    /// implementations ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_limit: Option<u32>,
    /// Ids, in hex, of keys whose tokens are void from now on, listed until the keys would have ended anyway. Not in RFC 9578:
    /// Postern's issuer adds it in an emergency, and other implementations ignore it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectoryKey {
    /// Code point of the token type that the key issues.
    pub token_type: u16,
    pub token_key: String,
    /// Start of the key's use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixSeconds>,
    /// Time from which the key's tokens are no longer accepted. Not in RFC 9578: Postern's issuer adds it so that gateways know
    /// for how long to keep spent records, and other implementations ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<UnixSeconds>,
}

#[derive(Debug, thiserror::Error)]
#[error("not an issuer directory (RFC 9578, section 4): {0}")]
pub struct DirectoryError(#[from] serde_json::Error);

impl Directory {
    /// Parses a directory.
    ///
    /// # Errors
    /// Not JSON, or a required field that is missing or has another type; the error contains line and column.
    pub fn parse(json: &[u8]) -> Result<Self, DirectoryError> {
        Ok(serde_json::from_slice(json)?)
    }

    /// Serializes the directory as JSON. Equal directories yield equal bytes, so that their hash can be an ETag.
    pub fn serialize(&self) -> Vec<u8> {
        // JSON can represent all strings, numbers and lists.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns `true` if the tokens of a key are void, regardless of the key's times.
    pub fn revokes(&self, id: TokenKeyId) -> bool {
        !self.revoked.is_empty() && self.revoked.contains(&id.to_hex())
    }

    /// Returns the keys of `token_type`, in the issuer's order.
    pub fn keys_for(&self, token_type: TokenType) -> impl Iterator<Item = &DirectoryKey> {
        self.token_keys.iter().filter(move |key| key.token_type == token_type.code())
    }

    /// Returns the key to use: the first of `token_type` whose not-before is absent or past (RFC 9578, section 4), and whose
    /// not-after is absent or not reached.
    pub fn preferred(&self, token_type: TokenType, now: UnixSeconds) -> Option<&DirectoryKey> {
        self.keys_for(token_type).find(|key| {
            key.not_before.is_none_or(|not_before| not_before <= now)
                && key.not_after.is_none_or(|not_after| now < not_after)
        })
    }
}

impl DirectoryKey {
    /// Creates the entry of a key from its published form.
    pub fn new(
        token_type: TokenType,
        public_key: &[u8],
        not_before: Option<UnixSeconds>,
        not_after: Option<UnixSeconds>,
    ) -> Self {
        let (token_type, token_key) = (token_type.code(), encode_base64url(public_key));
        Self { token_type, token_key, not_before, not_after }
    }

    pub const fn token_type(&self) -> TokenType {
        TokenType::from_code(self.token_type)
    }

    /// Decodes the public key.
    pub fn key_bytes(&self) -> Result<Vec<u8>, Base64Error> {
        decode_base64url_vec(self.token_key.as_bytes())
    }
}
