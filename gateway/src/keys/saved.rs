//! The issuer's keys on disk, which allow a gateway to start while the issuer is unreachable.
//!
//! The file has the keys with this gateway's own windows: for a key without not-after, the window counts from when the key was
//! first seen; for a key that is no longer listed, the window is shortened. A restart therefore extends no key. A shortened key
//! also has the directory's own not-after in a separate field, because its spent records are kept until then.

use crate::health::plural;
use crate::keys::keyring::Keyring;
use crate::keys::secrets::Accepted;
use postern_daemon::files;
use postern_token::{DirectoryKey, TrustedKey, UnixSeconds, Window};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest accepted file, in bytes; a handful of keys is far smaller.
const LARGEST: u64 = 1 << 20;
const VERSION: u32 = 1;

pub(crate) struct Saved {
    path: PathBuf,
    /// URL of the directory that the keys belong to.
    directory: String,
    written: Vec<u8>,
    /// `true` once a failure to write has been logged.
    complained: bool,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    directory: String,
    keys: Vec<SavedKey>,
}

/// A key whose not-before and not-after are its window.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
struct SavedKey {
    #[serde(flatten)]
    key: DirectoryKey,
    directory_not_after: UnixSeconds,
}

impl Saved {
    pub(crate) fn new(path: PathBuf, directory: String) -> Self {
        Self { path, directory, written: Vec::new(), complained: false }
    }

    /// Loads the saved keys. Logs the reason if they are unusable, and returns an empty keyring. Blocks on the disk.
    pub(crate) fn load(&mut self, accepted: &mut Accepted) -> Keyring {
        match self.read(accepted) {
            Ok(None) => Keyring::default(),
            Ok(Some(keyring)) => {
                let keys = plural(keyring.len(), "token key");
                tracing::info!(path = %self.path.display(), "{keys} of the last run, in use until the issuer answers");
                keyring
            }
            Err(reason) => {
                tracing::warn!(
                    path = %self.path.display(), %reason,
                    "the saved keys of the issuer are not used: the gateway waits for the issuer's directory, and then \
                     rewrites the file"
                );
                Keyring::default()
            }
        }
    }

    fn read(&mut self, accepted: &mut Accepted) -> Result<Option<Keyring>, String> {
        let meta = match fs::metadata(&self.path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        // Anyone who can write this file decides which issuer's tokens are accepted.
        if meta.mode() & 0o022 != 0 {
            return Err(format!("others may write it (mode {:o}); chmod 600 it", meta.mode() & 0o7777));
        }
        if !meta.is_file() || meta.len() > LARGEST {
            return Err("it is not a file of keys".to_owned());
        }
        let bytes = fs::read(&self.path).map_err(|error| error.to_string())?;
        let document: Document =
            serde_json::from_slice(&bytes).map_err(|error| format!("it is damaged: {error}"))?;
        if document.version != VERSION {
            return Err(format!("it has version {}, and this program writes {VERSION}", document.version));
        }
        if document.directory != self.directory {
            // Not a fault, but the operator's choice: the issuer has moved, or is another one.
            tracing::info!(
                path = %self.path.display(),
                "the saved keys are of another directory, {:?}: the gateway waits for its own", document.directory
            );
            return Ok(None);
        }
        let mut saved = document.keys;
        // The secret of a private key may have been removed since.
        saved.retain(|saved| !saved.key.token_type().is_private() || accepted.has_secret(&saved.key));
        let trusted = |saved: &SavedKey| trusted(saved, accepted);
        let keys: Result<Vec<TrustedKey>, String> = saved.iter().map(trusted).collect();
        let keyring = Keyring::of(keys.map_err(|reason| format!("it is damaged: {reason}"))?);
        self.written = bytes;
        Ok(Some(keyring))
    }

    /// Saves these keys unless the file already contains them.
    pub(crate) async fn keep(&mut self, keyring: &Keyring) {
        let document = Document {
            version: VERSION,
            directory: self.directory.clone(),
            keys: keyring.iter().map(entry).collect(),
        };
        // Strings and numbers only, which JSON can always represent.
        let bytes = serde_json::to_vec_pretty(&document).unwrap_or_default();
        // After a failure the file may be gone.
        if bytes == self.written && !self.complained {
            return;
        }
        let (path, copy, is_outdated) = (self.path.clone(), bytes.clone(), self.is_outdated(&document));
        let written = tokio::task::spawn_blocking(move || {
            write(&path, &copy).inspect_err(|_| {
                if is_outdated
                    && let Err(error) = fs::remove_file(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::error!(
                        path = %path.display(), %error,
                        "the saved keys of the issuer hold one that is not good any more, and cannot be removed: a start while the \
                         issuer is away would take its tokens. Remove the file"
                    );
                }
            })
        })
        .await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => (self.written, self.complained) = (bytes, false),
            Err(error) if !self.complained => {
                self.complained = true;
                tracing::warn!(
                    path = %self.path.display(), %error,
                    "the issuer's keys cannot be saved, so this gateway cannot start while the issuer is away: let it \
                     write there, or set issuer.saved to another path"
                );
            }
            Err(_) => {}
        }
    }

    /// Returns `true` if the file contains a key that is no longer accepted, or that now ends earlier.
    fn is_outdated(&self, present: &Document) -> bool {
        let written =
            serde_json::from_slice(&self.written).map(|written: Document| written.keys).unwrap_or_default();
        let is_kept = |SavedKey { key, .. }: &SavedKey| {
            let is_it = |other: &DirectoryKey| other.key_bytes().ok() == key.key_bytes().ok();
            present.keys.iter().any(|other| is_it(&other.key) && other.key.not_after >= key.not_after)
        };
        !written.iter().all(is_kept)
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    files::write_private(path, bytes)
}

fn entry(known: &TrustedKey) -> SavedKey {
    let Window { not_before, not_after } = known.window;
    SavedKey {
        key: DirectoryKey::new(
            known.key.token_type(),
            known.key.public_key(),
            Some(not_before),
            Some(not_after),
        ),
        directory_not_after: known.directory_not_after,
    }
}

fn trusted(saved: &SavedKey, accepted: &mut Accepted) -> Result<TrustedKey, String> {
    let entry = &saved.key;
    let key = accepted.key(entry)?;
    let window = Window {
        not_before: entry.not_before.unwrap_or_default(),
        not_after: entry.not_after.ok_or("a key has no end")?,
    };
    if saved.directory_not_after < window.not_after {
        return Err("a key is accepted beyond its end".to_owned());
    }
    Ok(TrustedKey { key: Arc::new(key), window, directory_not_after: saved.directory_not_after })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::keyring::Lifetimes;
    use postern_token::{Directory, KeyRefusal, SigningKey, TokenType};
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    const URL: &str = "https://issuer.example/directory";
    const LIFETIMES: Lifetimes =
        Lifetimes { without_not_after: Duration::from_secs(1000), removed: Duration::from_secs(10) };

    fn listed(entries: Vec<DirectoryKey>) -> Directory {
        Directory {
            issuer_request_uri: "/token-request".into(),
            token_keys: entries,
            batch_limit: None,
            revoked: Vec::new(),
        }
    }

    fn key() -> (postern_token::TokenKeyId, DirectoryKey) {
        let key = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
        (key.id(), DirectoryKey::new(TokenType::BlindRsa2048, key.public_key(), None, None))
    }

    async fn saved(path: &Path, keyring: &Keyring) {
        Saved::new(path.to_owned(), URL.to_owned()).keep(keyring).await;
    }

    #[tokio::test]
    async fn a_restart_gives_no_key_more_time() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("data/issuer-keys.json");
        let ((old, old_entry), (new, new_entry)) = (key(), key());
        let both = listed(vec![new_entry.clone(), old_entry]);
        let ring =
            Keyring::default().updated(&both, &mut Accepted::public(), LIFETIMES, UnixSeconds(100)).unwrap();
        let ring = ring
            .updated(&listed(vec![new_entry.clone()]), &mut Accepted::public(), LIFETIMES, UnixSeconds(200))
            .unwrap();
        saved(&path, &ring).await;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = Saved::new(path.clone(), URL.to_owned()).load(&mut Accepted::public());
        assert!(again.find(old, UnixSeconds(209)).is_ok(), "no longer listed: still in its grace");
        assert_eq!(again.find(old, UnixSeconds(210)).err(), Some(KeyRefusal::Retired));
        let expires = |ring: &Keyring| {
            ring.epochs(UnixSeconds(209)).find(|epoch| epoch.key == old).map(|epoch| epoch.expires)
        };
        assert_eq!((expires(&ring), expires(&again)), (Some(UnixSeconds(1100 + 3600)), expires(&ring)));
        // The key was first seen at 100, so it ends at 1100, however often the directory lists it again.
        let later = again
            .updated(&listed(vec![new_entry]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1500))
            .unwrap();
        assert_eq!(later.find(new, UnixSeconds(1500)).err(), Some(KeyRefusal::Retired));
        saved(&path, &later).await;
        let again = Saved::new(path, URL.to_owned()).load(&mut Accepted::public());
        assert_eq!(
            again.find(new, UnixSeconds(1500)).err(),
            Some(KeyRefusal::Retired),
            "retired keys stay so"
        );
    }

    /// A gateway that starts while the issuer is away would accept a revoked key's tokens.
    #[tokio::test]
    async fn a_file_that_cannot_be_written_gives_no_key_that_is_good_no_more() {
        let home = tempfile::tempdir().unwrap();
        // A file name may have this length, but the longer name of the temporary file is rejected.
        let path = home.path().join("k".repeat(250));
        let ((_, old_entry), (new, new_entry)) = (key(), key());
        let ring = |entries| {
            Keyring::default()
                .updated(&listed(entries), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
                .unwrap()
        };
        let (both, one) = (ring(vec![new_entry.clone(), old_entry]), ring(vec![new_entry]));
        let short = home.path().join("short");
        saved(&short, &one).await;
        let few = fs::read(&short).unwrap();
        saved(&short, &both).await;
        for (before, now, kept) in [(fs::read(&short).unwrap(), &one, 0), (few, &both, 1)] {
            fs::write(&path, before).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let mut file = Saved::new(path.clone(), URL.to_owned());
            file.load(&mut Accepted::public());
            file.keep(now).await;
            let again = Saved::new(path.clone(), URL.to_owned()).load(&mut Accepted::public());
            assert_eq!((again.len(), again.find(new, UnixSeconds(1)).is_ok()), (kept, kept == 1));
        }
    }

    #[tokio::test]
    async fn a_file_that_was_lost_while_none_could_be_written_is_written_again() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("data");
        let path = folder.join("issuer-keys.json");
        let ring = |number| {
            let entries = listed((0..number).map(|_| key().1).collect());
            Keyring::default().updated(&entries, &mut Accepted::public(), LIFETIMES, UnixSeconds(1)).unwrap()
        };
        let (first, second) = (ring(1), ring(2));
        let mut file = Saved::new(path.clone(), URL.to_owned());
        file.keep(&first).await;
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "no folder").unwrap();
        file.keep(&second).await;
        fs::remove_file(&folder).unwrap();
        file.keep(&first).await;
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_damaged_foreign_or_open_to_others_is_left_out() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("issuer-keys.json");
        let ring = Keyring::default()
            .updated(&listed(vec![key().1]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
            .unwrap();
        saved(&path, &ring).await;
        let whole = fs::read(&path).unwrap();
        let load = |url: &str| Saved::new(path.clone(), url.to_owned()).load(&mut Accepted::public()).len();
        assert_eq!((load(URL), load("https://other.example/")), (1, 0));
        for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(load(URL), 0, "cut after {cut} bytes");
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(load(URL), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(load(URL), 0);
    }
}
