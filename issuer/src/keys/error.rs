//! What is wrong with key files, and what an operator does about it.

use postern_daemon::files::DataDirError;
use postern_pkcs11::{HsmError, LoadError};
use postern_token::key_file::ReferenceError;
use postern_token::{KeyError, SignError, TokenType};
use std::io;
use std::path::PathBuf;

/// Why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The directory is in use, or cannot be made.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    /// A file cannot be read.
    #[error(
        "cannot read {}: {source}; the issuer does not start without a key that it once published: make \
         the file readable for its user, or restore it from a backup",
        path.display()
    )]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file's name does not hold the times of its key.
    #[error(
        "the name of the key file {} is not NOT_BEFORE-ISSUE_UNTIL-NOT_AFTER-ID.p8 (or .pkcs11, .type1, .type5; times in Unix seconds): give it \
         back the name it was made with, or move it elsewhere",
        path.display()
    )]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// Others can read a key.
    #[error(
        "the key file {} can be read by other users (mode {mode:04o}), and anyone who has it can issue tokens: run chmod \
         600 on it; if others may have read it, remove it so that a new key is made",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file does not hold a key.
    #[error(
        "the key file {} is corrupt: {source}; restore it from a backup, or remove it and void the tokens it issued",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: SignError,
    },
    /// A file is encrypted, and there is no passphrase.
    #[error(
        "the key file {} is encrypted, and no passphrase is set: name the file that has it with [keys] passphrase_file, or put a \
         decrypted copy in the key file's place (`openssl pkcs8`; docs/operate/install.md, \"Encrypted key files\")",
        path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// No passphrase decrypts a file.
    #[error(
        "no passphrase in {} ([keys] passphrase_file; --passphrase-file of an import) decrypts the key file {}, unless that is \
         damaged. Nothing was changed: add the passphrase that it was encrypted with as a line below the first, or restore the key \
         file from a backup",
        passphrases.display(),
        path.display()
    )]
    Undecryptable {
        /// The key file.
        path: PathBuf,
        /// The file with the passphrases.
        passphrases: PathBuf,
    },
    /// The passphrase file cannot be used.
    #[error(
        "the passphrase file {} ([keys] passphrase_file; --passphrase-file of an import) {reason}. Its first line is the passphrase of the key files, such as the output of \
         \"openssl rand -base64 32\"; further lines are earlier ones",
        path.display()
    )]
    PassphraseFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The module of the HSM cannot be loaded.
    #[error("the PKCS#11 module {} ([keys.pkcs11] module): {source}", path.display())]
    Module {
        /// The module.
        path: PathBuf,
        /// What is wrong with it.
        source: LoadError,
    },
    /// The file with the PIN cannot be used.
    #[error("the PIN file {} ([keys.pkcs11] pin_file) {reason}", path.display())]
    PinFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file refers to an HSM, and there is none.
    #[error(
        "the key file {} refers to a private key in an HSM, and [keys.pkcs11] is not set: set it. For new keys in files add \
         new_keys = false there, and take it out when the last of these keys has left (`postern issuer key list`)",
        path.display()
    )]
    NoHsm {
        /// The file.
        path: PathBuf,
    },
    /// A file does not refer to a key.
    #[error(
        "the key file {} is corrupt: {source}; restore it from a backup, or remove it and void the tokens it issued",
        path.display()
    )]
    Reference {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ReferenceError,
    },
    /// The HSM did not do what was asked.
    #[error(transparent)]
    Hsm {
        /// Why.
        source: HsmError,
    },
    /// The HSM made a key that is not usable.
    #[error("the HSM made a key that is none of type 2: {0}")]
    HsmKey(KeyError),
    /// The HSM made a key, and does not sign with it.
    #[error("the HSM made a key, and a signature to try it failed, so it is destroyed: {why}")]
    Trial {
        /// Why.
        why: String,
    },
    /// A file holds a sound key, but not the one it was made for.
    #[error(
        "the key file {} holds another key than its name states: restore the right one from a backup, or move the file \
         elsewhere",
        path.display()
    )]
    OtherKey {
        /// The file.
        path: PathBuf,
    },
    /// Two keys share a truncated id.
    #[error(
        "the key file {} and {other} share the last byte of their key ids, by which requests name a key: move the \
         older of the two elsewhere",
        path.display()
    )]
    Collision {
        /// The file.
        path: PathBuf,
        /// The name of the other.
        other: String,
    },
    /// The directory of copies, at an issuer that follows another one.
    #[error(
        "cannot read {}, where the first issuer's key files are copied to ([group] follow): {source}; make it readable for the issuer's \
         user", path.display()
    )]
    Copies {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A key has not been copied.
    #[error(
        "the token key of type {token_type} to come is not among the copies in {}, and the first issuer should have made it by now ([keys] \
         publish_ahead, rotate_every): copy its key files, and give both issuers the same times", directory.display()
    )]
    NotCopied {
        /// The directory of copies.
        directory: PathBuf,
        /// The type.
        token_type: TokenType,
    },
    /// No key could be made.
    #[error("cannot make a token key: {0}")]
    Generate(SignError),
    /// Every new key collided.
    #[error(
        "cannot make a token key whose truncated id differs from those of the {alive} keys alive; raise \
         keys.rotate_every, so that fewer are"
    )]
    NoDistinctKey {
        /// How many keys there are.
        alive: usize,
    },
    /// A key could not be written.
    #[error("cannot write the key file {}: {source}; free some space, or make the directory writable", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl KeysError {
    /// Whether it is over once the HSM is in order: no reason not to start.
    pub(crate) const fn is_of_hsm(&self) -> bool {
        matches!(self, Self::Hsm { .. } | Self::HsmKey(_) | Self::Trial { .. })
    }
}
