//! The wallet: unspent tokens in a file that survives a crash and never gives a token out twice.
//!
//! A token is taken by zeroing its slot with one write, and handed out only after that; so a process killed at any point either
//! still has the token, unsent, or has lost it. [`mod@format`] defines the bytes.

use super::format::{self, FREE, HeaderError, SECTOR, Sector, Slot, Unspent};
use crate::catalogue::{self, Position};
use metrics::gauge;
use parking_lot::{Mutex, MutexGuard};
use postern_daemon::files::{AtOffset, make_private, private_file, sync_name};
use postern_telemetry::metrics::ReadableGauge;
use postern_token::{ChallengeDigest, Nonce, TokenKeyId, UnixSeconds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Unspent tokens on disk, of any challenge and key. Only one value in one process has the file open.
///
/// Every call that writes does so before it returns: some microseconds into the page cache, or with `fsync` the
/// milliseconds of a flush.
pub(crate) struct Wallet {
    path: PathBuf,
    /// `true` if a write waits for the disk, and so belongs on a blocking thread.
    pub(crate) fsync: bool,
    contents: Mutex<Contents>,
    /// Locked before the contents from a write to its flush: the failure of a flush is reported once for each open file, and must
    /// not be of another's write.
    flushing: Mutex<()>,
    level: Arc<ReadableGauge>,
}

struct Contents {
    /// Locked against other processes for as long as it is open.
    file: Arc<File>,
    held: Vec<Held>,
    free: Vec<u64>,
    slots: u64,
}

impl Drop for Contents {
    fn drop(&mut self) {
        // Closing alone is not enough: a child process that is being started holds the descriptor until it executes its program.
        let _ = self.file.unlock(); // the end of the process unlocks it at the latest
    }
}

/// Tokens that were removed: not given out any more. If a slot could not be zeroed, they may return at the next start.
pub(crate) struct Dropped {
    pub(crate) count: usize,
    pub(crate) written: Result<(), WalletError>,
}

struct Held {
    slot: u64,
    unspent: Unspent,
}

/// Tokens of one key, counted. Contains nothing of the tokens themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyTokens {
    /// The first four bytes of the token key id, 8 hex digits.
    pub key: String,
    /// The token type's number and name.
    pub token_type: String,
    /// The number of tokens.
    pub tokens: usize,
    /// End of the key, if the issuer's directory has it.
    pub not_after: Option<UnixSeconds>,
}

/// The reason why a wallet cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WalletError(String);

impl WalletError {
    /// Returns the error of a system call that could not `what` the wallet.
    pub(crate) fn io(path: &Path, what: &str, source: &io::Error) -> Self {
        let path = path.display();
        Self(format!(
            "cannot {what} the wallet {path}: {source}; check the disk, and that this user may write there"
        ))
    }
}

impl Wallet {
    /// Opens the wallet of a hop at `path`, or makes an empty one (mode 0600; the directory must exist). Clears torn slots.
    ///
    /// # Errors
    /// In use by another process, not a wallet, or an I/O error.
    pub(crate) fn open(path: &Path, fsync: bool, hop: Position) -> Result<Self, WalletError> {
        let failed = |what| move |error| WalletError::io(path, what, &error);
        let mut options = private_file();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(failed("open"))?;
        locked(path, file.try_lock())?;
        let length = file.metadata().map_err(failed("read"))?.len();
        if length == 0 || is_unwritten(&file, length).map_err(failed("read"))? {
            file.write_all_at(&format::header(), 0)
                .and_then(|()| file.sync_all())
                .and_then(|()| sync_name(path))
                .map_err(failed("write"))?;
        } else {
            check_header(&file, path, length)?;
        }
        make_private(&file).map_err(failed("protect"))?;
        let contents = Contents::read(file, length).map_err(failed("read"))?;
        let level =
            Arc::new(ReadableGauge::new(gauge!(catalogue::WALLET_TOKENS, Position::LABEL => hop.as_str())));
        let wallet = Self {
            path: path.to_owned(),
            fsync,
            contents: Mutex::new(contents),
            flushing: Mutex::default(),
            level,
        };
        wallet.show(&wallet.contents.lock());
        Ok(wallet)
    }

    /// Returns the gauge of tokens of any challenge, for metrics and live page.
    pub(crate) fn shown(&self) -> &Arc<ReadableGauge> {
        &self.level
    }

    /// Counts the tokens for `challenge` whose key is neither retired at `now` nor one of `doubted`.
    pub(crate) fn level(
        &self,
        challenge: ChallengeDigest,
        now: UnixSeconds,
        doubted: &BTreeSet<TokenKeyId>,
    ) -> usize {
        self.contents.lock().held.iter().filter(|held| held.answers(challenge, now, doubted)).count()
    }

    /// Returns the first moment after `now` at which a key of the tokens retires.
    pub(crate) fn next_retirement(&self, now: UnixSeconds) -> Option<UnixSeconds> {
        let contents = self.contents.lock();
        contents.held.iter().filter_map(|held| held.unspent.not_after).filter(|moment| *moment > now).min()
    }

    /// Takes the token for `challenge` whose key retires first, if the key is neither retired at `now` nor one of `doubted`. On
    /// return, the token is no longer in the file, and is never returned again.
    ///
    /// # Errors
    /// The slot could not be zeroed. The token is lost: it stays in the file, and is not given out by this value again.
    pub(crate) fn take(
        &self,
        challenge: ChallengeDigest,
        now: UnixSeconds,
        doubted: &BTreeSet<TokenKeyId>,
    ) -> Result<Option<Unspent>, WalletError> {
        let _flushing = self.fsync.then(|| self.flushing.lock());
        let mut contents = self.contents.lock();
        let soonest = contents
            .held
            .iter()
            .enumerate()
            .filter(|(_, held)| held.answers(challenge, now, doubted))
            .min_by_key(|(_, held)| held.unspent.not_after.unwrap_or(UnixSeconds::MAX));
        let Some((index, _)) = soonest else { return Ok(None) };
        let held = contents.held.swap_remove(index);
        self.show(&contents);
        self.clear(contents, [held.slot])?;
        Ok(Some(held.unspent))
    }

    /// Makes room for `count` more tokens, so that a full disk is noticed before tokens are paid for.
    ///
    /// # Errors
    /// The file cannot grow.
    pub(crate) fn reserve(&self, count: usize) -> Result<(), WalletError> {
        let mut contents = self.contents.lock();
        while contents.free.len() < count {
            let slot = contents.slots;
            contents.write(slot, &FREE).map_err(|source| self.unwritable(source))?;
            contents.slots += 1;
            contents.free.insert(0, slot); // the others are nearer to the beginning, and are filled first
        }
        Ok(())
    }

    /// Stores a token: a new one, or one that was taken and never sent.
    ///
    /// # Errors
    /// The token could not be written, and is lost.
    pub(crate) fn add(&self, unspent: Unspent) -> Result<(), WalletError> {
        let mut contents = self.contents.lock();
        let slot = contents.free.pop().unwrap_or_else(|| {
            contents.slots += 1;
            contents.slots - 1
        });
        // Not flushed: a power loss here loses a token that was never sent.
        if let Err(source) = contents.write(slot, &format::encode(&unspent)) {
            contents.free.push(slot);
            return Err(self.unwritable(source));
        }
        contents.held.push(Held { slot, unspent });
        self.show(&contents);
        Ok(())
    }

    fn drop_where(&self, gone: impl Fn(&Held) -> bool) -> Dropped {
        let _flushing = self.fsync.then(|| self.flushing.lock());
        let mut contents = self.contents.lock();
        let (dropped, kept): (Vec<_>, Vec<_>) = contents.held.drain(..).partition(gone);
        contents.held = kept;
        self.show(&contents);
        let is_none = dropped.is_empty();
        let slots = dropped.iter().map(|held| held.slot);
        let written = if is_none { Ok(()) } else { self.clear(contents, slots) };
        Dropped { count: dropped.len(), written }
    }

    pub(crate) fn drop_retired(&self, now: UnixSeconds) -> Dropped {
        self.drop_where(|held| held.retired(now))
    }

    /// Drops the tokens of these keys for one challenge: the gateway no longer takes them.
    pub(crate) fn drop_keys(&self, challenge: ChallengeDigest, keys: &[TokenKeyId]) -> Dropped {
        self.drop_where(|held| {
            let token = &held.unspent.token;
            token.challenge_digest() == challenge && keys.contains(&token.token_key_id())
        })
    }

    pub(crate) fn drop_challenge(&self, challenge: ChallengeDigest) -> Dropped {
        self.drop_where(|held| held.unspent.token.challenge_digest() == challenge)
    }

    /// Drops tokens for other challenges than `sent` while there are more than `most` of them, so that a gateway that
    /// keeps changing its challenge does not fill the disk.
    pub(crate) fn trim_others(&self, sent: &[ChallengeDigest], most: usize) -> Dropped {
        let other = |held: &Held| !sent.contains(&held.unspent.token.challenge_digest());
        let others = self.contents.lock().held.iter().filter(|held| other(held)).count();
        let excess = std::cell::Cell::new(others.saturating_sub(most));
        self.drop_where(|held| {
            let gone = excess.get() > 0 && other(held);
            excess.set(excess.get() - usize::from(gone));
            gone
        })
    }

    /// Counts the tokens by key, of any challenge.
    pub(crate) fn by_key(&self) -> Vec<KeyTokens> {
        by_key(self.contents.lock().held.iter().map(|held| &held.unspent))
    }

    /// Zeroes slots. Flushes them, if that is wanted, without the lock: who only counts tokens must not wait for the disk.
    fn clear(
        &self,
        mut contents: MutexGuard<'_, Contents>,
        slots: impl IntoIterator<Item = u64>,
    ) -> Result<(), WalletError> {
        let mut written = Ok(());
        for slot in slots {
            match contents.write(slot, &FREE) {
                Ok(()) => contents.free.push(slot),
                Err(source) => written = Err(source),
            }
        }
        let flushed = self.fsync.then(|| contents.file.clone());
        drop(contents);
        if let Some(file) = flushed {
            written = written.and(file.sync_data());
        }
        written.map_err(|source| self.unwritable(source))
    }

    /// Publishes the number of tokens. Called under the lock, so that concurrent changes appear in order, including those whose
    /// caller was cancelled.
    fn show(&self, contents: &Contents) {
        self.level.set(i64::try_from(contents.held.len()).unwrap_or(i64::MAX));
    }

    fn unwritable(&self, source: io::Error) -> WalletError {
        WalletError::io(&self.path, "write", &source)
    }
}

impl Held {
    fn retired(&self, now: UnixSeconds) -> bool {
        self.unspent.not_after.is_some_and(|not_after| not_after <= now)
    }

    fn answers(&self, challenge: ChallengeDigest, now: UnixSeconds, doubted: &BTreeSet<TokenKeyId>) -> bool {
        let token = &self.unspent.token;
        token.challenge_digest() == challenge
            && !self.retired(now)
            && !doubted.contains(&token.token_key_id())
    }
}

impl Contents {
    /// Reads every slot after the header. `length` is that of the file before a new header was written.
    fn read(file: File, length: u64) -> io::Result<Self> {
        let slots = slots_in(length);
        let mut contents = Self { file: Arc::new(file), held: Vec::new(), free: Vec::new(), slots };
        let mut nonces: HashSet<Nonce> = HashSet::new();
        for slot in 0..slots {
            match read_slot(&contents.file, slot)? {
                Slot::Holds(unspent) if nonces.insert(unspent.token.nonce()) => {
                    contents.held.push(Held { slot, unspent: *unspent });
                }
                Slot::Free => contents.free.push(slot),
                // Torn, or a duplicate, which only a damaged disk could have made.
                Slot::Torn | Slot::Holds(_) => {
                    contents.write(slot, &FREE)?;
                    contents.free.push(slot);
                }
            }
        }
        contents.free.reverse(); // so that the slots nearest to the beginning are filled first
        Ok(contents)
    }

    fn write(&self, slot: u64, sector: &Sector) -> io::Result<()> {
        self.file.write_all_at(sector, offset(slot))
    }
}

fn locked(path: &Path, taken: Result<(), TryLockError>) -> Result<(), WalletError> {
    taken.map_err(|error| match error {
        TryLockError::WouldBlock => WalletError(format!(
            "another postern has the wallet {} open: stop it, or choose another file with wallet.path",
            path.display()
        )),
        TryLockError::Error(error) => WalletError::io(path, "lock", &error),
    })
}

/// Counts the whole slots of a file. A part of one at the end is an append that a power loss cut off; it will be overwritten.
fn slots_in(length: u64) -> u64 {
    (length / SECTOR as u64).saturating_sub(1)
}

fn read_slot(file: &File, slot: u64) -> io::Result<Slot> {
    let mut sector = FREE;
    file.read_exact_at(&mut sector, offset(slot))?;
    Ok(format::decode(&sector))
}

/// Returns `true` if a power loss interrupted the creation of the wallet: its length reached the disk, its header did not.
fn is_unwritten(file: &File, length: u64) -> io::Result<bool> {
    let mut sector = FREE;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > SECTOR {
        return Ok(false);
    }
    file.read_exact_at(&mut sector[..length], 0)?;
    Ok(sector == FREE)
}

fn offset(slot: u64) -> u64 {
    (slot + 1) * SECTOR as u64
}

fn check_header(file: &File, path: &Path, length: u64) -> Result<(), WalletError> {
    let mut sector = FREE;
    let checked = if length < SECTOR as u64 {
        Err(HeaderError::NotAWallet)
    } else {
        file.read_exact_at(&mut sector, 0).map_err(|error| WalletError::io(path, "read", &error))?;
        format::check_header(&sector)
    };
    checked.map_err(|reason| {
        WalletError(format!(
            "{} {reason}; it has been left as it is. Choose another file with wallet.path, or move this one away \
             (tokens in it are lost) and start again",
            path.display()
        ))
    })
}

/// Counts the tokens in the wallet file at `path` by key. Writes nothing, and holds a shared lock while reading.
///
/// # Errors
/// There is no such file, an agent has it open, or it is not a wallet.
pub fn wallet_by_key(path: &Path) -> Result<Vec<KeyTokens>, WalletError> {
    let failed = |what| move |error| WalletError::io(path, what, &error);
    let file = File::open(path).map_err(failed("open"))?;
    locked(path, file.try_lock_shared())?;
    let length = file.metadata().map_err(failed("read"))?.len();
    check_header(&file, path, length)?;
    let mut tokens = Vec::new();
    for slot in 0..slots_in(length) {
        if let Slot::Holds(unspent) = read_slot(&file, slot).map_err(failed("read"))? {
            tokens.push(*unspent);
        }
    }
    let _ = file.unlock(); // as in `Drop for Contents`
    Ok(by_key(tokens.iter()))
}

fn by_key<'a>(tokens: impl Iterator<Item = &'a Unspent>) -> Vec<KeyTokens> {
    let mut keys = BTreeMap::new();
    for Unspent { token, not_after } in tokens {
        let entry = keys.entry((*not_after, token.token_key_id())).or_insert((token.token_type(), 0));
        entry.1 += 1;
    }
    let shown = keys.into_iter().map(|((not_after, key), (token_type, tokens))| KeyTokens {
        key: key.short(),
        token_type: token_type.to_string(),
        tokens,
        not_after,
    });
    shown.collect()
}

#[cfg(test)]
#[path = "tests/power_loss.rs"]
mod power_loss;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
