//! The store for one process: an in-memory set, and a file of records per token key.

mod directory;
mod format;
mod index;
mod log;
mod sync;
#[cfg(test)]
mod tests;

use crate::{Epoch, ExchangeLog, Hint, Marks, Spend, SpendStore, Unknown};
pub use directory::StoreError;
use directory::{Directory, On};
use format::Origin;
pub(crate) use format::ShortKey;
pub(crate) use index::Index;
use log::EpochLog;
use parking_lot::{Mutex, RwLock};
use postern_token::{Mark, SpentKey, TokenKeyId, UnixSeconds};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use sync::Fsync;
use sync::{Syncer, Work};

/// The embedded store: one process, one directory.
///
/// * A record has left the process before its spend is answered: after `kill -9` no token can be spent again. [`Fsync`]
///   determines the cost of power loss.
/// * A record takes 20 bytes on disk and 20 to 39 in memory (a set of 16-byte keys that grows by doubling).
/// * An epoch is dropped as a whole after it has been over for an hour by both the wall clock and the monotonic clock. Its key
///   is then refused permanently: the tombstone stays in the directory.
/// * With [`Fsync::Interval`] a spend never waits for another thread: it is one `pwrite` on the caller's thread, about a
///   microsecond, and the future is ready at its first poll. The first spend of an epoch, and one that moves its expiry, create
///   or rewrite a header and wait for the disk (some milliseconds, once in a key's life).
///
/// Dropping the store moves the records to new files (`Origin` gives the reason), syncs a last time and unlocks the directory.
pub struct Embedded {
    // Drop order: first the thread, which syncs the epochs; last the directory's lock.
    syncer: Syncer,
    epochs: Arc<RwLock<Epochs>>,
    /// Held while epochs are created, extended or dropped, never during a spend from an existing epoch.
    endings: Mutex<Endings>,
    directory: Arc<Directory>,
    marks: RwLock<Option<Marks>>,
}

struct Disk {
    epochs: Arc<RwLock<Epochs>>,
    directory: Arc<Directory>,
}

impl Work for Disk {
    fn logs(&self) -> Vec<Arc<EpochLog>> {
        let epochs = self.epochs.read();
        epochs.live.iter().chain(&epochs.leaving).cloned().collect()
    }

    fn try_to_write(&self) -> Result<(), StoreError> {
        self.directory.try_to_write()?;
        let live = self.epochs.read().live.clone(); // a separate statement releases the lock: writing is slow
        live.iter().try_for_each(|log| log.try_to_write().on("write", &self.directory.records(log.key)))
    }
}

#[derive(Default)]
struct Epochs {
    /// A list, because there are few: a key and a predecessor or two.
    live: Vec<Arc<EpochLog>>,
    /// Over by the clock at the start, so their records were not read: they are when that clock turns out to have been wrong.
    unread: Vec<Arc<EpochLog>>,
    /// Dropped, but their tombstones are not on disk yet: an earlier spend may still wait for the sync of its record.
    leaving: Vec<Arc<EpochLog>>,
    retired: HashSet<TokenKeyId>,
}

/// The size and state of an embedded store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub records: u64,
    /// Bytes of memory that the sets of keys take.
    pub memory_bytes: u64,
    pub file_bytes: u64,
    pub epochs: u64,
    /// Dropped epochs, whose keys are refused permanently.
    pub retired: u64,
    /// Records with a wrong checksum, found when the store was opened. A crash during writing leaves one per unanswered spend;
    /// more of them mean a disk that corrupts data.
    pub damaged: u64,
    /// Places without a record, found when the store was opened: failed writes, or writes undone by power loss.
    pub holes: u64,
}

impl Embedded {
    /// Opens the store in `directory`, creates the directory if missing (mode 0700, files 0600), and reads all records of epochs
    /// that are not over by `now`. Blocks on the disk; a million records take about a tenth of a second.
    ///
    /// # Errors
    /// Another process has it open, or some record cannot be read.
    pub fn open(directory: &Path, fsync: Fsync, now: UnixSeconds) -> Result<Self, StoreError> {
        let (directory, (live, retired)) = Directory::take(directory)?;
        let mut epochs = Epochs::default();
        if !retired.is_empty() {
            directory.sync()?;
        }
        for key in retired {
            if !directory.is_retired(key) {
                directory.retire(key)?;
            }
            epochs.retired.insert(key);
        }
        for key in live.into_iter().filter(|key| !epochs.retired.contains(key)) {
            match EpochLog::over(key, &directory, now) {
                Some(log) => epochs.unread.push(Arc::new(log)),
                None => epochs.live.push(Arc::new(EpochLog::open(key, &directory)?)),
            }
        }
        let (epochs, directory) = (Arc::new(RwLock::new(epochs)), Arc::new(directory));
        let disk = Disk { epochs: Arc::clone(&epochs), directory: Arc::clone(&directory) };
        let syncer = Syncer::start(fsync, disk)?;
        Ok(Self { syncer, epochs, endings: Mutex::default(), directory, marks: RwLock::default() })
    }

    /// Binds tokens to the files that record them: a key that begins from now on gets a mark, and its tokens become void if
    /// another file replaces the one that knew the mark. Keys that began earlier keep their marks.
    pub fn bind(&self, marks: Marks) {
        *self.marks.write() = Some(marks);
    }

    /// Changes how spends from now on reach the disk.
    pub fn sync(&self, fsync: Fsync) {
        self.syncer.set(fsync);
    }

    /// Begins these epochs, with a mark, unless they have records already. Blocks on the disk once per new epoch. A failure is
    /// retried by the next call; until then the store is not ready.
    pub fn offer(&self, epochs: &[Epoch]) {
        for epoch in epochs {
            let is_new = matches!(self.epochs.read().find(epoch.key), Ok(None)); // the lock must not last into `change`
            if is_new {
                _ = self.change(epoch); // failures are reported inside
            }
        }
    }

    #[must_use]
    pub fn binding(&self, key: TokenKeyId) -> Option<Mark> {
        self.epochs.read().find(key).ok().flatten()?.mark
    }

    /// Drops every epoch that has been over for an hour by both clocks, as observed by the calls to this: turns its file into a
    /// tombstone and frees its memory. Returns the number dropped. Blocks on the disk: call it on a blocking thread, about once
    /// a minute, with current readings of both clocks. Until then, expired epochs refuse all the same.
    ///
    /// # Errors
    /// The disk failed. The affected epoch still refuses, and the next call retries.
    pub fn drop_expired(&self, now: UnixSeconds, monotonic: Instant) -> Result<usize, StoreError> {
        let mut endings = self.endings.lock();
        let over: Vec<_> =
            self.epochs.read().present().filter(|log| now >= log.expires()).map(|log| log.key).collect();
        let confirmed = endings.confirmed(&over, Reading { wall: now, monotonic });
        let leaving = {
            let Epochs { live, unread, leaving, retired } = &mut *self.epochs.write();
            retired.extend(&confirmed);
            for present in [live, unread] {
                leaving.extend(present.extract_if(.., |log| confirmed.contains(&log.key)));
            }
            leaving.clone()
        };
        let (mut dropped, mut refused) = (0, None);
        for log in leaving {
            match self.directory.retire(log.key) {
                Ok(()) => {
                    self.epochs.write().leaving.retain(|other| other.key != log.key);
                    dropped += 1;
                }
                Err(error) => refused = Some(error),
            }
            // Its memory is freed here, outside of the lock: freeing is slow.
        }
        refused.map_or(Ok(dropped), Err)
    }

    /// Returns the size and state of the store. Takes each shard's lock for a moment: suited to a scrape every second, not to
    /// each request.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (present, retired) = {
            let epochs = self.epochs.read();
            (epochs.present().cloned().collect::<Vec<_>>(), epochs.retired.len())
        };
        let mut stats = Stats { epochs: present.len() as u64, retired: retired as u64, ..Stats::default() };
        for log in present {
            stats.records += log.records() as u64;
            stats.memory_bytes += log.memory_bytes() as u64;
            stats.file_bytes += log.file_bytes();
            stats.damaged += log.found.damaged;
            stats.holes += log.found.holes;
        }
        stats
    }

    /// Returns the log to spend from: the existing one, with its expiry moved if `epoch` has a later one, or a new one.
    fn log_for(&self, epoch: &Epoch) -> Result<Arc<EpochLog>, Unknown> {
        let found = self.epochs.read().find(epoch.key)?; // the lock must not last into `change`
        match found {
            Some(log) if epoch.expires <= log.expires() => Ok(log),
            _ => self.change(epoch),
        }
    }

    /// Creates, reads or extends an epoch, on disk first.
    #[cold]
    fn change(&self, epoch: &Epoch) -> Result<Arc<EpochLog>, Unknown> {
        let _changing = self.endings.lock();
        // Another caller may have created or dropped it before the lock was taken.
        let read = self.epochs.read().find(epoch.key)?;
        let found = if read.is_none() { self.read_late(epoch.key)? } else { read };
        if let Some(log) = found {
            let extended = log.extend(epoch.expires, |error| self.syncer.fail(error));
            extended.map_err(|error| self.syncer.no_room(error.kind().into(), &error))?;
            return Ok(log);
        }
        let mut origin = None;
        let created = self.directory.create(epoch.key, |file| {
            origin = self.is_bound().then(|| Origin::draw(file));
            EpochLog::first_bytes(epoch, origin.as_ref())
        });
        let file = created.map_err(|error| self.syncer.no_room(error.unknown(), &error))?;
        let log = Arc::new(EpochLog::new(epoch, file, origin.map(|origin| origin.mark())));
        self.epochs.write().live.push(Arc::clone(&log));
        Ok(log)
    }

    /// Reads the records of an epoch that was over by the clock at the start; `None` if they were read then. Where they cannot be
    /// read, the key is refused until the next start.
    fn read_late(&self, key: TokenKeyId) -> Result<Option<Arc<EpochLog>>, Unknown> {
        if self.epochs.read().unread.iter().all(|log| log.key != key) {
            return Ok(None);
        }
        let read = EpochLog::open(key, &self.directory);
        if let Err(error @ StoreError::Io { .. }) = &read {
            return Err(self.syncer.no_room(error.unknown(), error)); // the next caller tries again
        }
        let mut epochs = self.epochs.write();
        epochs.unread.retain(|log| log.key != key);
        match read {
            Ok(log) => {
                let log = Arc::new(log);
                epochs.live.push(Arc::clone(&log));
                Ok(Some(log))
            }
            Err(error) => {
                tracing::error!(token_key = %key.short(), %error, "all tokens of a key are refused until the next start");
                epochs.retired.insert(key);
                Err(Unknown::EpochRetired)
            }
        }
    }

    /// Returns `true` if marks bind tokens: always, except in tests of the records alone.
    fn is_bound(&self) -> bool {
        self.marks.read().is_some()
    }

    /// Returns `true` if the store has dropped the records of this key and so refuses all of its tokens permanently.
    #[must_use]
    pub fn has_retired(&self, key: TokenKeyId) -> bool {
        self.epochs.read().retired.contains(&key)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if self.syncer.intact().is_err() {
            return; // the state of the disk is unknown
        }
        for log in &self.epochs.read().live {
            if let Some(mark) = log.mark {
                _ = self.directory.move_records(log.key, &log.file, mark); // nothing is written afterwards
            }
        }
    }
}

impl Epochs {
    fn present(&self) -> impl Iterator<Item = &Arc<EpochLog>> {
        self.live.iter().chain(&self.unread)
    }

    fn find(&self, key: TokenKeyId) -> Result<Option<Arc<EpochLog>>, Unknown> {
        match self.live.iter().find(|log| log.key == key) {
            Some(log) => Ok(Some(Arc::clone(log))),
            None if self.retired.contains(&key) => Err(Unknown::EpochRetired),
            None => Ok(None),
        }
    }
}

/// The time for which the wall clock must be past an epoch's end. Longer than synchronized clocks stay wrong; the disk space is
/// not needed sooner.
const CONFIRMATION: Duration = Duration::from_secs(3600);
/// Allowed difference between the two clocks in that time: the wall clock has whole seconds and is slewed.
const TOLERANCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
struct Reading {
    wall: UnixSeconds,
    monotonic: Instant,
}

/// For each epoch, the reading from which on the wall clock was past its end.
///
/// A tombstone is permanent, but a wall clock can be a month ahead for a minute: before the first synchronization after boot, or
/// by an operator's mistake. So an epoch ends only after the wall clock was past its end at every reading during
/// [`CONFIRMATION`] and kept pace with the monotonic clock. Confirmation restarts with each process: a process that restarts
/// more often keeps files longer, and loses no record.
#[derive(Default)]
struct Endings(HashMap<TokenKeyId, Reading>);

impl Endings {
    /// Returns the confirmed ones among `over`, which are all epochs past their end by the wall clock.
    fn confirmed(&mut self, over: &[TokenKeyId], now: Reading) -> Vec<TokenKeyId> {
        self.0.retain(|key, since| over.contains(key) && now.keeps_pace_with(since));
        let is_confirmed = |key: &TokenKeyId| {
            let since = self.0.entry(*key).or_insert(now).monotonic;
            now.monotonic.saturating_duration_since(since) >= CONFIRMATION
        };
        over.iter().copied().filter(is_confirmed).collect()
    }
}

impl Reading {
    fn keeps_pace_with(&self, earlier: &Self) -> bool {
        let wall = earlier.wall.until(self.wall);
        let monotonic = self.monotonic.saturating_duration_since(earlier.monotonic);
        self.wall >= earlier.wall && wall.abs_diff(monotonic) <= TOLERANCE
    }
}

impl SpendStore for Embedded {
    async fn check_with(&self, key: &SpentKey, epoch: &Epoch, _: &mut ExchangeLog) -> Result<Hint, Unknown> {
        let log = self.epochs.read().find(epoch.key)?;
        if log.is_some_and(|log| log.contains(ShortKey::of(key))) {
            return Ok(Hint::Spent);
        }
        self.syncer.intact().map(|()| Hint::NotFound)
    }

    async fn spend_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        _: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        if now >= epoch.expires {
            return Err(Unknown::EpochRetired);
        }
        self.syncer.intact()?;
        let log = self.log_for(epoch)?;
        let knows = |id| self.marks.read().as_ref().is_some_and(|marks| log.knows(id, marks));
        match epoch.mark {
            Some(id) if !knows(id) => return Ok(Spend::Void),
            None if self.is_bound() => return Err(Unknown::Unmarked),
            _ => {}
        }
        let spent = log.spend(ShortKey::of(key));
        if !spent.map_err(|error| self.syncer.no_room(error.kind().into(), &error))? {
            return Ok(Spend::AlreadySpent);
        }
        // The only await. If the future is dropped here, the key stays spent and no caller gets a verdict.
        self.syncer.durable().await?;
        Ok(Spend::Admitted)
    }

    /// Costs two atomic loads. After a failed write the store does not serve until a trial write succeeds; one is made every
    /// second, and costs no token.
    fn serving(&self) -> Result<(), Unknown> {
        self.syncer.intact()?;
        self.syncer.room()
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
