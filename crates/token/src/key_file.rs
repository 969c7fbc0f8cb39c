//! Files with an issuer's secret keys: their content, and the token type in their extension.
//!
//! `*.p8` holds the PKCS#8 form (DER) of a key of type 2; `*.type1` and `*.type5` hold a scalar as hex digits on one line, which
//! can be copied to the gateways that verify tokens of these types. Either form may be encrypted under a passphrase. `*.pkcs11`
//! holds no secret: it refers to a key of type 2 in an HSM ([`Reference`]).

use crate::encoding::{decode_base64url_vec, encode_base64url};
use crate::ids::TokenType;
use crate::sign::{SignError, SigningKey};
use crate::spki::{self, KeyError};
use crate::verify::VerifyingKey;
use aws_lc_rs::cipher::{
    AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey,
    UnboundCipherKey,
};
use pkcs8::der::asn1::OctetString;
use pkcs8::der::{Decode, Encode};
use pkcs8::pkcs5::pbes2::{EncryptionScheme, Kdf, Parameters, Salt, ScryptParams};
use pkcs8::{EncryptedPrivateKeyInfoOwned, EncryptedPrivateKeyInfoRef};
use rand::TryRng;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// Returns the extension of key files of a type, without the dot; empty for a type that is not issued.
pub const fn ending(token_type: TokenType) -> &'static str {
    match token_type {
        TokenType::BlindRsa2048 => "p8",
        TokenType::VoprfP384 => "type1",
        TokenType::VoprfRistretto255 => "type5",
        _ => "",
    }
}

/// Extension of files that refer to a key in an HSM, without the dot.
pub const REFERENCE_ENDING: &str = "pkcs11";

/// Returns the extension of this key's file, without the dot.
pub const fn ending_of(key: &SigningKey) -> &'static str {
    if key.is_elsewhere() { REFERENCE_ENDING } else { ending(key.token_type()) }
}

/// Returns `true` if a file of this name refers to a key in an HSM.
pub fn is_reference(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == REFERENCE_ENDING)
}

/// Returns the token type of a key file, from its extension; `None` if it is not a key file.
pub fn token_type(path: &Path) -> Option<TokenType> {
    if is_reference(path) {
        return Some(TokenType::BlindRsa2048);
    }
    let extension = path.extension()?.to_str()?;
    TokenType::ISSUED.into_iter().find(|token_type| ending(*token_type) == extension)
}

/// Encodes the output of [`SigningKey::generate`] as the content of a key file.
pub fn write(token_type: TokenType, secret: &[u8]) -> Zeroizing<Vec<u8>> {
    if !token_type.is_private() {
        return Zeroizing::new(secret.to_vec());
    }
    let mut line = Zeroizing::new(vec![b'\n'; 2 * secret.len() + 1]); // reallocation would leave copies of the secret
    let _ = hex::encode_to_slice(secret, &mut line[..2 * secret.len()]); // it has the right length
    line
}

/// Decodes the secret in a file of a private type; `None` if the content is not hex digits.
fn scalar(content: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let digits = content.trim_ascii();
    let mut scalar = Zeroizing::new(vec![0; digits.len() / 2]);
    hex::decode_to_slice(digits, &mut scalar).ok()?;
    Some(scalar)
}

impl SigningKey {
    /// Parses the content of a key file.
    pub fn from_file(token_type: TokenType, content: &[u8]) -> Result<Self, SignError> {
        if !token_type.is_private() {
            return Self::from_secret(token_type, content);
        }
        let secret = scalar(content).ok_or(SignError::Secret(token_type))?;
        Self::from_secret(token_type, &secret)
    }
}

impl VerifyingKey {
    /// Parses the content of the key file of a private type.
    pub fn from_file(token_type: TokenType, content: &[u8]) -> Result<Self, KeyError> {
        let secret = scalar(content).ok_or(KeyError::NotASecret(token_type))?;
        Self::from_secret(token_type, &secret)
    }
}

/// Maximum length of a `CKA_ID` in bytes. Postern's have 16.
const MOST_ID: usize = 64;

/// Content of a `.pkcs11` file: the name of a key in an HSM and its public half, so that the directory can be published while the
/// HSM is unreachable, and a key other than the published one is detected. It contains no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Label of the HSM's token in which the key was generated. For people only: the key is found by its id, in the token that
    /// the configuration names.
    pub token: String,
    /// `CKA_ID` of the key's objects.
    pub id: Vec<u8>,
    /// Published form of the key, 342 bytes.
    pub public_key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("it is not a JSON object with the strings token, id (hex) and public_key (base64url)")]
    Form,
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

    pub fn parse(content: &[u8]) -> Result<Self, ReferenceError> {
        let Written { token, id, public_key } =
            serde_json::from_slice(content).map_err(|_| ReferenceError::Form)?;
        let id = hex::decode(id)
            .ok()
            .filter(|id| (1..=MOST_ID).contains(&id.len()))
            .ok_or(ReferenceError::Form)?;
        let public_key = decode_base64url_vec(public_key.as_bytes()).map_err(|_| ReferenceError::Form)?;
        spki::rsa_public_key(&public_key)?;
        Ok(Self { token, id, public_key })
    }

    /// Returns the `CKA_ID` in hex, as `pkcs11-tool` prints it.
    pub fn id_hex(&self) -> String {
        hex::encode(&self.id)
    }
}

/// scrypt's N. OpenSSL allows scrypt at most 32 MiB of memory, less than N = 2^15 requires.
const COST: u64 = 1 << 14;
/// scrypt's r: 16 MiB of memory together with N.
const BLOCK_SIZE: u16 = 8;
/// scrypt's p: compensates for the small N, as in the OWASP Password Storage Cheat Sheet.
const PARALLELIZATION: u16 = 5;
/// Maximum N * r * p in a file of another program, so that a damaged file takes neither all memory nor minutes: 256 MiB.
const MOST_WORK: u64 = 1 << 21;
/// Maximum number of PBKDF2 rounds, for the same reason: some seconds.
const MOST_ROUNDS: u32 = 10_000_000;

/// Passphrase of key files, wiped when dropped.
///
/// An encrypted file is an `EncryptedPrivateKeyInfo` (RFC 5958, section 3) in DER, under PBES2 with scrypt and AES-256-CBC (RFC
/// 8018, section 6.2; RFC 7914, section 7), which `openssl pkcs8` reads and writes. Its plaintext is the content of an unencrypted
/// file, also for the private types, because no standard names an algorithm for a ristretto255 scalar. CBC does not authenticate
/// the file, so its reader checks that the key is valid and matches the file's name.
///
/// A file gets the salt of the file that was read or written before it, and thus its key, and an IV of its own: all files of an
/// issuer take one derivation. A thief needs one for each guess either way, because any one of them proves the passphrase.
pub struct Passphrase {
    text: Zeroizing<Vec<u8>>,
    latest: Mutex<Option<DerivedKey>>,
}

/// The key of files under one salt.
struct DerivedKey {
    from: ScryptParams,
    key: Zeroizing<[u8; 32]>,
}

impl DerivedKey {
    fn cipher_key(&self) -> Option<UnboundCipherKey> {
        UnboundCipherKey::new(&AES_256, &*self.key).ok()
    }
}

const fn own_parameters(salt: Salt) -> ScryptParams {
    ScryptParams {
        salt,
        cost_parameter: COST,
        block_size: BLOCK_SIZE,
        parallelization: PARALLELIZATION,
        key_length: None,
    }
}

impl Passphrase {
    /// Copies a passphrase, which must not include a line end.
    pub fn new(bytes: &[u8]) -> Self {
        Self { text: Zeroizing::new(bytes.to_vec()), latest: Mutex::default() }
    }

    fn latest(&self) -> MutexGuard<'_, Option<DerivedKey>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a fifth of a second of CPU and 16 MiB of memory.
    fn derive(&self, from: ScryptParams) -> Option<DerivedKey> {
        let mut key = Zeroizing::new([0; 32]);
        scrypt::scrypt(&self.text, from.salt.as_ref(), &scrypt::Params::try_from(from).ok()?, &mut *key)
            .ok()?;
        Some(DerivedKey { from, key })
    }

    /// Encrypts the content of a key file.
    pub fn encrypt(&self, content: &[u8]) -> Result<Vec<u8>, SignError> {
        let (mut salt, mut iv) = ([0; 16], [0; 16]);
        for random in [&mut salt, &mut iv] {
            SysRng.try_fill_bytes(random).map_err(|_| SignError::NoRandomness)?;
        }
        // None of these lengths and numbers exceeds the limits of the formats.
        let encrypt = || {
            let mut latest = self.latest();
            if latest.as_ref().is_none_or(|latest| latest.from != own_parameters(latest.from.salt)) {
                *latest = Some(self.derive(own_parameters(Salt::new(salt).ok()?))?);
            }
            let derived = latest.as_ref()?;
            let key = PaddedBlockEncryptingKey::cbc_pkcs7(derived.cipher_key()?).ok()?;
            let mut data = Vec::with_capacity(content.len() + iv.len()); // reallocation would leave copies of the secret
            data.extend_from_slice(content);
            key.less_safe_encrypt(&mut data, EncryptionContext::Iv128(iv.into())).ok()?;
            let kdf = Kdf::Scrypt(derived.from);
            let encryption_algorithm =
                Parameters { kdf, encryption: EncryptionScheme::Aes256Cbc { iv } }.into();
            let encrypted_data = OctetString::new(data).ok()?;
            EncryptedPrivateKeyInfoOwned { encryption_algorithm, encrypted_data }.to_der().ok()
        };
        encrypt().ok_or(SignError::NoRandomness)
    }

    /// Returns the content of the file before encryption; `None` if the passphrase is wrong. One wrong passphrase in 256 passes
    /// the padding check: the result is then not a key.
    pub fn decrypt(&self, file: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let info = EncryptedPrivateKeyInfoRef::from_der(file).ok()?;
        let data = info.encrypted_data.as_bytes();
        let Parameters { kdf, encryption } = info.encryption_algorithm.pbes2()?;
        let is_bounded = match kdf {
            Kdf::Scrypt(kdf) => {
                let blocks = u64::from(kdf.block_size) * u64::from(kdf.parallelization);
                kdf.cost_parameter.is_power_of_two()
                    && kdf.cost_parameter.checked_mul(blocks).is_some_and(|work| work <= MOST_WORK)
            }
            Kdf::Pbkdf2(kdf) => kdf.iteration_count <= MOST_ROUNDS,
            _ => false,
        };
        match (kdf, encryption) {
            _ if !is_bounded => None,
            (Kdf::Scrypt(kdf), EncryptionScheme::Aes256Cbc { iv })
                if kdf.key_length.is_none_or(|bytes| bytes == 32) =>
            {
                self.decrypt_as_written(*kdf, *iv, data)
            }
            _ => info.encryption_algorithm.decrypt(&*self.text, data).ok().map(Zeroizing::new),
        }
    }

    /// Decrypts a file of the scheme that this program writes.
    fn decrypt_as_written(
        &self,
        from: ScryptParams,
        iv: [u8; 16],
        data: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let mut latest = self.latest();
        let is_known = latest.as_ref().is_some_and(|latest| latest.from == from);
        let new = if is_known { None } else { Some(self.derive(from)?) };
        let key = new.as_ref().or(latest.as_ref())?.cipher_key()?;
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
        let mut plain = Zeroizing::new(data.to_vec());
        let length = key.decrypt(&mut plain, DecryptionContext::Iv128(iv.into())).ok()?.len();
        plain.truncate(length);
        // The salt of a file under another passphrase is not used on.
        if new.is_some() {
            *latest = new;
        }
        Some(plain)
    }
}

redacted!(Passphrase);

/// Returns `true` if a key file is encrypted, under any passphrase.
pub fn is_encrypted(content: &[u8]) -> bool {
    EncryptedPrivateKeyInfoRef::from_der(content).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SigningKey, TokenType, key_file};
    use pkcs8::pkcs5::pbes2::Pbkdf2Params;

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

    #[test]
    fn a_key_of_each_type_comes_back_under_its_passphrase_and_no_other() {
        let right = Passphrase::new(b"correct horse battery staple");
        for of_type in TokenType::ISSUED {
            let plain = key_file::write(of_type, &SigningKey::generate(of_type).unwrap());
            assert!(!is_encrypted(&plain));
            let file = right.encrypt(&plain).unwrap();
            assert!(is_encrypted(&file));
            assert_eq!(*right.decrypt(&file).unwrap(), *plain);
            assert!(SigningKey::from_file(of_type, &file).is_err());
            for wrong in [&b""[..], b"correct horse battery stapl"] {
                let other = Passphrase::new(wrong).decrypt(&file);
                assert!(other.is_none_or(|other| SigningKey::from_file(of_type, &other).is_err()));
            }
        }
    }

    #[test]
    fn files_under_one_passphrase_share_a_salt_and_no_iv() {
        let parts = |file: &[u8]| {
            let info = EncryptedPrivateKeyInfoOwned::from_der(file).unwrap();
            let parameters = info.encryption_algorithm.pbes2().unwrap().clone();
            (parameters.kdf, parameters.encryption)
        };
        let (one, again) = (Passphrase::new(b"correct horse"), Passphrase::new(b"correct horse"));
        let file = one.encrypt(b"a key").unwrap();
        let ((salt, iv), (next_salt, next_iv)) = (parts(&file), parts(&one.encrypt(b"a key").unwrap()));
        assert_eq!(salt, next_salt);
        assert_ne!(iv, next_iv);
        assert_eq!(**again.decrypt(&file).unwrap(), *b"a key");
        assert_eq!(parts(&again.encrypt(b"another key").unwrap()).0, salt, "the one that was read");
        let other = Passphrase::new(b"incorrect horse");
        assert!(other.decrypt(&file).is_some() || parts(&other.encrypt(b"a key").unwrap()).0 != salt);
    }

    #[test]
    fn a_file_that_would_take_all_memory_or_no_end_of_time_is_refused_unread() {
        let passphrase = Passphrase::new(b"correct horse battery staple");
        let file = passphrase.encrypt(b"0123456789abcdef").unwrap();
        assert!(passphrase.decrypt(&file[..file.len() - 1]).is_none());
        let good = EncryptedPrivateKeyInfoOwned::from_der(&file).unwrap();
        let EncryptionScheme::Aes256Cbc { iv } = good.encryption_algorithm.pbes2().unwrap().encryption else {
            panic!("another cipher");
        };
        let scrypt = |cost_parameter, parallelization| {
            let (salt, block_size, key_length) = (Salt::new([7; 16]).unwrap(), BLOCK_SIZE, None);
            Kdf::Scrypt(ScryptParams { salt, cost_parameter, block_size, parallelization, key_length })
        };
        let rounds = Pbkdf2Params::hmac_sha256(MOST_ROUNDS + 1, &[7; 16]).unwrap();
        for kdf in [
            scrypt(0, 1),
            scrypt(3, 1),
            scrypt(1 << 19, 1),
            scrypt(1 << 63, 1),
            scrypt(COST, u16::MAX),
            rounds.into(),
        ] {
            let encryption_algorithm =
                Parameters { kdf, encryption: EncryptionScheme::Aes256Cbc { iv } }.into();
            let other = EncryptedPrivateKeyInfoOwned { encryption_algorithm, ..good.clone() };
            let other = other.to_der().unwrap();
            assert!(is_encrypted(&other));
            assert!(passphrase.decrypt(&other).is_none());
        }
    }
}
