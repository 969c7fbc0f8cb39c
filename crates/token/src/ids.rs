//! The identifiers of RFC 9577 and RFC 9578, each a type of its own so that none can stand in for another.
//!
//! What could link a presentation to a client (nonce, spent key) redacts itself in `Debug`; what is public by
//! design (challenge digest, token key id) shows its first bytes.

use aws_lc_rs::digest::{SHA256, digest};
use std::fmt;

/// The kind of token, a `uint16` on the wire (RFC 9578, section 8.2; the batched-tokens draft adds type 5).
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
    /// Any other code point, kept so that errors can name it.
    Other(u16),
}

impl TokenType {
    /// The code point.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::VoprfP384 => 1,
            Self::BlindRsa2048 => 2,
            Self::VoprfRistretto255 => 5,
            Self::PartiallyBlindRsa => 0xDA7A,
            Self::Other(code) => code,
        }
    }

    /// The type with this code point.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::VoprfP384,
            2 => Self::BlindRsa2048,
            5 => Self::VoprfRistretto255,
            0xDA7A => Self::PartiallyBlindRsa,
            other => Self::Other(other),
        }
    }

    /// The types whose tokens Postern issues, mints and accepts.
    pub const ISSUED: [Self; 3] = [Self::VoprfP384, Self::BlindRsa2048, Self::VoprfRistretto255];

    /// Whether only who has the issuer's secret can verify its tokens.
    #[must_use]
    pub const fn is_private(self) -> bool {
        matches!(self, Self::VoprfP384 | Self::VoprfRistretto255)
    }

    /// Nk, the length of the authenticator in bytes; `None` for a type this crate does not know.
    #[must_use]
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

/// The client's random 32 bytes that make a token unique (RFC 9577, section 2.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 32]);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(redacted)")
    }
}

/// SHA-256 over the exact bytes of a challenge (RFC 9577, section 2.2.1). Public: it names a challenge, not a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChallengeDigest(pub [u8; 32]);

impl ChallengeDigest {
    /// The digest of a serialized `TokenChallenge`.
    #[must_use]
    pub fn of(challenge: &[u8]) -> Self {
        Self(sha256(challenge))
    }
}

impl fmt::Debug for ChallengeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChallengeDigest({}…)", Prefix(&self.0))
    }
}

/// SHA-256 of the issuer's public key as it is published (RFC 9578, section 5.5 for type 1, 6.5 for type 2).
/// For type 2 that is the 342-byte SPKI with the id-RSASSA-PSS object identifier. Public.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenKeyId(pub [u8; 32]);

impl TokenKeyId {
    /// The id of a published key.
    #[must_use]
    pub fn of(public_key: &[u8]) -> Self {
        Self(sha256(public_key))
    }

    /// The last byte, which a `TokenRequest` carries (RFC 9578, section 6.1). Live keys must not share it.
    #[must_use]
    pub const fn truncated(self) -> u8 {
        self.0[31]
    }

    /// All 32 bytes as 64 lower-case hex digits.
    #[must_use]
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first 8 of those digits, by which logs, pages, commands and file names call the key.
    #[must_use]
    pub fn short(self) -> String {
        Prefix(&self.0).to_string()
    }
}

impl fmt::Debug for TokenKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKeyId({}…)", Prefix(&self.0))
    }
}

/// The key of a spent record: `SHA-256("postern spent v1" || token_type || token_key_id || nonce)`, 32 bytes.
///
/// It is made of what the issuer signed and never of the header as sent: padding, quoting or trailing bytes cannot
/// give one token a second key. The digest cannot be turned back into a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpentKey([u8; 32]);

impl SpentKey {
    /// Derives the key of the record that marks the token as spent.
    #[must_use]
    pub fn derive(token_type: TokenType, key: TokenKeyId, nonce: Nonce) -> Self {
        let mut input = [0; 82];
        input[..16].copy_from_slice(b"postern spent v1");
        input[16..18].copy_from_slice(&token_type.code().to_be_bytes());
        input[18..50].copy_from_slice(&key.0);
        input[50..].copy_from_slice(&nonce.0);
        Self(sha256(&input))
    }

    /// Takes 32 bytes read back from a store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes to write to a store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SpentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpentKey(redacted)")
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    to_array(digest(&SHA256, bytes).as_ref())
}

fn to_array(bytes: &[u8]) -> [u8; 32] {
    let mut array = [0; 32];
    array.copy_from_slice(bytes); // SHA-256 always gives 32 bytes
    array
}

/// The first four bytes in hex: enough to distinguish two keys in a log.
struct Prefix<'a>(&'a [u8; 32]);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
