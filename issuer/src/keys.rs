//! Token keys on disk: one file per key, mode 0600, with the key's times in its name.
//!
//! `1790000000-1792592000-1793196800-0f1e2d3c.p8` is a key that is in use from the first time, issues until the second, leaves at
//! the third (Unix seconds), and whose token key id begins with the hex digits. A file is written as a whole or not at all, and a
//! crash between two writes cannot separate a key from its times. The ending gives the token type, or shows that the private key
//! is in an HSM ([`postern_token::key_file`]).

pub(crate) mod at_rest;
mod changes;
pub(crate) mod control;
mod error;
mod files;
pub(crate) mod in_hsm;
pub(crate) mod migrate;
mod set_aside;
mod shelf;

use crate::config::Keys;
use crate::database::postgres::Server;
use crate::hsm::Hsm;
use crate::rotation::{self, Lifetime, Phase, Schedule};
use at_rest::{AtRest, Made, Read, Stale, load};
pub(crate) use error::KeysError;
use files::{FileName, check_distinct, colliding};
pub(crate) use files::{KeyPhase, TokenKey, lives, view};
use postern_daemon::files::{DataDir, DataDirError, exposed_mode};
use postern_daemon::utc;
use postern_token::key_file::is_encrypted;
use postern_token::{TokenKeyId, TokenType, UnixSeconds};
use set_aside::{Aside, Why};
pub(crate) use shelf::Shelf;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attempts to make a key with a distinct truncated id. At worst one key in 16 collides with one of 16 others, so that this many
/// collisions in a row do not happen by chance.
const MAX_ATTEMPTS: usize = 64;
/// Time that the start waits for the lock: commands hold it for milliseconds, another issuer for ever.
const COMMAND_PATIENCE: Duration = Duration::from_secs(2);

/// A key whose tokens an operator has voided.
#[derive(Debug)]
struct Revoked {
    /// The full id, in hex.
    id: String,
    /// The time at which the key would have ended.
    until: UnixSeconds,
}

/// The keys of one issuer, and the directory they are kept in. Everything here blocks: on the disk, and for tens to
/// hundreds of milliseconds when a key is made.
#[derive(Debug)]
pub(crate) struct KeyStore {
    directory: DataDir,
    shelf: Shelf,
    at_rest: AtRest,
    keys: Vec<TokenKey>,
    stale: Vec<Stale>,
    /// Keys revoked before the start and since. They stay in memory, and are named even if the directory is lost.
    revoked: Vec<Revoked>,
    has_looked_for_orphans: bool,
    /// Difference of the clock from the database's, as of the latest rotation.
    clock_fault: Option<String>,
}

impl KeyStore {
    #[cfg(test)]
    pub(crate) fn open(directory: &Path, at_rest: AtRest) -> Result<Self, KeysError> {
        Self::of(open_directory(directory)?, at_rest, None)
    }

    /// Reads every key in a directory that is already open, or in the database of `server`. A key that cannot be read is an
    /// error: making a new one in its place would silently void every token in circulation.
    pub(crate) fn of(
        directory: DataDir,
        at_rest: AtRest,
        server: Option<Arc<Server>>,
    ) -> Result<Self, KeysError> {
        if let Some(mode) = exposing_mode(directory.path()) {
            tracing::warn!(
                "the key directory {} is open to other users (mode {mode:04o}): run chmod 700 on it",
                directory.path().display()
            );
        }
        let shelf = Shelf::of(&directory, server)?;
        shelf.hold()?; // another issuer may set a key aside between its name is listed and its content is read
        let found = read(&shelf, &at_rest).and_then(|(keys, stale)| Ok((keys, stale, read_revoked(&shelf)?)));
        shelf.release();
        let (keys, stale, revoked) = found?;
        let (has_looked_for_orphans, clock_fault) = (false, None);
        Ok(Self { directory, shelf, at_rest, keys, stale, revoked, has_looked_for_orphans, clock_fault })
    }

    /// `true` if other issuers may change the keys.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shelf.is_shared()
    }

    /// Runs `change` on the present keys while no other issuer changes any.
    fn exclusively<T, E: From<KeysError>>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.shelf.hold()?;
        let changed = match self.look_again() {
            Ok(()) => change(self),
            Err(error) => Err(error.into()),
        };
        self.shelf.release();
        changed
    }

    /// Reads what other issuers have changed.
    fn look_again(&mut self) -> Result<(), KeysError> {
        if !self.is_shared() {
            return Ok(());
        }
        let mut keys = Vec::new();
        for path in self.shelf.key_files()? {
            let Some(name) = FileName::parse(&path) else { return Err(KeysError::Name { path }) };
            let known = self.keys.iter().find(|key| FileName::of(key).is_of_same_key(&name));
            let key = match known {
                Some(known) => TokenKey { signing: known.signing.clone(), life: name.life },
                None => load(&self.shelf, &path, &self.at_rest)?.key,
            };
            check_distinct(&keys, &key, &path)?;
            keys.push(key);
        }
        self.revoked = read_revoked(&self.shelf)?;
        self.keys = keys;
        Ok(())
    }

    pub(crate) fn keys(&self) -> &[TokenKey] {
        &self.keys
    }

    /// Returns the ids of revoked keys that have not expired at `now`. Without one of them in the directory, a gateway that had
    /// not seen it would still accept the key's tokens for the grace period.
    pub(crate) fn revoked(&self, now: UnixSeconds) -> Vec<String> {
        let alive = self.revoked.iter().filter(|key| now < key.until);
        let mut ids: Vec<String> = alive.map(|key| key.id.clone()).collect();
        ids.sort(); // one directory has one representation
        ids.dedup();
        ids
    }

    /// Returns the directory of the keys, and of everything else that only this issuer may write.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Makes the keys that are due at `now`, and drops expired ones.
    pub(crate) fn rotate(&mut self, schedule: &Schedule, now: UnixSeconds) -> Result<(), KeysError> {
        self.exclusively(|store| store.rotate_alone(schedule, now))
    }

    fn rotate_alone(&mut self, schedule: &Schedule, now: UnixSeconds) -> Result<(), KeysError> {
        self.clock_fault = self.shelf.clock_fault(now)?;
        if self.clock_fault.is_none() {
            self.recall(now);
            self.drop_expired(now);
        }
        if let Some(in_hsm) = &self.at_rest.in_hsm {
            in_hsm.tidy(&self.shelf, &mut self.has_looked_for_orphans);
        }
        self.make_due(schedule, now, &[])
    }

    /// Makes the keys that are due at `now`, as if those of `without` did not exist. If those of one type cannot be made, because
    /// the HSM is away, those of the others still are.
    fn make_due(
        &mut self,
        schedule: &Schedule,
        now: UnixSeconds,
        without: &[TokenKeyId],
    ) -> Result<(), KeysError> {
        let mut result = Ok(());
        for token_type in schedule.types.iter() {
            let lives = |keys: &[TokenKey]| {
                let left = keys.iter().filter(|key| !without.contains(&key.signing.id()));
                lives(&left.cloned().collect::<Vec<_>>(), token_type)
            };
            while let Some(life) = rotation::to_make(&lives(&self.keys), schedule, now) {
                if let Err(error) = self.make(token_type, life) {
                    result = Err(error);
                    break;
                }
            }
        }
        result
    }

    /// Makes a key and its file, and appends the key to `keys`.
    fn make(&mut self, token_type: TokenType, life: Lifetime) -> Result<(), KeysError> {
        let aside = self.may_come_back();
        for _ in 0..MAX_ATTEMPTS {
            let Made { signing, content, begun } = self.at_rest.make(&self.shelf, token_type)?;
            if colliding(&self.keys, &signing).is_some() || colliding(&aside, &signing).is_some() {
                begun.into_iter().for_each(|begun| begun.discard(&self.shelf));
                continue; // a request names its key by one byte (RFC 9578, section 6.1)
            }
            let key = TokenKey { signing: Arc::new(signing), life };
            self.at_rest.write(&self.shelf, &self.shelf.join(FileName::of(&key).text), &content)?;
            begun.into_iter().for_each(|begun| begun.keep(&self.shelf));
            let [from, until, end] =
                [life.not_before, life.issue_until, life.not_after].map(|time| utc::rfc3339(time.0));
            tracing::info!(
                "made token key {:?} of type {token_type}: in use from {from}, issues until {until}, leaves at {end}",
                key.signing.id()
            );
            self.keys.push(key);
            return Ok(());
        }
        Err(KeysError::NoDistinctKey { alive: self.keys.len() })
    }

    /// Sets the files of expired keys aside. A failure is logged; the next start tries again.
    fn drop_expired(&mut self, now: UnixSeconds) {
        let (over, keys) = std::mem::take(&mut self.keys)
            .into_iter()
            .partition::<Vec<_>, _>(|key| key.life.phase(now) == Phase::Over);
        self.keys = keys;
        for key in over {
            let name = FileName::of(&key).text;
            match self.shelf.rename(&name, &Why::Expired.mark(&name, now)) {
                Ok(()) => tracing::info!("token key {:?} has left: its time is over", key.signing.id()),
                Err(error) => tracing::warn!(
                    "the key file {name} cannot be set aside: {error}; its time is over, and it is not used any more"
                ),
            }
        }
    }

    /// Returns expired keys that are set aside, which return if a clock that is ahead is set right.
    fn may_come_back(&self) -> Vec<TokenKey> {
        let files = set_aside::all(&self.shelf).unwrap_or_default();
        let expired = files.into_iter().filter(|aside| aside.why == Why::Expired);
        expired
            .filter_map(|aside| {
                self.at_rest
                    .read(&aside.original, self.shelf.content(&aside.path).ok()?)
                    .ok()
                    .map(|read| read.key)
            })
            .collect()
    }

    /// Restores keys that were set aside because the clock was ahead, and have not expired.
    fn recall(&mut self, now: UnixSeconds) {
        let release =
            |Aside { path, original, .. }: &Aside| self.at_rest.release(&self.shelf, path, original);
        let back = set_aside::recall(&self.shelf, now, release);
        let back = back.unwrap_or_else(|error| {
            tracing::warn!("the key files that were set aside cannot be looked through: {error}");
            Vec::new()
        });
        for path in back {
            match load(&self.shelf, &path, &self.at_rest).map(|read| read.key) {
                Ok(key) if colliding(&self.keys, &key.signing).is_none() => {
                    tracing::warn!(
                        "token key {:?} is back: it left while the clock was ahead, and its time is not over",
                        key.signing.id()
                    );
                    self.keys.push(key);
                }
                Ok(_) => tracing::warn!(
                    "the key file {} is not used: another key has its last byte",
                    path.display()
                ),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    pub(crate) fn hsm(&self) -> Option<Hsm> {
        self.at_rest.in_hsm.as_ref().map(|in_hsm| in_hsm.hsm.clone())
    }

    /// Encrypts files that are plain or under an earlier passphrase. Every key has been read before, so that a wrong passphrase
    /// changes no file.
    pub(crate) fn encrypt(&mut self) -> Result<(), KeysError> {
        self.exclusively(Self::encrypt_alone)
    }

    fn encrypt_alone(&mut self) -> Result<(), KeysError> {
        let Some(passphrases) = &self.at_rest.passphrases else { return Ok(()) };
        let mut renewed = 0;
        for stale in std::mem::take(&mut self.stale) {
            self.at_rest.renew(&self.shelf, stale)?;
            renewed += 1;
        }
        for Aside { path, original, .. } in set_aside::all(&self.shelf)? {
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

    /// Encrypts a key file that is set aside, whose name was `original`. Returns `true` if it was rewritten.
    fn encrypt_aside(&self, path: &Path, original: &Path, only_plain: bool) -> Result<bool, KeysError> {
        let content = self.shelf.read(path).map_err(KeysError::unreadable(path))?;
        if only_plain && is_encrypted(&content) {
            return Ok(false);
        }
        let Read { plain, is_current, .. } = self.at_rest.read(original, content)?;
        if !is_current {
            self.at_rest.renew(&self.shelf, Stale { path: path.to_owned(), plain })?;
        }
        Ok(!is_current)
    }

    /// Returns the fault of the clock, if it differs from the database's, or files were written later than its present time.
    pub(crate) fn clock_fault(&self, now: UnixSeconds) -> Option<String> {
        if self.is_shared() {
            return self.clock_fault.clone();
        }
        let mut files = self.shelf.key_files().unwrap_or_default();
        files.push(self.directory.join(crate::accounts::FILE_NAME));
        set_aside::clock_fault(&files, now)
    }
}

/// Opens the directory, waiting briefly while a command (`postern issuer account`) holds the lock.
pub(crate) fn open_directory(directory: &Path) -> Result<DataDir, DataDirError> {
    let deadline = Instant::now() + COMMAND_PATIENCE;
    loop {
        match DataDir::open(directory) {
            Err(DataDirError::InUse { .. }) if Instant::now() < deadline => {
                std::thread::sleep(COMMAND_PATIENCE / 50)
            }
            opened => return opened,
        }
    }
}

/// Checks the key files, and the file with their passphrase, as a start would, without locking the directory.
pub(crate) fn inspect(keys: &Keys) -> Result<(), KeysError> {
    let at_rest = AtRest::of(keys)?;
    // The first start creates the directory.
    if !keys.directory.exists() {
        return Ok(());
    }
    read(&Shelf::Directory(keys.directory.clone()), &at_rest).map(drop)
}

/// Reads every key of a shelf. Also returns the files that are not as this issuer writes them.
fn read(shelf: &Shelf, at_rest: &AtRest) -> Result<(Vec<TokenKey>, Vec<Stale>), KeysError> {
    let (mut keys, mut stale) = (Vec::new(), Vec::new());
    for path in shelf.key_files()? {
        let Read { key, plain, is_current } = load(shelf, &path, at_rest)?;
        check_distinct(&keys, &key, &path)?;
        keys.push(key);
        if !is_current {
            stale.push(Stale { path, plain });
        }
    }
    Ok((keys, stale))
}

/// Returns the keys that were revoked before.
fn read_revoked(shelf: &Shelf) -> Result<Vec<Revoked>, KeysError> {
    let revoked = set_aside::all(shelf)?.into_iter().filter_map(|aside| {
        let id = aside.why.revoked_id()?.to_owned();
        Some(Revoked { id, until: aside.name.life.not_after })
    });
    Ok(revoked.collect())
}

/// Returns the mode of a directory that is open to other users.
pub(crate) fn exposing_mode(directory: &Path) -> Option<u32> {
    std::fs::metadata(directory).ok().as_ref().and_then(exposed_mode)
}

#[cfg(test)]
mod tests;
