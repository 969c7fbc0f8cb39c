//! The issuer's directory (RFC 9578, section 4): where it takes requests, and its keys.

use crate::encoding::{Base64Error, decode_base64url_vec, encode_base64url};
use crate::ids::{TokenKeyId, TokenType};
use crate::time::UnixSeconds;
use serde::{Deserialize, Serialize};

/// The path of every issuer's directory.
pub const DIRECTORY_PATH: &str = "/.well-known/private-token-issuer-directory";
/// The media type of a directory.
pub const DIRECTORY_MEDIA_TYPE: &str = "application/private-token-issuer-directory";

/// An issuer's directory. Fields that are not known here are ignored, as RFC 9578 demands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Directory {
    /// Where to POST requests: absolute, or relative to the directory's own URL.
    pub issuer_request_uri: String,
    /// The keys, in the issuer's order of preference.
    pub token_keys: Vec<DirectoryKey>,
    /// The most tokens that a batch may request. Not in the draft; Postern's issuer adds it so that clients need not guess, and
    /// other implementations ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_limit: Option<u32>,
    /// The ids, in hex, of keys whose tokens are void from now on, listed until they would have ended anyway. Not in RFC 9578;
    /// Postern's issuer adds it in an emergency, and other implementations ignore it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<String>,
}

/// One key of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectoryKey {
    /// The code point of the kind of token it issues.
    pub token_type: u16,
    /// The public key, base64url.
    pub token_key: String,
    /// When the key comes into use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixSeconds>,
    /// When its tokens are no longer accepted. Not in RFC 9578; Postern's issuer adds it so that gateways know how long
    /// to keep spent records; other implementations ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<UnixSeconds>,
}

/// Why bytes are not a directory.
#[derive(Debug, thiserror::Error)]
#[error("not an issuer directory (RFC 9578, section 4): {0}")]
pub struct DirectoryError(#[from] serde_json::Error);

impl Directory {
    /// Reads a directory.
    ///
    /// # Errors
    /// Not JSON, a required field missing, or of another type; line and column are named.
    pub fn parse(json: &[u8]) -> Result<Self, DirectoryError> {
        Ok(serde_json::from_slice(json)?)
    }

    /// The JSON to serve. Of one directory always the same bytes, so that its hash can be an ETag.
    #[must_use]
    pub fn serialize(&self) -> Vec<u8> {
        // Strings, numbers and lists only, which JSON can always represent.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Whether the tokens of a key are void, whatever its times are.
    #[must_use]
    pub fn revokes(&self, id: TokenKeyId) -> bool {
        !self.revoked.is_empty() && self.revoked.contains(&id.to_hex())
    }

    /// The keys for `token_type`, in the issuer's order.
    pub fn keys_for(&self, token_type: TokenType) -> impl Iterator<Item = &DirectoryKey> {
        self.token_keys.iter().filter(move |key| key.token_type == token_type.code())
    }

    /// The key to use: the first of `token_type` whose not-before is absent or past (RFC 9578, section 4), and whose
    /// not-after, where one is given, is not.
    #[must_use]
    pub fn preferred(&self, token_type: TokenType, now: UnixSeconds) -> Option<&DirectoryKey> {
        self.keys_for(token_type).find(|key| {
            key.not_before.is_none_or(|not_before| not_before <= now)
                && key.not_after.is_none_or(|not_after| now < not_after)
        })
    }
}

impl DirectoryKey {
    /// An entry for a key of some type, by its published form.
    #[must_use]
    pub fn new(
        token_type: TokenType,
        public_key: &[u8],
        not_before: Option<UnixSeconds>,
        not_after: Option<UnixSeconds>,
    ) -> Self {
        let (token_type, token_key) = (token_type.code(), encode_base64url(public_key));
        Self { token_type, token_key, not_before, not_after }
    }

    /// The kind of token it issues.
    #[must_use]
    pub const fn token_type(&self) -> TokenType {
        TokenType::from_code(self.token_type)
    }

    /// The public key's bytes.
    ///
    /// # Errors
    /// The field is not base64url.
    pub fn key_bytes(&self) -> Result<Vec<u8>, Base64Error> {
        decode_base64url_vec(self.token_key.as_bytes())
    }
}
