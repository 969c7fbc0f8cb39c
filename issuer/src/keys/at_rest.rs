//! How key files are kept: plain, or encrypted under the passphrase in a file (`keys.passphrase_file`).
//!
//! The first line of that file encrypts. Each line decrypts, so that a passphrase is changed by a line above the old one: a start
//! encrypts under the first line what is plain or under another, file by file, and one that is killed meanwhile leaves files
//! that the next reads.

use super::in_hsm::InHsm;
use super::set_aside;
use super::{KeyStore, KeysError, TokenKey, parse};
use crate::config::Keys;
use postern_daemon::files::{replace_secret, write_private};
use postern_token::key_file::{self, Passphrase, is_encrypted};
use std::borrow::Cow;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The shortest passphrase in bytes: a thief of the files has all the time to guess.
const LEAST: usize = 16;
/// The longest in bytes: OpenSSL cuts what it reads from a file.
const MOST: usize = 1_000;

/// How this issuer's key files are written and read.
#[derive(Debug, Default)]
pub(crate) struct AtRest {
    passphrases: Option<Passphrases>,
    pub(super) in_hsm: Option<InHsm>,
}

#[derive(Debug)]
struct Passphrases {
    file: PathBuf,
    present: Passphrase,
    earlier: Vec<Passphrase>,
}

/// A key of a file that was read.
pub(super) struct Read {
    pub(super) key: TokenKey,
    /// What a plain file of it holds.
    pub(super) plain: Zeroizing<Vec<u8>>,
    /// Whether the file is as this issuer would write it.
    pub(super) is_current: bool,
}

/// A file that was not found as this issuer writes it.
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
    /// As the configuration has it. Reads the passphrase file and that of the PIN, and loads the module of the HSM.
    pub(crate) fn of(keys: &Keys) -> Result<Self, KeysError> {
        let in_hsm = keys.pkcs11.as_ref().map(InHsm::of).transpose()?;
        let at_rest = keys.passphrase_file.as_deref().map_or_else(|| Ok(Self::default()), Self::under)?;
        Ok(Self { in_hsm, ..at_rest })
    }

    /// Under the passphrases in `file`.
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

    /// The key of a file with this content.
    pub(super) fn read(&self, path: &Path, content: Zeroizing<Vec<u8>>) -> Result<Read, KeysError> {
        if key_file::is_reference(path) {
            return self.refer(path, content);
        }
        let passphrases = match &self.passphrases {
            None if is_encrypted(&content) => {
                return Err(KeysError::Encrypted { path: path.to_owned() });
            }
            Some(passphrases) if is_encrypted(&content) => passphrases,
            of_plain => {
                let key = parse(path, &content)?;
                return Ok(Read { key, plain: content, is_current: of_plain.is_none() });
            }
        };
        let each = [&passphrases.present].into_iter().chain(&passphrases.earlier).enumerate();
        for (index, passphrase) in each {
            let Some(plain) = passphrase.decrypt(&content) else { continue };
            match parse(path, &plain) {
                Ok(key) => return Ok(Read { key, plain, is_current: index == 0 }),
                Err(KeysError::Corrupt { .. }) => {} // a wrong passphrase that passed for the right one
                Err(error) => return Err(error),
            }
        }
        Err(KeysError::Undecryptable { path: path.to_owned(), passphrases: passphrases.file.clone() })
    }

    /// What the file of a key holds, from what a plain one does.
    pub(super) fn content<'p>(&self, plain: &'p [u8]) -> Result<Cow<'p, [u8]>, KeysError> {
        match &self.passphrases {
            None => Ok(plain.into()),
            Some(passphrases) => Ok(passphrases.present.encrypt(plain).map_err(KeysError::Generate)?.into()),
        }
    }

    /// Writes the file of a new key.
    pub(super) fn write(&self, path: PathBuf, plain: &[u8]) -> Result<(), KeysError> {
        let content = match key_file::is_reference(&path) {
            true => plain.into(), // it holds no secret
            false => self.content(plain)?,
        };
        write_private(&path, &content).map_err(|source| KeysError::Unwritable { path, source })
    }

    /// Encrypts a file in its place.
    fn renew(&self, Stale { path, plain }: Stale) -> Result<(), KeysError> {
        let content = self.content(&plain)?;
        replace_secret(&path, &content).map_err(|source| KeysError::Unwritable { path, source })
    }
}

/// What a file holds that other users may not read; or why not, as the end of a sentence.
pub(super) fn read_secret(file: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let unreadable = |error| format!("cannot be read: {error}");
    let mode = std::fs::metadata(file).map_err(unreadable)?.permissions().mode() & 0o777;
    // Not the group's bits: those of systemd's credentials are the mask of an access list, and others' mounts have a group.
    if mode & 0o007 != 0 {
        return Err(format!("is open to every user (mode {mode:04o}): run chmod 600 on it"));
    }
    std::fs::read(file).map(Zeroizing::new).map_err(unreadable)
}

impl KeyStore {
    /// Encrypts what is plain, or under an earlier passphrase. Every key has been read by then: a wrong passphrase changes no file.
    pub(crate) fn encrypt(&mut self) -> Result<(), KeysError> {
        let Some(passphrases) = &self.at_rest.passphrases else { return Ok(()) };
        let mut renewed = 0;
        for stale in std::mem::take(&mut self.stale) {
            self.at_rest.renew(stale)?;
            renewed += 1;
        }
        let directory = self.directory.path();
        let unreadable = |source| KeysError::Unreadable { path: directory.to_owned(), source };
        for (path, original) in set_aside::files(directory).map_err(unreadable)? {
            match self.encrypt_aside(&path, &original, passphrases.earlier.is_empty()) {
                Ok(is_renewed) => renewed += usize::from(is_renewed),
                Err(error) => {
                    tracing::warn!("{}, which was set aside, stays as it is: {error}", path.display())
                }
            }
        }
        if renewed > 0 {
            tracing::info!(
                "key files are encrypted now with the passphrase in the first line of {}: {renewed} were not; copies made of them \
                 before are as they were",
                passphrases.file.display()
            );
        }
        Ok(())
    }

    /// The same of the file of an expired or retired key, which had the name `original`.
    fn encrypt_aside(&self, path: &Path, original: &Path, only_plain: bool) -> Result<bool, KeysError> {
        let unreadable = |source| KeysError::Unreadable { path: path.to_owned(), source };
        let content = std::fs::read(path).map(Zeroizing::new).map_err(unreadable)?;
        let is_key = key_file::token_type(original).is_some();
        if !is_key || only_plain && is_encrypted(&content) {
            return Ok(false);
        }
        let Read { plain, is_current, .. } = self.at_rest.read(original, content)?;
        if !is_current {
            self.at_rest.renew(Stale { path: path.to_owned(), plain })?;
        }
        Ok(!is_current)
    }
}

#[cfg(test)]
mod tests;
