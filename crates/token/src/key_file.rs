//! The secret keys of an issuer in files: what a file holds, and how its name tells the token type.
//!
//! `*.p8` holds the PKCS#8 form (DER) of a key of type 2; `*.type1` and `*.type5` hold a scalar as hex digits, on one line, so
//! that they can be copied to the gateways that verify tokens of these types. Either may be encrypted under a passphrase.
//! `*.pkcs11` holds no secret: it names a key of type 2 in an HSM ([`Reference`]).

mod passphrase;
mod reference;

use crate::ids::TokenType;
use crate::sign::{SignError, SigningKey};
use crate::spki::KeyError;
use crate::verify::VerifyingKey;
pub use passphrase::{Passphrase, is_encrypted};
pub use reference::{Reference, ReferenceError};
use std::path::Path;
use zeroize::Zeroizing;

/// How the names of the key files of a type end, without the dot. Empty for a type that is not issued.
#[must_use]
pub const fn ending(token_type: TokenType) -> &'static str {
    match token_type {
        TokenType::BlindRsa2048 => "p8",
        TokenType::VoprfP384 => "type1",
        TokenType::VoprfRistretto255 => "type5",
        _ => "",
    }
}

/// How the names of files end that refer to a key in an HSM, without the dot.
pub const REFERENCE_ENDING: &str = "pkcs11";

/// How the name of the file of this key ends, without the dot.
#[must_use]
pub const fn ending_of(key: &SigningKey) -> &'static str {
    if key.is_elsewhere() { REFERENCE_ENDING } else { ending(key.token_type()) }
}

/// Whether a file of this name refers to a key in an HSM.
#[must_use]
pub fn is_reference(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == REFERENCE_ENDING)
}

/// The type of the key in a file, by the ending of its name; nothing if it is no key file.
#[must_use]
pub fn token_type(path: &Path) -> Option<TokenType> {
    if is_reference(path) {
        return Some(TokenType::BlindRsa2048);
    }
    let extension = path.extension()?.to_str()?;
    TokenType::ISSUED.into_iter().find(|token_type| ending(*token_type) == extension)
}

/// What the file of a key holds, from what [`SigningKey::generate`] returned.
#[must_use]
pub fn write(token_type: TokenType, secret: &[u8]) -> Zeroizing<Vec<u8>> {
    if !token_type.is_private() {
        return Zeroizing::new(secret.to_vec());
    }
    let mut line = Zeroizing::new(Vec::with_capacity(2 * secret.len() + 1)); // one that grows leaves copies
    for nibble in secret.iter().flat_map(|byte| [byte >> 4, byte & 0xf]) {
        line.push(if nibble < 10 { b'0' + nibble } else { b'a' - 10 + nibble });
    }
    line.push(b'\n');
    line
}

/// The secret in a file of a private type: nothing if these are no hex digits.
fn scalar(content: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let digits = content.trim_ascii();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    let mut scalar = Zeroizing::new(Vec::with_capacity(digits.len() / 2 + 1));
    for byte in pairs {
        scalar.push(byte?);
    }
    Some(scalar)
}

impl SigningKey {
    /// Reads the content of a key file.
    ///
    /// # Errors
    /// Not a key of this type.
    pub fn from_file(token_type: TokenType, content: &[u8]) -> Result<Self, SignError> {
        if !token_type.is_private() {
            return Self::from_secret(token_type, content);
        }
        let secret = scalar(content).ok_or(SignError::Secret(token_type))?;
        Self::from_secret(token_type, &secret)
    }
}

impl VerifyingKey {
    /// Reads the content of the key file of a private type.
    ///
    /// # Errors
    /// Not a key of this type.
    pub fn from_file(token_type: TokenType, content: &[u8]) -> Result<Self, KeyError> {
        let secret = scalar(content).ok_or(KeyError::NotASecret(token_type))?;
        Self::from_secret(token_type, &secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_from_its_file() {
        for of_type in TokenType::ISSUED {
            let secret = SigningKey::generate(of_type).unwrap();
            let content = write(of_type, &secret);
            let path = format!("1-2-3-0a0b0c0d.{}", ending(of_type));
            assert_eq!(token_type(Path::new(&path)), Some(of_type));
            let key = SigningKey::from_file(of_type, &content).unwrap();
            assert_eq!(key.id(), SigningKey::from_secret(of_type, &secret).unwrap().id());
            if of_type.is_private() {
                assert_eq!(VerifyingKey::from_file(of_type, &content).unwrap().id(), key.id());
                for bad in [&content[1..], b"", b"no digits", &[&content[..], b"0"].concat()] {
                    assert!(SigningKey::from_file(of_type, bad).is_err());
                }
            }
        }
        for other in ["x", "p8", "x.p8.over-17", "x.type2", "x."] {
            assert_eq!(token_type(Path::new(other)), None, "{other}");
        }
    }
}
