//! Files that only this process may read: written whole or not at all, in a directory that one process owns.
//!
//! These calls block on the disk. Call them before the runtime starts, or from `spawn_blocking`.

#[cfg(unix)]
#[path = "files/unix.rs"]
mod system;
#[cfg(windows)]
#[path = "files/windows.rs"]
mod system;

pub use system::{AtOffset, make_private, private_directory, private_file, sync_directory};

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
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
    let temporary = temporary_name(path)?;
    let written = (|| {
        let mut file = private_file().write(true).create_new(true).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary); // it may not exist; report the first error
    }
    written?;
    sync_name(path)
}

/// The same of a secret that is in the file already: the bytes that were there are overwritten, unless another name has them,
/// too. Disks that write elsewhere than where they read (flash, copy on write, snapshots) keep them all the same.
///
/// # Errors
/// As [`write_private`], and when the old bytes cannot be overwritten: the new ones are then in place.
#[cfg(unix)] // elsewhere a program cannot tell whether another name has them
pub fn replace_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;

    let mut old = File::options().write(true).open(path)?;
    write_private(path, bytes)?;
    let metadata = old.metadata()?;
    if metadata.nlink() == 0 {
        io::copy(&mut io::repeat(0).take(metadata.len()), &mut old)?;
        old.sync_all()?;
    }
    Ok(())
}

/// Flushes the directory that holds `path`, so that the name survives a power loss.
///
/// # Errors
/// As [`sync_directory`].
pub fn sync_name(path: &Path) -> io::Result<()> {
    sync_directory(parent(path))
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
    lock: File,
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that is being started has the descriptor until it runs its program.
        let _ = self.lock.unlock(); // it is unlocked at the latest when the process ends
    }
}

impl DataDir {
    /// Creates the directory (mode 0700, parents too) when it is missing, and locks it.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] when another process, or another value in this one, has it open.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
        create_directory(path).map_err(unusable)?;
        let mut options = private_file();
        options.read(true).write(true).create(true).truncate(false);
        let lock = options.open(path.join(LOCK_FILE)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataDirError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        remove_leftovers(path).map_err(unusable)?;
        Ok(Self { path: path.to_owned(), lock })
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

/// Creates a directory if it is missing, and those above it, and makes its whole path durable: a file in it is as lost
/// without the directory's name as without its own. Whatever made a part of the path before need not have synced it.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    let named = path.ancestors().take_while(|directory| !directory.as_os_str().is_empty());
    let missing = named.take_while(|directory| !directory.exists()).count();
    private_directory().create(path)?;
    for (generation, above) in path.canonicalize()?.ancestors().skip(1).enumerate() {
        let synced = sync_directory(above);
        // What was here before is as durable as this user can make it: some directories refuse to be opened.
        if generation < missing {
            synced?;
        }
    }
    Ok(())
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
        "another postern has the data directory {} open: stop it, or name another (--data; keys.directory of an \
         issuer)",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It could not be made, locked or read.
    #[error(
        "cannot use the data directory {}: {source}; name one that this user may write to (--data; keys.directory of an \
         issuer)", path.display()
    )]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

#[cfg(test)]
mod power_loss;
#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_private_file_is_replaced_whole_and_is_the_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wallet");
        std::fs::write(&path, "what an older version left open to all").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wallet");
        std::fs::create_dir(&path).unwrap(); // a directory cannot be renamed over
        assert!(write_private(&path, b"one").is_err());
        assert!(path.is_dir());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(write_private(Path::new("/"), b"").is_err());
    }

    #[test]
    fn a_secret_that_is_replaced_is_overwritten_where_no_other_name_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "secret").unwrap();
        let mut before = File::open(&path).unwrap();
        replace_secret(&path, b"sealed").unwrap();
        let mut left = Vec::new();
        before.read_to_end(&mut left).unwrap();
        assert_eq!((left, std::fs::read(&path).unwrap()), (vec![0; 6], b"sealed".to_vec()));

        let backup = directory.path().join("backup");
        std::fs::hard_link(&path, &backup).unwrap();
        replace_secret(&path, b"again").unwrap();
        assert_eq!(std::fs::read(&backup).unwrap(), b"sealed");
        assert!(replace_secret(&directory.path().join("none"), b"").is_err());
    }

    #[test]
    fn two_writers_of_one_file_leave_one_of_the_two() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wallet");
        std::thread::scope(|scope| {
            for byte in [b'a', b'b'] {
                let path = &path;
                scope.spawn(move || (0..20).for_each(|_| write_private(path, &[byte; 5000]).unwrap()));
            }
        });
        let left = std::fs::read(&path).unwrap();
        assert!(left == [b'a'; 5000] || left == [b'b'; 5000]);
    }

    #[test]
    fn a_data_directory_has_one_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/data");
        let first = DataDir::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&first.join("lock")), 0o600);
        let refused = DataDir::open(&path).unwrap_err();
        assert!(matches!(refused, DataDirError::InUse { .. }));
        assert_eq!(
            refused.to_string(),
            format!(
                "another postern has the data directory {} open: stop it, or name another (--data; keys.directory of an \
                 issuer)",
                path.display()
            )
        );
        drop(first);
        DataDir::open(&path).unwrap();
    }

    #[test]
    fn opening_removes_what_a_crash_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::write(path.join(".wallet.new-77-0"), "half").unwrap();
        std::fs::write(path.join("wallet"), "whole").unwrap();
        let data = DataDir::open(path).unwrap();
        assert!(!data.join(".wallet.new-77-0").exists());
        assert!(data.join("wallet").exists());
    }

    #[test]
    fn a_path_that_is_a_file_is_said_in_a_sentence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = DataDir::open(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot use the data directory {}: ", path.display())), "{error}");
    }
}
