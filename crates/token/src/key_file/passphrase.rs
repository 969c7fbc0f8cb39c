//! Encrypted key files: an `EncryptedPrivateKeyInfo` (RFC 5958, section 3) in DER, under PBES2 with scrypt and AES-256-CBC (RFC
//! 8018, section 6.2; RFC 7914, section 7), which `openssl pkcs8` reads and writes.
//!
//! The plaintext is the content of an unencrypted key file: PKCS#8 for type 2, as in the standard; the line of hex digits for the
//! private types, because no standard names an algorithm for a ristretto255 scalar. CBC does not authenticate the file, so its
//! reader checks that the key is valid and matches the file's name.

use crate::sign::SignError;
use pkcs8::der::asn1::OctetString;
use pkcs8::der::{Decode, Encode};
use pkcs8::pkcs5::pbes2::{EncryptionScheme, Kdf, Parameters, Salt, ScryptParams};
use pkcs8::{EncryptedPrivateKeyInfoOwned, EncryptedPrivateKeyInfoRef};
use rand::TryRng;
use rand::rngs::SysRng;
use zeroize::Zeroizing;

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

/// Passphrase of a key file, wiped when dropped.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<Vec<u8>>);

impl Passphrase {
    /// Copies a passphrase, which must not include a line end.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// Encrypts the content of a key file. Takes a tenth of a second of CPU and 16 MiB of memory.
    pub fn encrypt(&self, content: &[u8]) -> Result<Vec<u8>, SignError> {
        let (mut salt, mut iv) = ([0; 16], [0; 16]);
        for random in [&mut salt, &mut iv] {
            SysRng.try_fill_bytes(random).map_err(|_| SignError::NoRandomness)?;
        }
        // None of these lengths and numbers exceeds the limits of the formats.
        let encrypt = || {
            let kdf = Kdf::Scrypt(ScryptParams {
                salt: Salt::new(salt).ok()?,
                cost_parameter: COST,
                block_size: BLOCK_SIZE,
                parallelization: PARALLELIZATION,
                key_length: None,
            });
            let parameters = Parameters { kdf, encryption: EncryptionScheme::Aes256Cbc { iv } };
            let encrypted_data = OctetString::new(parameters.encrypt(&*self.0, content).ok()?).ok()?;
            let encryption_algorithm = parameters.into();
            EncryptedPrivateKeyInfoOwned { encryption_algorithm, encrypted_data }.to_der().ok()
        };
        encrypt().ok_or(SignError::NoRandomness)
    }

    /// Returns the content of the file before encryption; `None` if the passphrase is wrong. One wrong passphrase in 256 passes
    /// the padding check: the result is then not a key.
    pub fn decrypt(&self, file: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let info = EncryptedPrivateKeyInfoRef::from_der(file).ok()?;
        let is_bounded = match &info.encryption_algorithm.pbes2()?.kdf {
            Kdf::Scrypt(kdf) => {
                let blocks = u64::from(kdf.block_size) * u64::from(kdf.parallelization);
                kdf.cost_parameter.is_power_of_two()
                    && kdf.cost_parameter.checked_mul(blocks).is_some_and(|work| work <= MOST_WORK)
            }
            Kdf::Pbkdf2(kdf) => kdf.iteration_count <= MOST_ROUNDS,
            _ => false,
        };
        let decrypt = || info.encryption_algorithm.decrypt(&*self.0, info.encrypted_data.as_bytes());
        is_bounded.then(decrypt)?.ok().map(Zeroizing::new)
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
    fn a_key_of_each_type_comes_back_under_its_passphrase_and_no_other() {
        let right = Passphrase::new(b"correct horse battery staple");
        for of_type in TokenType::ISSUED {
            let plain = key_file::write(of_type, &SigningKey::generate(of_type).unwrap());
            assert!(!is_encrypted(&plain));
            let file = right.encrypt(&plain).unwrap();
            assert!(is_encrypted(&file));
            assert_eq!(*right.decrypt(&file).unwrap(), *plain);
            assert!(SigningKey::from_file(of_type, &file).is_err());
            assert_ne!(right.encrypt(&plain).unwrap(), file, "salt and IV are new each time");
            for wrong in [&b""[..], b"correct horse battery stapl"] {
                let other = Passphrase::new(wrong).decrypt(&file);
                assert!(other.is_none_or(|other| SigningKey::from_file(of_type, &other).is_err()));
            }
        }
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
