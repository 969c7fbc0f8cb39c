//! The store's directory: its lock, its files, and the crash-safe steps that change them.
//!
//! ```text
//! lock             held by the process that has the store open. The directory itself is locked too: the file may be removed
//! <key id>.new     an epoch being created: no record has been written to it
//! <key id>.spent   the records of a live epoch
//! <key id>.retired a tombstone: the epoch was dropped, and its key is refused permanently
//! ```

use super::format::{ORIGIN, ORIGIN_LEN, Origin, Read};
use crate::Unknown;
use postern_token::{Mark, TokenKeyId};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a trial file: as many as the headers of a new epoch and some blocks of records.
const TRIAL: usize = 4 * 4096;

/// The directory, locked for this process until dropped.
pub(crate) struct Directory {
    path: PathBuf,
    handle: File,
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing is not enough: a child process inherits the descriptor and holds it until its `exec`.
        for lock in [&self.lock, &self.handle] {
            _ = lock.unlock(); // the end of the process unlocks it at the latest
        }
    }
}

/// The keys of live and of retired epochs.
type Keys = (Vec<TokenKeyId>, Vec<TokenKeyId>);

impl Directory {
    /// Creates the directory if missing (mode 0700), locks it, removes unfinished files, and lists the others.
    pub(crate) fn take(path: &Path) -> Result<(Self, Keys), StoreError> {
        create_durably(path)?;
        let handle = File::open(path).on("open", path)?;
        let meta = handle.metadata().on("read", path)?;
        if !meta.is_dir() {
            return Err(StoreError::foreign(path));
        }
        let mode = meta.mode() & 0o7777;
        if mode & 0o022 != 0 {
            let path = path.display();
            let reason =
                format!("others may write to the double-spend store {path} (mode {mode:o}): chmod 700 it");
            return Err(StoreError::Refused(reason));
        }
        // On a file system that cannot lock directories (NFS), the lock file is the only lock.
        if let Err(TryLockError::WouldBlock) = handle.try_lock() {
            return Err(StoreError::in_use(path));
        }
        let lock = lock(path)?;
        let directory = Self { path: path.to_owned(), handle, lock };
        let keys = directory.list()?;
        Ok((directory, keys))
    }

    pub(crate) fn records(&self, key: TokenKeyId) -> PathBuf {
        self.path.join(format!("{}.spent", key.to_hex()))
    }

    /// Creates a file and gives it its final name only after the bytes from `content` are on disk.
    pub(crate) fn create(
        &self,
        key: TokenKeyId,
        content: impl FnOnce(&Metadata) -> Vec<u8>,
    ) -> Result<File, StoreError> {
        let place = self.records(key);
        // Never overwrites an existing file: it may be a backup that was just restored.
        if fs::exists(&place).on("look for", &place)? {
            return Err(StoreError::foreign(&place));
        }
        let file = self.put(key, |file, meta| file.write_all_at(&content(meta), 0))?;
        // Removes the name if it may not be durable: no record has been written to the file yet.
        self.sync().inspect_err(|_| _ = fs::remove_file(&place))?;
        Ok(file)
    }

    /// Writes a file, and gives it the name of a key's records once it is on disk.
    fn put(
        &self,
        key: TokenKeyId,
        write: impl FnOnce(&mut File, &Metadata) -> io::Result<()>,
    ) -> Result<File, StoreError> {
        let new = self.path.join(format!("{}.new", key.to_hex()));
        let put = write_new(&new, write)
            .and_then(|file| fs::rename(&new, self.records(key)).on("rename", &new).map(|()| file));
        put.inspect_err(|_| _ = fs::remove_file(&new))
    }

    /// Moves the records of a live epoch from `file` to a new file with the same mark. Returns `None`, and leaves the files as
    /// they are, if another file has taken the place of `file`, if it has another mark, or if the records cannot be copied.
    ///
    /// # Errors
    /// The new file's name may not be durable: records written to it could be lost with the name.
    pub(crate) fn move_records(
        &self,
        key: TokenKeyId,
        file: &File,
        mark: Mark,
    ) -> Result<Option<File>, StoreError> {
        let place = self.records(key);
        if !is_marked(file, &place, mark).on("read", &place)? {
            return Ok(None);
        }
        let moved = self.put(key, |to, meta| {
            let mut from = file;
            from.rewind()?;
            io::copy(&mut from, to)?;
            to.write_all_at(&Origin::of(mark, meta).encode(), ORIGIN)
        });
        match moved {
            Ok(moved) => {
                self.sync()?;
                // Another hard link to the old file may remain and be restored some day.
                file.write_all_at(&[0xff; ORIGIN_LEN], ORIGIN).on("write", &place)?;
                Ok(Some(moved))
            }
            Err(error) => {
                tracing::warn!(
                    token_key = %key.short(), %error,
                    "the spent records of a token key keep their file: a backup of it that is written over it now would \
                     not be noticed"
                );
                Ok(None)
            }
        }
    }

    /// Tests whether the disk has room for a new file with content: writes several incompressible blocks under a name that
    /// [`Directory::take`] removes.
    pub(crate) fn try_to_write(&self) -> Result<(), StoreError> {
        let trial = self.path.join(format!("{}.new", TokenKeyId([0; 32]).to_hex()));
        let mut bytes = [0; TRIAL];
        rand::fill(&mut bytes);
        let written = write_new(&trial, |file, _| file.write_all_at(&bytes, 0));
        _ = fs::remove_file(&trial); // it may not exist
        written.map(drop)
    }

    /// Returns `true` if the tombstone of an epoch is all that is left of it.
    pub(super) fn is_retired(&self, key: TokenKeyId) -> bool {
        !self.records(key).exists() && fs::metadata(self.tombstone(key)).is_ok_and(|file| file.len() == 0)
    }

    fn tombstone(&self, key: TokenKeyId) -> PathBuf {
        self.path.join(format!("{}.retired", key.to_hex()))
    }

    /// Turns the records of an epoch into its tombstone: first renames the file durably, then frees its space. So one of the two
    /// exists at every moment, also after a crash. Idempotent: a call completes an interrupted one.
    pub(crate) fn retire(&self, key: TokenKeyId) -> Result<(), StoreError> {
        let (records, tombstone) = (self.records(key), self.tombstone(key));
        match fs::rename(&records, &tombstone) {
            // Renamed by an earlier call, or removed from outside: the key is refused either way.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let options =
                    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&tombstone);
                options.map(drop).on("create", &tombstone)?;
            }
            renamed => renamed.on("rename", &records)?,
        }
        self.sync()?;
        if fs::metadata(&tombstone).on("read", &tombstone)?.len() == 0 {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(&tombstone).on("open", &tombstone)?;
        file.set_len(0).on("empty", &tombstone)
    }

    /// Makes names durable: a rename is on disk only after its directory is synced.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.handle.sync_all().on("sync", &self.path)
    }

    fn list(&self) -> Result<Keys, StoreError> {
        let (mut live, mut retired) = Keys::default();
        for entry in fs::read_dir(&self.path).on("list", &self.path)? {
            let entry = entry.on("list", &self.path)?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_str().unwrap_or_default();
            if name == "lost+found" {
                continue; // the directory is the root of a file system
            }
            if !entry.file_type().on("read", &path)?.is_file() {
                return Err(StoreError::foreign(&path));
            }
            match name.split_once('.').map(|(stem, kind)| (key_id(stem), kind)) {
                Some((Some(key), "spent")) => live.push(key),
                Some((Some(key), "retired")) => retired.push(key),
                Some((Some(_), "new")) => fs::remove_file(&path).on("remove", &path)?,
                None if name == "lock" => {}
                _ => return Err(StoreError::foreign(&path)),
            }
        }
        Ok((live, retired))
    }
}

/// Creates the directory and its missing ancestors (mode 0700), and makes the whole path durable: whatever created the existing
/// part (an installer, a killed process) may not have synced it.
fn create_durably(path: &Path) -> Result<(), StoreError> {
    let mut missing = 0;
    for directory in path.ancestors().take_while(|directory| !directory.as_os_str().is_empty()) {
        if fs::exists(directory).on("look for", directory)? {
            break;
        }
        missing += 1;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).on("create", path)?;
    let whole = fs::canonicalize(path).on("find", path)?;
    make_durable(&whole, missing, |directory| File::open(directory)?.sync_all())
}

/// Syncs each directory above `path`. The lowest `made` names of the path are new.
fn make_durable(path: &Path, made: usize, sync: impl Fn(&Path) -> io::Result<()>) -> Result<(), StoreError> {
    for (generation, above) in path.ancestors().skip(1).enumerate() {
        match sync(above) {
            Ok(()) => {}
            // Existing names are as durable as this user can make them: some directories cannot be opened.
            Err(_) if generation >= made => {}
            failed => failed.on("sync", above)?,
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let place = path.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&place);
    let file = file.on("open", &place)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::in_use(path)),
        Err(TryLockError::Error(error)) => Err(error).on("lock", &place),
    }
}

/// Returns `true` if `file` is the file at `place` and has this mark.
fn is_marked(file: &File, place: &Path, mark: Mark) -> io::Result<bool> {
    let (held, there) = (file.metadata()?, fs::metadata(place)?);
    let mut origin = [0; ORIGIN_LEN];
    file.read_exact_at(&mut origin, ORIGIN)?;
    let is_there = (held.dev(), held.ino()) == (there.dev(), there.ino());
    Ok(is_there && Origin::read(&origin, &held) == Read::Marked(mark))
}

/// Writes a new file, or over one that was not finished, and syncs it.
fn write_new(
    path: &Path,
    write: impl FnOnce(&mut File, &Metadata) -> io::Result<()>,
) -> Result<File, StoreError> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path);
    let mut file = file.on("create", path)?;
    let meta = file.metadata().on("read", path)?;
    write(&mut file, &meta).on("write", path)?;
    file.sync_all().on("sync", path)?;
    Ok(file)
}

/// Parses exactly 64 lower-case hex digits, so that each key has one name.
fn key_id(stem: &str) -> Option<TokenKeyId> {
    let mut id = [0; 32];
    hex::decode_to_slice(stem, &mut id).ok()?;
    Some(TokenKeyId(id)).filter(|id| id.to_hex() == stem)
}

/// The reason why the embedded store cannot be opened, or an expired epoch cannot be dropped.
///
/// A store that cannot read everything it once wrote does not open: starting without a record would let its token be spent
/// again. Each message contains the fault, its place, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {action} {}: {source}; check the disk, and that this user may write there", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// The directory or a file in it must not be used.
    #[error("{0}")]
    Refused(String),
    #[error("cannot start the double-spend store's sync thread: {0}; allow more processes (ulimit -u)")]
    Thread(io::Error),
}

impl StoreError {
    pub(crate) fn in_use(directory: &Path) -> Self {
        Self::Refused(format!(
            "another process has the double-spend store {} open: stop it, or use another directory",
            directory.display()
        ))
    }

    /// Returns the error for an unknown file. It could be records under a wrong name, so it is not ignored.
    pub(crate) fn foreign(path: &Path) -> Self {
        let path = path.display();
        Self::Refused(format!(
            "{path} does not belong in the double-spend store: move it out of the directory"
        ))
    }

    pub(crate) fn damaged(path: &Path, why: &str) -> Self {
        Self::Refused(format!(
            "the spent records in {} cannot be trusted: {why}. Bring the file back from a backup; or rename it to end in .retired \
             instead of .spent, and all tokens of its key are refused from then on",
            path.display()
        ))
    }

    /// Returns the meaning of this error for a spend.
    pub(crate) fn unknown(&self) -> Unknown {
        match self {
            Self::Io { source, .. } | Self::Thread(source) => Unknown::from(source.kind()),
            _ => Unknown::Unavailable(io::ErrorKind::InvalidData),
        }
    }
}

/// Adds the action and the path to an `io::Error`: `file.sync_all().on("sync", &path)?`.
pub(crate) trait On<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, StoreError>;
}

impl<T> On<T> for io::Result<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io { action, path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_there_before_may_refuse_to_be_synced() {
        let refused_by = |directory: &str, made| {
            let sync = |above: &Path| match above == Path::new(directory) {
                true => Err(io::ErrorKind::PermissionDenied.into()),
                false => Ok(()),
            };
            make_durable(Path::new("/a/b/c"), made, sync).is_err()
        };
        assert_eq!(["/a/b", "/a", "/"].map(|directory| refused_by(directory, 0)), [false, false, false]);
        assert_eq!(["/a/b", "/a", "/"].map(|directory| refused_by(directory, 2)), [true, true, false]);
    }
}
