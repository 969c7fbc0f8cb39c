//! Key files at rest: plain, or encrypted with the passphrase in a file (`keys.passphrase_file`).
//!
//! The first line of that file encrypts, and each line decrypts. To change the passphrase, put a new line above the old one: a
//! start encrypts files that are plain or under another passphrase, one by one. If it is killed, the next start reads all files.

use super::KeysError;
use super::Shelf;
use super::files::{TokenKey, named};
use super::in_hsm::{Begun, InHsm};
use crate::config::{Keys, read_secret};
use crate::hsm::{HsmError, KeyName};
use postern_token::key_file::{self, Passphrase, Reference, ReferenceError, is_encrypted};
use postern_token::{SigningKey, TokenType};
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Minimum length of a passphrase in bytes: a thief of the files has unlimited time to guess.
const LEAST: usize = 16;
/// Maximum length of a passphrase in bytes: OpenSSL cuts what it reads from a file.
const MOST: usize = 1_000;

/// Settings for writing and reading this issuer's key files.
#[derive(Debug, Default)]
pub(crate) struct AtRest {
    pub(super) passphrases: Option<Passphrases>,
    pub(super) in_hsm: Option<InHsm>,
}

#[derive(Debug)]
pub(super) struct Passphrases {
    pub(super) file: PathBuf,
    present: Passphrase,
    pub(super) earlier: Vec<Passphrase>,
}

/// A new key, and the content of its file.
pub(super) struct Made {
    pub(super) signing: SigningKey,
    pub(super) content: Zeroizing<Vec<u8>>,
    pub(super) begun: Option<Begun>,
}

/// A key file that was read.
pub(super) struct Read {
    pub(super) key: TokenKey,
    /// The content of a plain file of the key.
    pub(super) plain: Zeroizing<Vec<u8>>,
    /// `true` if the file is as this issuer would write it.
    pub(super) is_current: bool,
}

/// A file that is not as this issuer would write it.
pub(super) struct Stale {
    pub(super) path: PathBuf,
    pub(super) plain: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stale({}, redacted)", self.path.display())
    }
}

impl AtRest {
    /// Creates the settings of a configuration. Reads the passphrase file and the PIN file, and loads the HSM's module.
    pub(crate) fn of(keys: &Keys) -> Result<Self, KeysError> {
        let in_hsm = keys.pkcs11.as_ref().map(InHsm::of).transpose()?;
        let at_rest = keys.passphrase_file.as_deref().map_or_else(|| Ok(Self::default()), Self::under)?;
        Ok(Self { in_hsm, ..at_rest })
    }

    /// Creates the settings with the passphrases in `file`.
    pub(super) fn under(file: &Path) -> Result<Self, KeysError> {
        let refused = |reason: String| KeysError::PassphraseFile { path: file.to_owned(), reason };
        let text = read_secret(file).map_err(refused)?;
        let mut lines = text.split(|byte| *byte == b'\n');
        let first = lines.next().unwrap_or_default();
        if !(LEAST..=MOST).contains(&first.len()) {
            return Err(refused(match first.len() {
                0 => "has nothing in its first line".to_owned(),
                length => format!(
                    "has {length} bytes in its first line, and a passphrase has from {LEAST} to {MOST}"
                ),
            }));
        }
        let earlier = lines.filter(|line| !line.is_empty()).map(Passphrase::new).collect();
        let passphrases = Passphrases { file: file.to_owned(), present: Passphrase::new(first), earlier };
        Ok(Self { passphrases: Some(passphrases), in_hsm: None })
    }

    /// Reads the key of a file with this content.
    pub(super) fn read(&self, path: &Path, content: Zeroizing<Vec<u8>>) -> Result<Read, KeysError> {
        if key_file::is_reference(path) {
            return self.refer(path, content);
        }
        if !is_encrypted(&content) {
            let key = parse(path, &content)?;
            return Ok(Read { key, plain: content, is_current: self.passphrases.is_none() });
        }
        let (key, plain, is_current) = self.decrypt(path, &content, |plain| parse(path, plain))?;
        Ok(Read { key, plain, is_current })
    }

    /// Decrypts and parses the content of a file. Also returns what was parsed, and `true` if the present passphrase decrypts it.
    pub(super) fn decrypt<T>(
        &self,
        path: &Path,
        content: &[u8],
        parse: impl Fn(&[u8]) -> Result<T, KeysError>,
    ) -> Result<(T, Zeroizing<Vec<u8>>, bool), KeysError> {
        let Some(passphrases) = &self.passphrases else {
            return Err(KeysError::Encrypted { path: path.to_owned() });
        };
        let each = [&passphrases.present].into_iter().chain(&passphrases.earlier).enumerate();
        for (index, passphrase) in each {
            let Some(plain) = passphrase.decrypt(content) else { continue };
            match parse(&plain) {
                Ok(parsed) => return Ok((parsed, plain, index == 0)),
                Err(KeysError::Corrupt { .. }) => {} // a wrong passphrase that decrypted by chance
                Err(error) => return Err(error),
            }
        }
        Err(KeysError::Undecryptable { path: path.to_owned(), passphrases: passphrases.file.clone() })
    }

    /// Makes a key, in the HSM or in memory, as configured for this type.
    pub(super) fn make(&self, shelf: &Shelf, token_type: TokenType) -> Result<Made, KeysError> {
        match &self.in_hsm {
            Some(in_hsm) if in_hsm.makes_keys && token_type == TokenType::BlindRsa2048 => {
                let (signing, reference, begun) = in_hsm.make(shelf)?;
                Ok(Made { signing, content: Zeroizing::new(reference.write()), begun: Some(begun) })
            }
            _ => {
                let secret = SigningKey::generate(token_type).map_err(KeysError::Generate)?;
                let signing = SigningKey::from_secret(token_type, &secret).map_err(KeysError::Generate)?;
                Ok(Made { signing, content: key_file::write(token_type, &secret), begun: None })
            }
        }
    }

    /// Reads the key that a file of this name and content refers to. Does not check that the HSM has it.
    fn refer(&self, path: &Path, content: Zeroizing<Vec<u8>>) -> Result<Read, KeysError> {
        let in_hsm = self.in_hsm.as_ref().ok_or_else(|| KeysError::NoHsm { path: path.to_owned() })?;
        let key = named(path, |_| in_hsm.key(&Reference::parse(&content)?).map_err(ReferenceError::Key))?;
        Ok(Read { key, plain: content, is_current: true })
    }

    /// Checks that the HSM has the key of a file that is being imported.
    pub(super) fn find(&self, content: &[u8]) -> Result<(), KeysError> {
        let name = Reference::parse(content).ok().and_then(|reference| KeyName::of(&reference).ok());
        match (&self.in_hsm, name) {
            (Some(in_hsm), Some(name)) => Ok(in_hsm.hsm.find(&name)?),
            _ => Ok(()),
        }
    }

    /// Destroys the key that a file refers to which is about to be deleted. Returns `true` if the file may be deleted.
    pub(super) fn release(&self, shelf: &Shelf, path: &Path, original: &Path) -> bool {
        if !key_file::is_reference(original) {
            return true;
        }
        let Ok(text) = shelf.read(path) else { return false }; // it may name a key
        let Ok(reference) = Reference::parse(&text) else { return true }; // it names no key
        let Some(in_hsm) = &self.in_hsm else { return false };
        match in_hsm.hsm.destroy(&reference.id) {
            Ok(0) => true,
            Ok(_) => {
                tracing::info!(
                    "the private key with the CKA_ID {} is destroyed in the HSM: its time was over a week ago ({})",
                    reference.id_hex(),
                    original.display()
                );
                true
            }
            Err(error @ HsmError::Key(_)) => {
                tracing::warn!(
                    "the private key with the CKA_ID {} cannot be destroyed, although its time is over: {error}. It is tried again",
                    reference.id_hex()
                );
                false
            }
            Err(_) => false, // readiness reports it
        }
    }

    /// Returns the content of a key's file, given that of a plain one.
    pub(super) fn content<'p>(&self, plain: &'p [u8]) -> Result<Cow<'p, [u8]>, KeysError> {
        match &self.passphrases {
            None => Ok(plain.into()),
            Some(passphrases) => Ok(passphrases.present.encrypt(plain).map_err(KeysError::Generate)?.into()),
        }
    }

    /// Writes the file of a new key, encrypted if there is a passphrase.
    pub(super) fn write(&self, shelf: &Shelf, path: &Path, plain: &[u8]) -> Result<(), KeysError> {
        let content = match key_file::is_reference(path) {
            true => plain.into(), // it contains no secret
            false => self.content(plain)?,
        };
        shelf.write(path, &content).map_err(|source| KeysError::Unwritable { path: path.to_owned(), source })
    }

    /// Encrypts a file in place.
    pub(super) fn renew(&self, shelf: &Shelf, Stale { path, plain }: Stale) -> Result<(), KeysError> {
        let content = self.content(&plain)?;
        shelf.replace(&path, &content).map_err(|source| KeysError::Unwritable { path, source })
    }
}

fn parse(path: &Path, plain: &[u8]) -> Result<TokenKey, KeysError> {
    named(path, |token_type| SigningKey::from_file(token_type, plain))
}

/// Reads a key file.
pub(super) fn load(shelf: &Shelf, path: &Path, at_rest: &AtRest) -> Result<Read, KeysError> {
    at_rest.read(path, shelf.content(path)?)
}

#[cfg(test)]
mod tests;
