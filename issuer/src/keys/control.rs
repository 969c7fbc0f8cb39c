//! How an operator sees and changes keys: the requests, the views that answer them, and copies of key files. `changes` carries it out.

use super::at_rest::{AtRest, Read};
use super::{KeyStore, KeysError, content, key_files, load, name_of, parse_name};
use crate::Config;
use crate::config::Keys;
use crate::control::{Line, Refused};
use crate::keyring::KeyView;
use postern_daemon::exit;
use postern_daemon::files::{DataDir, sync_name};
use postern_token::UnixSeconds;
use postern_token::key_file::{is_encrypted, is_reference};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zeroize::{Zeroize, Zeroizing};

/// A file may be renamed between finding and reading it, once a rotation.
const MOST_ATTEMPTS: usize = 5;

/// What an operator asks about token keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRequest {
    /// Every key that has not expired.
    List,
    /// A successor that takes over out of turn.
    Rotate {
        /// Of this type; without it, of each type that is issued.
        token_type: Option<u16>,
        /// In how long it takes over; without it, after `publish_ahead`.
        in_seconds: Option<u64>,
    },
    /// An end of one key, or of all, at once.
    Retire {
        /// The first eight digits of its id, or all; without it, of every key.
        id: Option<String>,
        /// Whether gateways refuse its tokens at once, and not after their grace.
        revokes: bool,
    },
    /// A key from a file that was exported.
    Import {
        /// The file's name, with the key's times.
        name: String,
        /// What the file holds.
        content: KeyContent,
    },
}

/// What a plain key file holds, in hex on its way to the issuer. Anyone who has it can issue tokens, so `Debug` shows nothing, and it
/// is wiped when dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyContent(String);

impl KeyContent {
    /// Nothing if these are no hex digits.
    pub(super) fn bytes(&self) -> Option<Zeroizing<Vec<u8>>> {
        hex::decode(&self.0).ok().map(Zeroizing::new)
    }
}

impl Drop for KeyContent {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for KeyContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyContent(redacted)")
    }
}

/// A token key as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenKeyView {
    /// The first eight hex digits of its id.
    pub id: String,
    /// The code of its token type.
    #[serde(rename = "type")]
    pub token_type: u16,
    /// "upcoming", "newest" or "older".
    pub phase: String,
    /// The first second in which clients use it.
    pub in_use_from: UnixSeconds,
    /// The first second in which its successor is used instead.
    pub issues_until: UnixSeconds,
    /// The first second in which its tokens are no longer good.
    pub leaves_at: UnixSeconds,
    /// The name of its file, in `keys.directory`.
    pub file: String,
}

impl From<KeyView> for TokenKeyView {
    fn from(KeyView { id, token_type, ending, phase, life }: KeyView) -> Self {
        Self {
            id: id.short(),
            token_type: token_type.code(),
            phase: phase.as_str().to_owned(),
            in_use_from: life.not_before,
            issues_until: life.issue_until,
            leaves_at: life.not_after,
            file: name_of(id, ending, &life),
        }
    }
}

/// Answers on the files of an issuer that does not run; the lock says so.
pub(crate) fn answer(lock: DataDir, config: &Config, request: KeyRequest) -> Result<Vec<Line>, Refused> {
    let schedule = config
        .keys
        .schedule()
        .map_err(|error| Refused { sentence: error.to_string(), code: error.exit_code() })?;
    let mut store = KeyStore::of(lock, AtRest::of(&config.keys)?)?;
    store.follow(config.follows());
    store.carry_out(request, &schedule, UnixSeconds::now())
}

/// What a copy of a key file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// What the file holds, encrypted or not.
    AsItIs,
    /// The key, decrypted, as gateways need it.
    Plain,
}

/// A copy of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The copy.
    pub path: PathBuf,
    /// Whether a passphrase is needed to read it.
    pub is_encrypted: bool,
}

/// Copies the file of one of `keys` to `target`, a new file (mode 0600), or under its own name into `target`, a directory.
/// The issuer may run.
///
/// # Errors
/// A sentence for the operator. What was begun at `target` is removed.
pub fn export(keys: &Keys, id: &str, form: Form, target: &Path) -> Result<Exported, Refused> {
    let at_rest = AtRest::of(keys)?;
    for _ in 0..MOST_ATTEMPTS {
        let path = find(&keys.directory, id)?;
        if is_reference(&path) {
            return Err(Refused::runtime(format!(
                "the private key of the token key {id} is in the HSM ([keys.pkcs11]) and cannot leave it: its backup is the HSM's own. \
                 For another issuer with the same HSM copy {}, which holds no secret, and import it there",
                path.display()
            )));
        }
        let read = content(&path).and_then(|content| Ok((at_rest.read(&path, content.clone())?, content)));
        match read {
            // A rotation has renamed it meanwhile.
            Err(KeysError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(error)),
            Ok((Read { plain, .. }, _)) if form == Form::Plain => return copy(&path, &plain, target),
            Ok((_, content)) => return copy(&path, &content, target),
        }
    }
    Err(Refused::runtime(format!(
        "the file of the token key {id} cannot be read while keys change: try again"
    )))
}

/// The file of the one key whose id begins so.
fn find(directory: &Path, id: &str) -> Result<PathBuf, Refused> {
    let named = |path: &PathBuf| parse_name(path).is_some_and(|(_, known)| is_named(&known, id));
    key_files(directory).map_err(unreadable)?.into_iter().find(named).ok_or_else(|| unknown(id))
}

/// The sentence for an operator who copies a key; that of a start would advise something else.
fn unreadable(error: KeysError) -> Refused {
    match error {
        KeysError::Unreadable { path, source } => Refused::runtime(format!(
            "cannot read {}: {source}; nothing was copied: run this as the issuer's user or as root",
            path.display()
        )),
        other => other.into(),
    }
}

/// Whether `id`, the first eight digits or all of them, names the key whose id is or begins with `known`.
pub(super) fn is_named(known: &str, id: &str) -> bool {
    let id = id.to_ascii_lowercase();
    id.len() >= 8 && (known.starts_with(&id) || id.starts_with(known))
}

pub(super) fn unknown(id: &str) -> Refused {
    Refused::usage(format!(
        "no token key has the id {id:?}: `postern issuer key list` has the eight digits of each"
    ))
}

fn copy(path: &Path, content: &[u8], target: &Path) -> Result<Exported, Refused> {
    let target = match path.file_name() {
        Some(name) if target.is_dir() => target.join(name),
        _ => target.to_owned(),
    };
    let sentence = |error: &io::Error| {
        format!("the key cannot be copied to {}: {error}; name a new file", target.display())
    };
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target);
    let mut file = opened.map_err(|error| Refused::usage(sentence(&error)))?;
    let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| sync_name(&target));
    if written.is_err() {
        let _ = std::fs::remove_file(&target); // the first error is the one to report
    }
    written.map_err(|error| Refused::runtime(sentence(&error)))?;
    Ok(Exported { path: target, is_encrypted: is_encrypted(content) })
}

/// Reads an exported file for [`KeyRequest::Import`], as the user who runs the command. One that is encrypted is decrypted here, with
/// the passphrases of `passphrase_file` or of `keys`; the issuer encrypts it by its own setting.
///
/// # Errors
/// What a start would refuse of it, in a sentence.
pub fn to_import(path: &Path, keys: &Keys, passphrase_file: Option<&Path>) -> Result<KeyRequest, Refused> {
    let content = std::fs::read(path).map(Zeroizing::new).map_err(|error| Refused {
        sentence: format!("cannot read {}: {error}; nothing was imported", path.display()),
        code: exit::USAGE,
    })?;
    let at_rest = match passphrase_file {
        _ if is_reference(path) => AtRest::of(keys)?,
        _ if !is_encrypted(&content) => AtRest::default(),
        Some(file) => AtRest::under(file)?,
        None => AtRest::of(keys)?,
    };
    let Read { plain, .. } = load(path, &at_rest)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(KeyRequest::Import { name, content: KeyContent(hex::encode(&*plain)) })
}

impl From<KeysError> for Refused {
    fn from(error: KeysError) -> Self {
        Self::runtime(error.to_string())
    }
}
