//! Identifiers of RFC 9577 and RFC 9578, each a separate type so that none can stand in for another.
//!
//! Values that could link a presentation to a client (nonce, spent key) are redacted in `Debug`; of values that are public by
//! design (challenge digest, token key id) it prints the first bytes.

use aws_lc_rs::digest::{SHA256, digest};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Token type, a `uint16` on the wire (RFC 9578, section 8.2; the batched-tokens draft adds type 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TokenType {
    /// Type 1: VOPRF (P-384, SHA-384), privately verifiable.
    VoprfP384,
    /// Type 2: Blind RSA (2048 bits), publicly verifiable.
    BlindRsa2048,
    /// Type 5: VOPRF (ristretto255, SHA-512), privately verifiable (draft-ietf-privacypass-batched-tokens).
    VoprfRistretto255,
    /// Type 0xDA7A: partially blind RSA with public metadata (draft-hendrickson-privacypass-public-metadata).
    PartiallyBlindRsa,
    /// Any other code point, kept for error messages.
    Other(u16),
}

impl TokenType {
    pub const fn code(self) -> u16 {
        match self {
            Self::VoprfP384 => 1,
            Self::BlindRsa2048 => 2,
            Self::VoprfRistretto255 => 5,
            Self::PartiallyBlindRsa => 0xDA7A,
            Self::Other(code) => code,
        }
    }

    pub const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::VoprfP384,
            2 => Self::BlindRsa2048,
            5 => Self::VoprfRistretto255,
            0xDA7A => Self::PartiallyBlindRsa,
            other => Self::Other(other),
        }
    }

    /// Types whose tokens Postern issues, mints and accepts.
    pub const ISSUED: [Self; 3] = [Self::VoprfP384, Self::BlindRsa2048, Self::VoprfRistretto255];

    /// Returns `true` if only a holder of the issuer's secret can verify the type's tokens.
    pub const fn is_private(self) -> bool {
        matches!(self, Self::VoprfP384 | Self::VoprfRistretto255)
    }

    /// Returns Nk, the length of the authenticator in bytes; `None` for an unknown type.
    pub const fn authenticator_len(self) -> Option<usize> {
        match self {
            Self::VoprfP384 => Some(48),
            Self::BlindRsa2048 | Self::PartiallyBlindRsa => Some(256),
            Self::VoprfRistretto255 => Some(64),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for TokenType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::VoprfP384 => "VOPRF P-384",
            Self::BlindRsa2048 => "blind RSA 2048",
            Self::VoprfRistretto255 => "VOPRF ristretto255",
            Self::PartiallyBlindRsa => "partially blind RSA with public metadata",
            Self::Other(code) => return write!(f, "{code} (unknown)"),
        };
        write!(f, "{} ({name})", self.code())
    }
}

/// One or more token types, each once, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTypes([Option<TokenType>; TokenType::ISSUED.len()]);

impl TokenTypes {
    /// Type 2 alone.
    pub const PUBLIC: Self = Self([Some(TokenType::BlindRsa2048), None, None]);

    /// Creates the list of types with these code points. `None` if the list is empty, contains a type twice, or contains a type
    /// that is not [issued](TokenType::ISSUED).
    pub fn new(codes: &[u16]) -> Option<Self> {
        let mut types = Self([None; TokenType::ISSUED.len()]);
        for (index, code) in codes.iter().enumerate() {
            let token_type = TokenType::from_code(*code);
            let is_fit = TokenType::ISSUED.contains(&token_type) && !codes[..index].contains(code);
            *types.0.get_mut(index)? = is_fit.then_some(token_type);
            types.0[index]?;
        }
        types.0[0].map(|_| types)
    }

    /// Iterates over the types, the preferred one first.
    pub fn iter(self) -> impl Iterator<Item = TokenType> {
        self.0.into_iter().flatten()
    }

    pub fn contains(&self, token_type: TokenType) -> bool {
        self.0.contains(&Some(token_type))
    }
}

/// The client's random 32 bytes that make a token unique (RFC 9577, section 2.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 32]);

redacted!(Nonce);

/// SHA-256 over the exact bytes of a challenge (RFC 9577, section 2.2.1). Public: it names a challenge, not a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChallengeDigest(pub [u8; 32]);

impl ChallengeDigest {
    pub fn of(challenge: &[u8]) -> Self {
        Self(sha256(challenge))
    }
}

impl fmt::Debug for ChallengeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChallengeDigest({}…)", prefix(&self.0))
    }
}

/// SHA-256 of the issuer's public key as published (RFC 9578, section 5.5 for type 1, 6.5 for type 2). For type 2 the published
/// form is the 342-byte SPKI with the id-RSASSA-PSS object identifier. Public.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenKeyId(pub [u8; 32]);

impl TokenKeyId {
    pub fn of(public_key: &[u8]) -> Self {
        Self(sha256(public_key))
    }

    /// Returns the last byte, which a `TokenRequest` carries (RFC 9578, section 6.1). Live keys must not share it.
    pub const fn truncated(self) -> u8 {
        self.0[31]
    }

    /// Returns all 32 bytes as 64 lower-case hex digits.
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Returns the first 8 hex digits, the key's name in logs, pages, commands and file names.
    pub fn short(self) -> String {
        prefix(&self.0)
    }
}

impl fmt::Debug for TokenKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKeyId({}…)", prefix(&self.0))
    }
}

/// The key of a spent record: `SHA-256("postern spent v1" || token_type || token_key_id || nonce)`, 32 bytes.
///
/// The input is the content that the issuer signed, never the header as sent: padding, quoting or trailing bytes cannot give one
/// token a second key. The digest cannot be turned back into a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpentKey([u8; 32]);

impl SpentKey {
    /// Derives the key of the record that marks the token as spent.
    pub fn derive(token_type: TokenType, key: TokenKeyId, nonce: Nonce) -> Self {
        let mut input = [0; 82];
        input[..16].copy_from_slice(b"postern spent v1");
        input[16..18].copy_from_slice(&token_type.code().to_be_bytes());
        input[18..50].copy_from_slice(&key.0);
        input[50..].copy_from_slice(&nonce.0);
        Self(sha256(&input))
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

redacted!(SpentKey);

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut array = [0; 32];
    array.copy_from_slice(digest(&SHA256, bytes).as_ref()); // a SHA-256 digest always has 32 bytes
    array
}

/// Returns the first four bytes in hex: enough to distinguish two keys in a log.
fn prefix(bytes: &[u8; 32]) -> String {
    hex::encode(&bytes[..4])
}

/// A time in whole seconds since 1970-01-01T00:00:00Z.
///
/// Callers at the edge obtain the time from [`UnixSeconds::now`] and pass it down, so that validity windows can be tested without
/// waiting.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct UnixSeconds(pub u64);

impl UnixSeconds {
    /// The last representable time; a window that never closes ends here.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the current second of the system clock. A clock set before 1970 reads as 0.
    pub fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// Adds `span` (whole seconds; fractions are dropped), saturating at [`UnixSeconds::MAX`].
    #[must_use]
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.as_secs()))
    }

    /// Subtracts `span` (whole seconds; fractions are dropped), saturating at 1970.
    #[must_use]
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.as_secs()))
    }

    /// Returns the time from `self` to `later`; zero if `later` is the earlier one.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_secs(later.0.saturating_sub(self.0))
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_listed_once_and_can_be_issued() {
        let listed = |codes: &[u16]| {
            TokenTypes::new(codes).map(|types| types.iter().map(TokenType::code).collect::<Vec<_>>())
        };
        for good in [&[2][..], &[5], &[5, 2], &[1, 5, 2]] {
            assert_eq!(listed(good).as_deref(), Some(good));
        }
        for bad in [&[][..], &[2, 2], &[3], &[2, 0xDA7A], &[1, 2, 5, 2], &[0]] {
            assert_eq!(listed(bad), None, "{bad:?}");
        }
        assert!(TokenTypes::PUBLIC.contains(TokenType::BlindRsa2048));
        assert!(!TokenTypes::PUBLIC.contains(TokenType::VoprfP384));
    }
}
