//! Operators' access to keys: answers to their requests, which `changes` carries out, and copies of key files.

use super::at_rest::{AtRest, Read};
use super::files::{FileName, KeyPhase, TokenKey};
use super::{KeyStore, KeysError, Shelf};
use crate::accounts::api_key::{KeySecret, SECRET_FILE};
use crate::config::Keys;
use crate::control::{KeyContent, KeyRequest, Line, Refused, TokenKeyView};
use crate::database::postgres::Server;
use crate::{Config, StartError};
use postern_daemon::files::{DataDir, private_file, sync_name};
use postern_token::key_file::{is_encrypted, is_reference};
use postern_token::{SignError, UnixSeconds};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Maximum attempts to read a file, which a rotation may rename between finding and reading it.
const MOST_ATTEMPTS: usize = 5;

/// Answers a request on the files of an issuer that is not running, as holding the lock proves.
pub(crate) fn answer(lock: DataDir, config: &Config, request: KeyRequest) -> Result<Vec<Line>, Refused> {
    config.check()?; // a database is given no key without a passphrase
    let (schedule, server) = (config.keys.schedule()?, config.server()?);
    let mut store = KeyStore::of(lock, AtRest::of(&config.keys)?, server)?;
    store.carry_out(request, &schedule, UnixSeconds::now())
}

/// Returns the secret of the API keys in the database of `server`, which is made if there is none. It is encrypted like a key.
pub(crate) fn shared_secret(server: Arc<Server>, keys: &Keys) -> Result<KeySecret, StartError> {
    // `Config::check` has refused a configuration without one.
    let at_rest = AtRest::under(keys.passphrase_file.as_deref().unwrap_or(Path::new("")))?;
    Ok(held_secret(&Shelf::in_database(server)?, &at_rest)?)
}

impl KeyStore {
    /// Returns the secret of the API keys, if it is in the database with the keys.
    pub(crate) fn api_key_secret(&self) -> Result<Option<KeySecret>, KeysError> {
        if !self.is_shared() {
            return Ok(None);
        }
        held_secret(&self.shelf, &self.at_rest).map(Some)
    }
}

fn held_secret(shelf: &Shelf, at_rest: &AtRest) -> Result<KeySecret, KeysError> {
    shelf.hold()?;
    let secret = secret_in(shelf, at_rest);
    shelf.release();
    secret
}

fn secret_in(shelf: &Shelf, at_rest: &AtRest) -> Result<KeySecret, KeysError> {
    let path = shelf.join(SECRET_FILE);
    let (unreadable, unwritable) = (KeysError::unreadable(&path), KeysError::unwritable(&path));
    match shelf.read(&path) {
        Ok(sealed) => {
            let parse = |plain: &[u8]| {
                let source = "it is not 64 hex digits".into();
                KeySecret::parse(plain).ok_or(KeysError::Corrupt { path: path.clone(), source })
            };
            let (secret, plain, is_current) = at_rest.decrypt(&path, &sealed, parse)?;
            if !is_current {
                shelf.replace(&path, &at_rest.content(&plain)?).map_err(unwritable)?;
            }
            Ok(secret)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let secret = KeySecret::random().ok_or(KeysError::Generate(SignError::NoRandomness))?;
            let text = secret.text();
            let sealed = at_rest.content(text.as_bytes())?;
            shelf.write(&path, &sealed).map_err(unwritable)?;
            Ok(secret)
        }
        Err(error) => Err(unreadable(error)),
    }
}

/// The content of a copy of a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The file's content, encrypted or not.
    AsItIs,
    /// The key, decrypted, as gateways need it.
    Plain,
}

/// A copy of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The path of the copy.
    pub path: PathBuf,
    /// `true` if a passphrase is needed to read it.
    pub is_encrypted: bool,
}

/// Copies the file of one of `keys` to `target`, a new file (mode 0600), or under its own name into `target`, a directory.
/// The issuer may be running.
///
/// # Errors
/// A sentence for the operator. An incomplete file at `target` is removed.
pub fn export(config: &Config, id: &str, form: Form, target: &Path) -> Result<Exported, Refused> {
    let at_rest = AtRest::of(&config.keys)?;
    let shelf = match config.server()? {
        None => Shelf::Directory(config.keys.directory.clone()),
        Some(server) => Shelf::in_database(server)?,
    };
    for _ in 0..MOST_ATTEMPTS {
        let path = find(&shelf, id)?;
        if is_reference(&path) {
            return Err(Refused::runtime(format!(
                "the private key of the token key {id} is in the HSM ([keys.pkcs11]) and cannot leave it: its backup is the HSM's own. \
                 For another issuer with the same HSM copy {}, which holds no secret, and import it there",
                path.display()
            )));
        }
        let read =
            shelf.content(&path).and_then(|content| Ok((at_rest.read(&path, content.clone())?, content)));
        match read {
            // A rotation has renamed the file.
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

/// Returns the file of the key whose id begins with `id`.
fn find(shelf: &Shelf, id: &str) -> Result<PathBuf, Refused> {
    let named = |path: &PathBuf| FileName::parse(path).is_some_and(|name| is_named(&name.id, id));
    shelf.key_files().map_err(unreadable)?.into_iter().find(named).ok_or_else(|| unknown(id))
}

/// Converts an error for an operator who copies a key; the advice for a start does not apply.
fn unreadable(error: KeysError) -> Refused {
    match error {
        KeysError::Unreadable { path, source } => Refused::runtime(format!(
            "cannot read {}: {source}; nothing was copied: run this as the issuer's user or as root",
            path.display()
        )),
        other => other.into(),
    }
}

/// Returns a key as operators see it.
pub(super) fn shown(key: &TokenKey, phase: KeyPhase) -> TokenKeyView {
    TokenKeyView {
        id: key.signing.id().short(),
        token_type: key.signing.token_type().code(),
        phase: phase.as_str().to_owned(),
        in_use_from: key.life.not_before,
        issues_until: key.life.issue_until,
        leaves_at: key.life.not_after,
        file: FileName::of(key).text,
    }
}

/// `true` if `id`, the first eight digits or more, names the key whose id is or begins with `known`.
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
    let opened = private_file().write(true).create_new(true).open(&target);
    let mut file = opened.map_err(|error| Refused::usage(sentence(&error)))?;
    let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| sync_name(&target));
    if written.is_err() {
        let _ = std::fs::remove_file(&target); // the first error is the one to report
    }
    written.map_err(|error| Refused::runtime(sentence(&error)))?;
    Ok(Exported { path: target, is_encrypted: is_encrypted(content) })
}

/// Reads an exported file for [`KeyRequest::Import`], as the user who runs the command. An encrypted file is decrypted here, with
/// the passphrases of `passphrase_file` or of `keys`; the issuer encrypts the key by its own settings.
///
/// # Errors
/// A sentence for the operator: a start would reject the file.
pub fn to_import(path: &Path, keys: &Keys, passphrase_file: Option<&Path>) -> Result<KeyRequest, Refused> {
    let content = std::fs::read(path).map(Zeroizing::new).map_err(|error| {
        Refused::usage(format!("cannot read {}: {error}; nothing was imported", path.display()))
    })?;
    let at_rest = match passphrase_file {
        _ if is_reference(path) => AtRest::of(keys)?,
        _ if !is_encrypted(&content) => AtRest::default(),
        Some(file) => AtRest::under(file)?,
        None => AtRest::of(keys)?,
    };
    let Read { plain, .. } = at_rest.read(path, super::files::content(path)?)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(KeyRequest::Import { name, content: KeyContent(hex::encode(&*plain)) })
}

impl From<KeysError> for Refused {
    fn from(error: KeysError) -> Self {
        Self::runtime(error.to_string())
    }
}
