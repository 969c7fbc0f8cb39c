//! API keys: generation, recognition and storage.
//!
//! ```text
//! postern_ base64url( 32 random bytes | 8 bytes of HMAC(secret, random bytes) | 4 bytes of SHA-256 of what precedes )
//! ```
//!
//! The checksum at the end detects a key that was copied wrongly. The bytes before it prove that this issuer made the key, so
//! that guesses are refused by computation, without a read of the disk.
//!
//! **A fast hash suffices.** The database has `HMAC-SHA-256(secret, SHA-256(key))`. Slow password hashes (Argon2, scrypt)
//! protect the few passwords that people choose; 2^256 random keys cannot be searched, however fast the hash, and a slow hash
//! per request would let any client exhaust the issuer's CPU. Keys that a file declares may have been chosen by people. The
//! secret protects those: it is in a separate file, so a stolen database or backup alone does not allow testing guesses. The
//! inner SHA-256 is the `key_sha256` of such a file, so `account apply` needs no keys.

use super::database::AccountsError;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use postern_daemon::files::{exposed_mode, write_private};
use std::io;
use std::path::Path;

/// File name of the secret, in the directory of the database.
pub(crate) const SECRET_FILE: &str = "accounts.secret";
/// Prefix of every key, by which people and scanners for leaked secrets recognize it.
const PREFIX: &str = "postern_";
const RANDOM: usize = 32;
const MADE: usize = RANDOM + 8;
const LENGTH: usize = MADE + 4;

/// Domain separation of the secret's uses.
const OF_KEYS: &[u8] = b"postern accounts v1: stored API key\0";
const OF_MAKER: &[u8] = b"postern accounts v1: made here\0";
const OF_CHECK: &[u8] = b"postern accounts v1: which secret\0";

/// SHA-256 of an API key.
pub(crate) type KeyDigest = [u8; 32];

/// Classification of a presented key by its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Made with this issuer's secret.
    Ours,
    /// Begins like a key of this program, with characters missing or wrong.
    Damaged,
    /// Not made with this issuer's secret.
    Other,
}

/// The secret of the HMACs that represent API keys in the database.
#[derive(Clone)]
pub(crate) struct KeySecret {
    key: hmac::Key,
    secret: [u8; 32],
}

impl std::fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySecret(redacted)")
    }
}

impl KeySecret {
    /// Reads the secret from `path`; `None` if there is no such file.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, AccountsError> {
        let refused = |reason: String| AccountsError::Secret { path: path.to_owned(), reason };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(format!("it cannot be read ({error})"))),
        };
        let metadata = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?;
        if let Some(mode) = exposed_mode(&metadata) {
            return Err(AccountsError::Exposed { path: path.to_owned(), mode });
        }
        let secret =
            Self::parse(text.as_bytes()).ok_or_else(|| refused("it is not 64 hex digits".to_owned()))?;
        Ok(Some(secret))
    }

    /// Reads the secret from its text, 64 hex digits; `None` for another one.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut secret = [0; 32];
        hex::decode_to_slice(text.trim_ascii(), &mut secret).ok()?;
        Some(Self::of(&secret))
    }

    pub(crate) fn text(&self) -> String {
        hex::encode(self.secret) + "\n"
    }

    /// Generates a secret; `None` if the system gives no random bytes.
    pub(crate) fn random() -> Option<Self> {
        random::<32>().map(|secret| Self::of(&secret))
    }

    /// Generates a secret and writes it to `path`.
    pub(crate) fn make(path: &Path) -> Result<Self, AccountsError> {
        let none = || AccountsError::Secret {
            path: path.to_owned(),
            reason: "the system gives no random bytes".to_owned(),
        };
        let secret = Self::random().ok_or_else(none)?;
        secret.write(path)?;
        Ok(secret)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), AccountsError> {
        write_private(path, self.text().as_bytes()).map_err(|error| AccountsError::Secret {
            path: path.to_owned(),
            reason: format!("it cannot be written ({error})"),
        })
    }

    fn of(secret: &[u8; 32]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret), secret: *secret }
    }

    /// Generates a key, which is shown once and never stored; `None` if the system has no random bytes.
    pub(crate) fn make_key(&self) -> Option<String> {
        let mut key = random::<RANDOM>()?.to_vec();
        let maker = self.mac(OF_MAKER, &key);
        key.extend(&maker[..MADE - RANDOM]);
        let check = sha256(&key);
        key.extend(&check[..LENGTH - MADE]);
        Some(PREFIX.to_owned() + &BASE64_URL_SAFE_NO_PAD.encode(key))
    }

    /// Classifies a presented key without a lookup.
    pub(crate) fn form(&self, key: &[u8]) -> Form {
        let Some(text) = key.strip_prefix(PREFIX.as_bytes()) else { return Form::Other };
        let mut bytes = [0; LENGTH + 3];
        let Ok(LENGTH) = BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) else { return Form::Damaged };
        let (made, check) = bytes[..LENGTH].split_at(MADE);
        if !sha256(made).starts_with(check) {
            return Form::Damaged;
        }
        let (random, maker) = made.split_at(RANDOM);
        // Constant time: the duration of a comparison would reveal how to continue a guess.
        let is_ours = aws_lc_rs::constant_time::verify_slices_are_equal(
            &self.mac(OF_MAKER, random)[..MADE - RANDOM],
            maker,
        );
        if is_ours.is_ok() { Form::Ours } else { Form::Other }
    }

    /// Returns the form in which the database has the key with this digest.
    pub(crate) fn stored(&self, digest: &KeyDigest) -> [u8; 32] {
        self.mac(OF_KEYS, digest)
    }

    /// Returns a fingerprint that distinguishes secrets and reveals nothing else about them.
    pub(crate) fn check(&self) -> String {
        hex::encode(&self.mac(OF_CHECK, &[])[..8])
    }

    fn mac(&self, purpose: &[u8], message: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(purpose);
        context.update(message);
        let mut mac = [0; 32];
        mac.copy_from_slice(context.sign().as_ref()); // HMAC-SHA-256 always gives 32 bytes
        mac
    }
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).ok()?;
    Some(bytes)
}

pub(crate) fn sha256(bytes: &[u8]) -> KeyDigest {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref()); // SHA-256 always gives 32 bytes
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_key_of_ours_is_recognized_and_a_guess_or_a_slip_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let secret = KeySecret::make(&directory.path().join("one")).unwrap();
        let other = KeySecret::make(&directory.path().join("two")).unwrap();
        let key = secret.make_key().unwrap();
        assert_eq!(key.len(), 67);
        assert_eq!(secret.form(key.as_bytes()), Form::Ours);
        assert_eq!(other.form(key.as_bytes()), Form::Other, "made by another issuer");
        let star = format!("{}*{}", &key[..20], &key[21..]);
        for slip in [&key[..66], &format!("{key}A"), &star, "postern_"] {
            assert_eq!(secret.form(slip.as_bytes()), Form::Damaged, "{slip}");
        }
        let mut flipped = key.clone().into_bytes();
        flipped[30] = if flipped[30] == b'A' { b'B' } else { b'A' };
        assert_eq!(secret.form(&flipped), Form::Damaged);
        assert_eq!(secret.form(b"another-key"), Form::Other);
        assert_ne!(secret.make_key().unwrap(), key);
    }

    #[test]
    fn the_secret_is_a_private_file_and_decides_what_is_stored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SECRET_FILE);
        assert!(KeySecret::read(&path).unwrap().is_none());
        let made = KeySecret::make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read = KeySecret::read(&path).unwrap().unwrap();
        let digest = sha256(b"a key");
        assert_eq!((made.check(), made.stored(&digest)), (read.check(), read.stored(&digest)));
        assert_ne!(made.stored(&digest), digest);
        let other = KeySecret::make(&directory.path().join("other")).unwrap();
        assert_ne!((made.check(), made.stored(&digest)), (other.check(), other.stored(&digest)));
        std::fs::write(&path, "short").unwrap();
        assert!(KeySecret::read(&path).unwrap_err().to_string().contains("64 hex digits"));
    }
}
