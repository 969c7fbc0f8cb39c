//! The file of a key in an HSM: it names the key and has its public half, so that the directory can be published while the HSM is
//! away, and a key that is another than the one published is found out. It holds no secret.

use crate::encoding::{decode_base64url_vec, encode_base64url};
use crate::spki::{self, KeyError};
use serde::{Deserialize, Serialize};

/// The longest `CKA_ID`, in bytes. Ours have 16.
const MOST_ID: usize = 64;

/// What a `.pkcs11` file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The label of the HSM's token where the key was made. For people: the key is found by its id, in whatever token the
    /// configuration names.
    pub token: String,
    /// The `CKA_ID` of its objects.
    pub id: Vec<u8>,
    /// The published form, 342 bytes.
    pub public_key: Vec<u8>,
}

/// Why a file is no [`Reference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Not the JSON that was written.
    #[error("it is not a JSON object with the strings token, id (hex) and public_key (base64url)")]
    Form,
    /// The public key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    token: String,
    id: String,
    public_key: String,
}

impl Reference {
    /// What the file holds.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let written = Written {
            token: self.token.clone(),
            id: self.id_hex(),
            public_key: encode_base64url(&self.public_key),
        };
        let mut text = serde_json::to_vec_pretty(&written).unwrap_or_default(); // strings can always be written
        text.push(b'\n');
        text
    }

    /// Reads what [`Reference::write`] returned.
    ///
    /// # Errors
    /// [`ReferenceError`].
    pub fn parse(content: &[u8]) -> Result<Self, ReferenceError> {
        let Written { token, id, public_key } =
            serde_json::from_slice(content).map_err(|_| ReferenceError::Form)?;
        let id = bytes(&id).filter(|id| (1..=MOST_ID).contains(&id.len())).ok_or(ReferenceError::Form)?;
        let public_key = decode_base64url_vec(public_key.as_bytes()).map_err(|_| ReferenceError::Form)?;
        spki::rsa_public_key(&public_key)?;
        Ok(Self { token, id, public_key })
    }

    /// The `CKA_ID` as `pkcs11-tool` shows it.
    #[must_use]
    pub fn id_hex(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    digits.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SigningKey;

    #[test]
    fn a_reference_is_read_back_and_nothing_else_is() {
        let key = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
        let reference = Reference {
            token: "postern".to_owned(),
            id: vec![0, 0xab],
            public_key: key.public_key().to_vec(),
        };
        let written = reference.write();
        assert_eq!(Reference::parse(&written), Ok(reference.clone()));
        assert_eq!(reference.id_hex(), "00ab");
        let text = String::from_utf8(written).unwrap();
        for (from, to) in
            [("\"00ab\"", "\"\""), ("00ab", "0ab"), ("00ab", "zz"), ("token", "tokens"), ("{", "")]
        {
            assert!(text.contains(from));
            assert_eq!(Reference::parse(text.replace(from, to).as_bytes()), Err(ReferenceError::Form));
        }
        let other = Reference { public_key: vec![7; 342], ..reference };
        assert_eq!(Reference::parse(&other.write()), Err(ReferenceError::Key(KeyError::NotAType2Key)));
    }
}
