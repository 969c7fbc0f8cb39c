//! Token keys on disk: one file a key, mode 0600, its times in its name.
//!
//! `1790000000-1792592000-1793196800-0f1e2d3c.p8` is the key that is used from the first time on, issues until the
//! second, leaves at the third (Unix seconds), and whose token key id begins with the hex digits. A file is written
//! whole or not at all, and a name cannot be torn from its times by a crash between two writes. Its ending says the token type,
//! or that the private key is in an HSM ([`postern_token::key_file`]).

pub(crate) mod at_rest;
mod changes;
pub(crate) mod control;
mod error;
mod follow;
pub(crate) mod in_hsm;
mod set_aside;

use crate::config::Keys;
use crate::keyring::{KeyPhase, KeyView};
use crate::rotation::{self, Lifetime, Phase, Schedule};
use at_rest::{AtRest, Read, Stale};
pub use error::KeysError;
use follow::Follows;
pub(crate) use follow::examine_copies;
use in_hsm::{Begun, Made};
use postern_daemon::files::{DataDir, DataDirError};
use postern_daemon::utc;
use postern_token::{SigningKey, TokenKeyId, TokenType, UnixSeconds, key_file};
use set_aside::Why;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// One key in 16 collides with one of 16 others at worst: this many in a row do not happen by chance.
const MAX_ATTEMPTS: usize = 64;
/// How long the start waits for the lock: commands have it for milliseconds, another issuer has it for ever.
const COMMAND_PATIENCE: Duration = Duration::from_secs(2);

/// A key and its times.
#[derive(Clone, Debug)]
pub(crate) struct TokenKey {
    pub(crate) signing: Arc<SigningKey>,
    pub(crate) life: Lifetime,
}

/// A key whose tokens an operator has made void.
#[derive(Debug)]
struct Revoked {
    /// All of its id, in hex.
    id: String,
    /// When it would have ended.
    until: UnixSeconds,
}

/// The keys of one issuer, and the directory they are kept in. Everything here blocks: on the disk, and for tens to
/// hundreds of milliseconds where a key is made.
#[derive(Debug)]
pub(crate) struct KeyStore {
    directory: DataDir,
    at_rest: AtRest,
    keys: Vec<TokenKey>,
    stale: Vec<Stale>,
    /// Those that were found at the start, and those of since: they are named whatever becomes of the directory.
    revoked: Vec<Revoked>,
    /// Another issuer, whose keys these are.
    follows: Option<Follows>,
    has_looked_for_orphans: bool,
}

impl KeyStore {
    /// Opens `directory`, which is made when it is missing, and reads every key in it. A key that cannot be read is
    /// an error: making a new one in its place would silently void every token in circulation.
    pub(crate) fn open(directory: &Path, at_rest: AtRest) -> Result<Self, KeysError> {
        Self::of(open_directory(directory)?, at_rest)
    }

    /// The same in a directory that is open.
    pub(crate) fn of(directory: DataDir, at_rest: AtRest) -> Result<Self, KeysError> {
        warn_if_exposed(directory.path());
        let (keys, stale) = read(directory.path(), &at_rest)?;
        let revoked = read_revoked(directory.path())?;
        Ok(Self { directory, at_rest, keys, stale, revoked, follows: None, has_looked_for_orphans: false })
    }

    pub(crate) fn keys(&self) -> &[TokenKey] {
        &self.keys
    }

    /// The ids of the keys whose tokens are void though their times are not over at `now`. Without one of them in the directory, a
    /// gateway that had not seen it would give that key's tokens their grace.
    pub(crate) fn revoked(&self, now: UnixSeconds) -> Vec<String> {
        let alive = self.revoked.iter().filter(|key| now < key.until);
        let mut ids: Vec<String> = alive.map(|key| key.id.clone()).collect();
        ids.sort(); // one directory has one representation
        ids.dedup();
        ids
    }

    /// Where the keys are, and what else this issuer alone may write.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Makes the keys that are due at `now`, or takes up those that the first issuer has made, and drops those that have expired.
    pub(crate) fn rotate(&mut self, schedule: &Schedule, now: UnixSeconds) -> Result<(), KeysError> {
        self.recall(now);
        self.drop_expired(now);
        if self.follows.is_some() {
            self.take_up(now);
            return self.check_successors(schedule, now);
        }
        self.tidy_hsm();
        self.make_due(schedule, now, &[])
    }

    /// Makes the keys that are due at `now`, as if those of `without` were not there. Where those of one type cannot be made, because
    /// the HSM is away, those of others are.
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

    /// Makes a key and its file. It is the last one then.
    fn make(&mut self, token_type: TokenType, life: Lifetime) -> Result<(), KeysError> {
        let aside = self.may_come_back();
        for _ in 0..MAX_ATTEMPTS {
            let Made { signing, content, begun } = self.at_rest.make(self.directory.path(), token_type)?;
            if colliding(&self.keys, &signing).is_some() || colliding(&aside, &signing).is_some() {
                begun.into_iter().for_each(Begun::discard);
                continue; // a request names its key by one byte (RFC 9578, section 6.1)
            }
            let key = TokenKey { signing: Arc::new(signing), life };
            let path = self.directory.join(file_name(&key));
            self.at_rest.write(path, &content)?;
            begun.into_iter().for_each(Begun::keep);
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

    /// Sets the file of an expired key aside. Failing at that is no reason to stop,
    /// and the next start tries again.
    fn drop_expired(&mut self, now: UnixSeconds) {
        let (over, keys) = std::mem::take(&mut self.keys)
            .into_iter()
            .partition::<Vec<_>, _>(|key| key.life.phase(now) == Phase::Over);
        self.keys = keys;
        for key in over {
            let name = file_name(&key);
            match set_aside::set_aside(self.directory.path(), &name, now) {
                Ok(()) => tracing::info!("token key {:?} has left: its time is over", key.signing.id()),
                Err(error) => tracing::warn!(
                    "the key file {name} cannot be set aside: {error}; its time is over, and it is not used any more"
                ),
            }
        }
    }

    /// Keys that are set aside, and come back if a clock that is ahead is set right.
    fn may_come_back(&self) -> Vec<TokenKey> {
        let files = set_aside::all(self.directory.path()).unwrap_or_default();
        let expired = files.into_iter().filter(|aside| aside.why == Why::Expired);
        expired
            .filter_map(|aside| {
                self.at_rest.read(&aside.original, content(&aside.path).ok()?).ok().map(|read| read.key)
            })
            .collect()
    }

    /// Restores keys that were set aside because the clock was ahead, and have not expired.
    fn recall(&mut self, now: UnixSeconds) {
        let end = |path: &Path| parse_name(path).map(|(life, _)| life.not_after);
        let back = set_aside::recall(self.directory.path(), now, end, |path, original| {
            // A follower's keys are the first issuer's, and so is what is in the HSM.
            self.follows.is_some() || self.at_rest.release(path, original)
        });
        let back = back.unwrap_or_else(|error| {
            tracing::warn!("the key files that were set aside cannot be looked through: {error}");
            Vec::new()
        });
        for path in back {
            match load(&path, &self.at_rest).map(|read| read.key) {
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

    /// Reports files that were written later than the present time of the clock.
    pub(crate) fn clock_fault(&self, now: UnixSeconds) -> Option<String> {
        let mut files = key_files(self.directory.path()).unwrap_or_default();
        files.push(self.directory.join(crate::accounts::FILE_NAME));
        set_aside::clock_fault(&files, now)
    }
}

/// Waits a little where a command (`postern issuer account`) has the lock for a moment.
fn open_directory(directory: &Path) -> Result<DataDir, DataDirError> {
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

/// Finds what a start would refuse of the key files, and of the file with their passphrase, without taking the directory.
pub(crate) fn inspect(keys: &Keys) -> Result<(), KeysError> {
    let at_rest = AtRest::of(keys)?;
    // The first start makes it.
    if keys.directory.exists() { read(&keys.directory, &at_rest).map(drop) } else { Ok(()) }
}

/// Every key in `directory`, and the files that are not as this issuer writes them.
fn read(directory: &Path, at_rest: &AtRest) -> Result<(Vec<TokenKey>, Vec<Stale>), KeysError> {
    let (mut keys, mut stale) = (Vec::new(), Vec::new());
    for path in key_files(directory)? {
        let Read { key, plain, is_current } = load(&path, at_rest)?;
        if let Some(other) = colliding(&keys, &key.signing) {
            return Err(KeysError::Collision { path, other: file_name(other) });
        }
        keys.push(key);
        if !is_current {
            stale.push(Stale { path, plain });
        }
    }
    Ok((keys, stale))
}

/// The keys that were revoked before this start.
fn read_revoked(directory: &Path) -> Result<Vec<Revoked>, KeysError> {
    let unreadable = |source| KeysError::Unreadable { path: directory.to_owned(), source };
    let aside = set_aside::all(directory).map_err(unreadable)?.into_iter();
    let revoked = aside.filter_map(|aside| match aside.why {
        Why::Revoked(id) => Some(Revoked { id, until: parse_name(&aside.original)?.0.not_after }),
        Why::Expired | Why::Retired => None,
    });
    Ok(revoked.collect())
}

/// A request names its key by its type and one byte.
fn colliding<'k>(keys: &'k [TokenKey], signing: &SigningKey) -> Option<&'k TokenKey> {
    let named = |key: &SigningKey| (key.token_type(), key.id().truncated());
    keys.iter().find(|key| named(&key.signing) == named(signing))
}

/// The times of the keys of one type.
pub(crate) fn lives(keys: &[TokenKey], token_type: TokenType) -> Vec<Lifetime> {
    keys.iter().filter(|key| key.signing.token_type() == token_type).map(|key| key.life).collect()
}

fn file_name(key: &TokenKey) -> String {
    name_of(key.signing.id(), key_file::ending_of(&key.signing), &key.life)
}

fn name_of(id: TokenKeyId, ending: &str, life: &Lifetime) -> String {
    let Lifetime { not_before, issue_until, not_after } = life;
    let id = id.short();
    format!("{not_before}-{issue_until}-{not_after}-{id}.{ending}")
}

/// The keys that have not expired, newest first.
pub(crate) fn view(keys: &[TokenKey], now: UnixSeconds) -> Vec<KeyView> {
    let current = |token_type| rotation::current(&lives(keys, token_type), now);
    let view = |key: &TokenKey| {
        let (life, token_type) = (key.life, key.signing.token_type());
        let phase = match life {
            _ if Some(life) == current(token_type) => KeyPhase::Newest,
            _ if now < life.not_before => KeyPhase::Upcoming,
            _ => KeyPhase::Older,
        };
        KeyView { id: key.signing.id(), token_type, ending: key_file::ending_of(&key.signing), phase, life }
    };
    let alive = keys.iter().filter(|key| key.life.phase(now) != Phase::Over);
    let mut view: Vec<_> = alive.map(view).collect();
    view.sort_by_key(|key| std::cmp::Reverse(key.life.not_before));
    view
}

/// The key files of a directory, oldest first.
fn key_files(directory: &Path) -> Result<Vec<PathBuf>, KeysError> {
    let unreadable = |source| KeysError::Unreadable { path: directory.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if key_file::token_type(&path).is_some() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn load(path: &Path, at_rest: &AtRest) -> Result<Read, KeysError> {
    at_rest.read(path, content(path)?)
}

/// What a key file holds.
fn content(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeysError> {
    let unreadable = |source| KeysError::Unreadable { path: path.to_owned(), source };
    let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 && !key_file::is_reference(path) {
        return Err(KeysError::Exposed { path: path.to_owned(), mode });
    }
    std::fs::read(path).map(Zeroizing::new).map_err(unreadable)
}

/// The key that a plain file of this name and content has.
fn parse(path: &Path, content: &[u8]) -> Result<TokenKey, KeysError> {
    let named = parse_name(path).zip(key_file::token_type(path));
    let ((life, id), token_type) = named.ok_or_else(|| KeysError::Name { path: path.to_owned() })?;
    let signing = SigningKey::from_file(token_type, content)
        .map_err(|source| KeysError::Corrupt { path: path.to_owned(), source })?;
    if signing.id().short() != id {
        return Err(KeysError::OtherKey { path: path.to_owned() });
    }
    Ok(TokenKey { signing: Arc::new(signing), life })
}

fn parse_name(path: &Path) -> Option<(Lifetime, String)> {
    let mut parts = path.file_stem()?.to_str()?.split('-');
    let mut time = || Some(UnixSeconds(parts.next()?.parse().ok()?));
    let life = Lifetime { not_before: time()?, issue_until: time()?, not_after: time()? };
    let id = parts.next()?.to_owned();
    let in_order = life.not_before < life.issue_until && life.issue_until < life.not_after;
    (in_order && id.len() == 8 && parts.next().is_none()).then_some((life, id))
}

fn warn_if_exposed(directory: &Path) {
    let mode = std::fs::metadata(directory).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        tracing::warn!(
            "the key directory {} is open to other users (mode {mode:04o}): run chmod 700 on it",
            directory.display()
        );
    }
}

#[cfg(test)]
mod tests;
