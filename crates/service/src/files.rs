//! Files that only this process may read: written whole or not at all, in a directory that one process owns.
//!
//! These calls block on the disk. Call them before the runtime starts, or from `spawn_blocking`.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const LOCK_FILE: &str = "lock";
const TEMPORARY_MARK: &str = ".new-";

/// Replaces `path` by `bytes`, readable by the owner alone (mode 0600).
///
/// After a crash or a power loss the file holds either the old bytes or the new ones, all of them: the new file is
/// flushed to the disk before it takes the name, and the directory after.
///
/// # Errors
/// When the directory does not exist or cannot be written. The old file is then untouched.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = parent(path);
    let temporary = temporary_name(path)?;
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary); // it may never have been made; the first error is the one to tell
    }
    written?;
    sync_directory(directory)
}

/// Flushes a directory, so that a name made or removed in it survives a power loss.
///
/// # Errors
/// When the directory cannot be opened or flushed.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A name that no other write of this or another process uses at the same time.
fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
    };
    let mut temporary = OsString::from(".");
    temporary.push(name);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!("{TEMPORARY_MARK}{}-{number}", std::process::id()));
    Ok(path.with_file_name(temporary))
}

/// A data directory that this process alone has open. The lock goes with the value, or with the process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the directory (mode 0700, parents too) when it is missing, and locks it.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] when another process, or another value in this one, has it open.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join(LOCK_FILE))
            .map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataDirError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        remove_leftovers(path).map_err(unusable)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside the directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

/// Removes what [`write_private`] left when a process died in it. Only the owner of the lock may: any other
/// process's file is work in progress.
fn remove_leftovers(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.contains(TEMPORARY_MARK) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Why a data directory could not be opened. Daemons exit with [`crate::exit::RUNTIME`] on it.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds the lock.
    #[error(
        "another postern has the data directory {} open: stop it, or choose another directory with --data",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It could not be made, locked or read.
    #[error("cannot use the data directory {}: {source}", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
