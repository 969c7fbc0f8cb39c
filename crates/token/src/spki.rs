//! Published form of a type 2 key (RFC 9578, section 6.5): an SPKI with the id-RSASSA-PSS object identifier and explicit SHA-384,
//! MGF1-SHA-384 and salt length 48. With 2048 bits and exponent 65537 it has one encoding, of 342 bytes, so it is read and
//! written as a template. A key that differs by a byte would have another key id, and is rejected.

use crate::ids::TokenType;
use postern_raw_rsa::MODULUS_LEN;

/// Length of a published key in bytes.
pub const SPKI_LEN: usize = PREFIX.len() + RSA_PUBLIC_KEY_LEN;

/// Everything before the `RSAPublicKey`: 72 bytes.
const PREFIX: &[u8] = &[
    0x30, 0x82, 0x01, 0x52, // SubjectPublicKeyInfo, 338 bytes
    0x30, 0x3d, // AlgorithmIdentifier
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a, // id-RSASSA-PSS
    0x30, 0x30, // RSASSA-PSS-params
    0xa0, 0x0d, 0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, // SHA-384
    0xa1, 0x1a, 0x30, 0x18, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x08, // MGF1
    0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, // with SHA-384
    0xa2, 0x03, 0x02, 0x01, 0x30, // salt of 48 bytes
    0x03, 0x82, 0x01, 0x0f, 0x00, // BIT STRING, 270 bytes
];
const RSA_PUBLIC_KEY_PREFIX: &[u8] = &[0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00];
const EXPONENT_65537: &[u8] = &[0x02, 0x03, 0x01, 0x00, 0x01];
const RSA_PUBLIC_KEY_LEN: usize = RSA_PUBLIC_KEY_PREFIX.len() + MODULUS_LEN + EXPONENT_65537.len();
/// First bytes of the same key with the plain rsaEncryption identifier: a common mistake, reported by its own error.
const RSA_ENCRYPTION_PREFIX: &[u8] = &[0x30, 0x82, 0x01, 0x22, 0x30, 0x0d];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error(
        "the key is published with the rsaEncryption identifier; RFC 9578, section 6.5 wants id-RSASSA-PSS"
    )]
    RsaEncryption,
    #[error(
        "not a type 2 token key: it must be the SPKI (342 bytes) of an RSA-2048 key with exponent 65537, \
         id-RSASSA-PSS, SHA-384 and salt length 48 (RFC 9578, section 6.5)"
    )]
    NotAType2Key,
    #[error(
        "not a token key of type {0}: it must be an element of the type's group, of 49 bytes for type 1 and of 32 for type 5, \
         and not the identity (RFC 9578, section 5.5)"
    )]
    NotAnElement(TokenType),
    #[error(
        "not the secret of a key of type {0}: it must be a scalar of 48 bytes for type 1, and of 32 for type 5"
    )]
    NotASecret(TokenType),
}

/// Extracts the `RSAPublicKey` from a published key.
pub(crate) fn rsa_public_key(spki: &[u8]) -> Result<&[u8], KeyError> {
    if spki.starts_with(RSA_ENCRYPTION_PREFIX) {
        return Err(KeyError::RsaEncryption);
    }
    spki.strip_prefix(PREFIX).filter(|key| is_rsa_2048(key)).ok_or(KeyError::NotAType2Key)
}

/// Wraps an `RSAPublicKey` in its published form.
pub(crate) fn published(rsa_public_key: &[u8]) -> Result<Vec<u8>, KeyError> {
    if is_rsa_2048(rsa_public_key) {
        Ok([PREFIX, rsa_public_key].concat())
    } else {
        Err(KeyError::NotAType2Key)
    }
}

/// Returns the published form of the RSA-2048 key with this modulus (big-endian) and the exponent 65537.
///
/// # Errors
/// [`KeyError::NotAType2Key`]: the highest bit of the modulus is not set, so it has fewer than 2048 bits.
pub fn of_modulus(modulus: &[u8; MODULUS_LEN]) -> Result<Vec<u8>, KeyError> {
    published(&[RSA_PUBLIC_KEY_PREFIX, modulus, EXPONENT_65537].concat())
}

/// Returns the modulus of a published key, big-endian.
pub fn modulus(spki: &[u8]) -> Result<[u8; MODULUS_LEN], KeyError> {
    let key = rsa_public_key(spki)?;
    key[RSA_PUBLIC_KEY_PREFIX.len()..].first_chunk().copied().ok_or(KeyError::NotAType2Key)
}

/// Returns `true` for a modulus of exactly 2048 bits, which has its highest bit set, and the exponent 65537.
fn is_rsa_2048(key: &[u8]) -> bool {
    key.len() == RSA_PUBLIC_KEY_LEN
        && key.starts_with(RSA_PUBLIC_KEY_PREFIX)
        && key.ends_with(EXPONENT_65537)
        && key[RSA_PUBLIC_KEY_PREFIX.len()] & 0x80 != 0
}
