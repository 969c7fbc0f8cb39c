//! The store's directory: its lock, its files, and the steps that change them so that no crash loses a record.
//!
//! ```text
//! lock             held by the process that has the store open, as the directory itself is: the file may be removed
//! <key id>.new     an epoch being created: no record has been written to it
//! <key id>.spent   the records of a live epoch
//! <key id>.retired a tombstone: the epoch was dropped, and its key is refused for ever
//! ```

use super::ancestors;
use super::error::{On, StoreError};
use super::origin::{ORIGIN, ORIGIN_LEN, Origin, Read};
use postern_token::{Mark, TokenKeyId};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a trial file: the headers of a new epoch, and some blocks of records.
const TRIAL: usize = 4 * 4096;

/// The directory, locked for this process until dropped.
pub(crate) struct Directory {
    path: PathBuf,
    handle: File,
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that is being started has the descriptor until it runs its program.
        for lock in [&self.lock, &self.handle] {
            _ = lock.unlock(); // it is unlocked at the latest when the process ends
        }
    }
}

/// What [`Directory::take`] found. New, unfinished files have been removed.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) live: Vec<TokenKeyId>,
    pub(crate) retired: Vec<TokenKeyId>,
}

impl Directory {
    /// Creates the directory if need be (mode 0700), locks it and lists it.
    pub(crate) fn take(path: &Path) -> Result<(Self, Contents), StoreError> {
        ancestors::create(path)?;
        let handle = File::open(path).on("open", path)?;
        let meta = handle.metadata().on("read", path)?;
        if !meta.is_dir() {
            return Err(StoreError::Foreign(path.to_owned()));
        }
        if meta.mode() & 0o022 != 0 {
            return Err(StoreError::Exposed { path: path.to_owned(), mode: meta.mode() & 0o7777 });
        }
        // Where a file system locks no directories (NFS), the file is all there is.
        if let Err(TryLockError::WouldBlock) = handle.try_lock() {
            return Err(StoreError::InUse(path.to_owned()));
        }
        let lock = lock(path)?;
        let directory = Self { path: path.to_owned(), handle, lock };
        let contents = directory.list()?;
        Ok((directory, contents))
    }

    /// The file that holds the records of a live epoch.
    pub(crate) fn records(&self, key: TokenKeyId) -> PathBuf {
        self.path.join(format!("{}.spent", key.to_hex()))
    }

    /// Puts a file in place under its final name: the bytes that `content` makes are on disk before that name exists.
    pub(crate) fn create(
        &self,
        key: TokenKeyId,
        content: impl FnOnce(&Metadata) -> Vec<u8>,
    ) -> Result<File, StoreError> {
        let place = self.records(key);
        // Never overwrites a file that appears meanwhile: it may be a backup that was just restored.
        if fs::exists(&place).on("look for", &place)? {
            return Err(StoreError::Foreign(place));
        }
        let new = self.path.join(format!("{}.new", key.to_hex()));
        let result = write_new(&new, content).and_then(|file| {
            fs::rename(&new, &place).on("rename", &new)?;
            // Removes the name if it may not be durable: no record has been written to the file yet.
            self.sync().inspect_err(|_| _ = fs::remove_file(&place))?;
            Ok(file)
        });
        result.inspect_err(|_| _ = fs::remove_file(&new))
    }

    /// Moves the records of a live epoch, which are in `file`, into a new one with the same mark. Where another file has taken
    /// its place, or it has another mark, it is none of ours to certify: `None`, and what is there stays. The same where the
    /// records cannot be copied.
    ///
    /// # Errors
    /// When the new file's name may not be durable: what is written to it could be lost with the name.
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
        let new = self.path.join(format!("{}.new", key.to_hex()));
        let moved = copy_records(file, &new, mark)
            .and_then(|moved| fs::rename(&new, &place).on("rename", &new).map(|()| moved));
        match moved {
            Ok(moved) => {
                self.sync()?;
                // Another name of the old file may be left, and be put back one day.
                file.write_all_at(&[0xff; ORIGIN_LEN], ORIGIN).on("write", &place)?;
                Ok(Some(moved))
            }
            Err(error) => {
                _ = fs::remove_file(&new);
                tracing::warn!(
                    token_key = %key.short(), %error,
                    "the spent records of a token key keep their file: a backup of it that is written over it now would \
                     not be noticed"
                );
                Ok(None)
            }
        }
    }

    /// Tests whether the disk has room for a new file and its content: writes several incompressible blocks under a
    /// name that [`Directory::take`] removes.
    pub(crate) fn try_to_write(&self) -> Result<(), StoreError> {
        let trial = self.path.join(format!("{}.new", TokenKeyId([0; 32]).to_hex()));
        let mut bytes = [0; TRIAL];
        rand::fill(&mut bytes);
        let written = write_new(&trial, |_| bytes.to_vec());
        _ = fs::remove_file(&trial); // it may never have been made
        written.map(drop)
    }

    /// Turns the records of an epoch into its tombstone: first renames the file durably, then frees its space. So at
    /// every moment, also after a crash, one of the two exists. May be repeated: a call finishes what one before began.
    pub(crate) fn retire(&self, key: TokenKeyId) -> Result<(), StoreError> {
        let (records, tombstone) = (self.records(key), self.tombstone(key));
        match fs::rename(&records, &tombstone) {
            // Renamed before, or removed by someone else: the key is refused either way.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let options =
                    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&tombstone);
                options.map(drop).on("create", &tombstone)?;
            }
            renamed => renamed.on("rename", &records)?,
        }
        self.sync()?;
        self.empty_tombstone(key)
    }

    /// Gives back what a tombstone still holds, after a crash between the two steps of [`Directory::retire`].
    pub(crate) fn empty_tombstone(&self, key: TokenKeyId) -> Result<(), StoreError> {
        let tombstone = self.tombstone(key);
        if fs::metadata(&tombstone).on("read", &tombstone)?.len() == 0 {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(&tombstone).on("open", &tombstone)?;
        file.set_len(0).on("empty", &tombstone)
    }

    fn tombstone(&self, key: TokenKeyId) -> PathBuf {
        self.path.join(format!("{}.retired", key.to_hex()))
    }

    /// Makes names durable: a rename is on disk only after its directory is synced.
    fn sync(&self) -> Result<(), StoreError> {
        self.handle.sync_all().on("sync", &self.path)
    }

    fn list(&self) -> Result<Contents, StoreError> {
        let mut contents = Contents::default();
        for entry in fs::read_dir(&self.path).on("list", &self.path)? {
            let entry = entry.on("list", &self.path)?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_str().unwrap_or_default();
            if name == "lost+found" {
                continue; // the root of a filesystem of its own
            }
            if !entry.file_type().on("read", &path)?.is_file() {
                return Err(StoreError::Foreign(path));
            }
            match name.split_once('.').map(|(stem, kind)| (key_id(stem), kind)) {
                Some((Some(key), "spent")) => contents.live.push(key),
                Some((Some(key), "retired")) => contents.retired.push(key),
                Some((Some(_), "new")) => fs::remove_file(&path).on("remove", &path)?,
                None if name == "lock" => {}
                _ => return Err(StoreError::Foreign(path)),
            }
        }
        Ok(contents)
    }
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let place = path.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&place);
    let file = file.on("open", &place)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(error).on("lock", &place),
    }
}

/// Whether a file is the one in this place, and has this mark.
fn is_marked(file: &File, place: &Path, mark: Mark) -> io::Result<bool> {
    let (held, there) = (file.metadata()?, fs::metadata(place)?);
    let mut origin = [0; ORIGIN_LEN];
    file.read_exact_at(&mut origin, ORIGIN)?;
    let is_there = (held.dev(), held.ino()) == (there.dev(), there.ino());
    Ok(is_there && Origin::read(&origin, &held) == Read::Marked(mark))
}

fn copy_records(mut from: &File, to: &Path, mark: Mark) -> Result<File, StoreError> {
    from.rewind().on("read", to)?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(to);
    let mut file = file.on("create", to)?;
    io::copy(&mut from, &mut file).on("copy", to)?;
    let origin = Origin::of(mark, &file.metadata().on("read", to)?);
    file.write_all_at(&origin.encode(), ORIGIN).on("write", to)?;
    file.sync_all().on("sync", to)?;
    Ok(file)
}

fn write_new(path: &Path, content: impl FnOnce(&Metadata) -> Vec<u8>) -> Result<File, StoreError> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path);
    let file = file.on("create", path)?;
    let bytes = content(&file.metadata().on("read", path)?);
    file.write_all_at(&bytes, 0).on("write", path)?;
    file.sync_all().on("sync", path)?;
    Ok(file)
}

/// The key id that 64 lower-case hex digits spell: one name for one key.
fn key_id(stem: &str) -> Option<TokenKeyId> {
    if stem.len() != 64 || !stem.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut id = [0; 32];
    for (byte, digits) in id.iter_mut().zip(stem.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(TokenKeyId(id))
}
