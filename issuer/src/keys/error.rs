//! Errors of key files, with what an operator can do about them.

use crate::hsm::{HsmError, LoadError};
use postern_daemon::files::DataDirError;
use postern_token::{KeyError, SignError};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// An error that prevents the use of the keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The directory is in use, or cannot be created.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    #[error(
        "cannot read {path}: {source}; the issuer does not start without a key that it once published: make \
         the file readable for its user, or restore it from a backup"
    )]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "the name of the key file {path} is not NOT_BEFORE-ISSUE_UNTIL-NOT_AFTER-ID.p8 (or .pkcs11, .type1, .type5; times in Unix seconds): give it \
         back the name it was made with, or move it elsewhere"
    )]
    Name { path: PathBuf },
    #[error(
        "the key file {path} can be read by other users (mode {mode:04o}), and anyone who has it can issue tokens: run chmod \
         600 on it; if others may have read it, end it then with postern issuer key retire --now --yes, which removing it does not"
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error(
        "the key file {path} is corrupt: {source}; restore it from a backup, or remove it and void the tokens it issued"
    )]
    Corrupt { path: PathBuf, source: Box<dyn Error + Send + Sync> },
    #[error(
        "the key file {path} is encrypted, and no passphrase is set: name the file that has it with [keys] passphrase_file, or put a \
         decrypted copy in the key file's place (`openssl pkcs8`; docs/operate/install.md, \"Encrypted key files\")"
    )]
    Encrypted { path: PathBuf },
    #[error(
        "no passphrase in {passphrases} ([keys] passphrase_file; --passphrase-file of an import) decrypts the key file {path}, unless that is \
         damaged. Nothing was changed: add the passphrase that it was encrypted with as a line below the first, or restore the key \
         file from a backup"
    )]
    Undecryptable { path: PathBuf, passphrases: PathBuf },
    #[error(
        "the passphrase file {path} ([keys] passphrase_file; --passphrase-file of an import) {reason}. Its first line is the passphrase of the key files, such as the output of \
         \"openssl rand -base64 32\"; further lines are earlier ones"
    )]
    PassphraseFile { path: PathBuf, reason: String },
    #[error("the PKCS#11 module {path} ([keys.pkcs11] module): {source}")]
    Module { path: PathBuf, source: LoadError },
    #[error("the PIN file {path} ([keys.pkcs11] pin_file) {reason}")]
    PinFile { path: PathBuf, reason: String },
    #[error(
        "the key file {path} refers to a private key in an HSM, and [keys.pkcs11] is not set: set it. For new keys in files add \
         new_keys = false there, and take it out when the last of these keys has left (`postern issuer key list`)"
    )]
    NoHsm { path: PathBuf },
    /// An operation of the HSM failed.
    #[error(transparent)]
    Hsm(#[from] HsmError),
    #[error("the HSM made a key that is none of type 2: {0}")]
    HsmKey(KeyError),
    #[error("the HSM made a key, and a signature to try it failed, so it is destroyed: {why}")]
    Trial { why: String },
    #[error(
        "the key file {path} holds another key than its name states: restore the right one from a backup, or move the file \
         elsewhere"
    )]
    OtherKey { path: PathBuf },
    #[error(
        "the key file {path} and {other} share the last byte of their key ids, by which requests name a key: move the \
         older of the two elsewhere"
    )]
    Collision { path: PathBuf, other: String },
    #[error(
        "{path} is a token key of an issuer with a database of its own, and [accounts] database names another one, which does not have it: \
         move its accounts and keys there (`postern issuer migrate --to postgres`), or the key files elsewhere, which voids their tokens"
    )]
    Left { path: PathBuf },
    #[error("the token keys in the database cannot be used ({place}): {reason}")]
    Database { place: PathBuf, reason: String },
    #[error("cannot make a token key: {0}")]
    Generate(SignError),
    #[error(
        "cannot make a token key whose truncated id differs from those of the {alive} keys alive; raise \
         keys.rotate_every, so that fewer are"
    )]
    NoDistinctKey { alive: usize },
    #[error("cannot write the key file {path}: {source}; free some space, or make the directory writable")]
    Unwritable { path: PathBuf, source: io::Error },
}

impl KeysError {
    /// Converts an error of reading `path`. A directory that is none has no key that could be restored.
    pub(super) fn unreadable(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::NotADirectory => DataDirError::Unusable { path: path.to_owned(), source }.into(),
            _ => Self::Unreadable { path: path.to_owned(), source },
        }
    }

    pub(super) fn unwritable(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Unwritable { path: path.to_owned(), source }
    }

    /// `true` if the error ends once the HSM works, so that it does not prevent a start.
    pub(crate) const fn is_of_hsm(&self) -> bool {
        matches!(self, Self::Hsm(_) | Self::HsmKey(_) | Self::Trial { .. })
    }
}
