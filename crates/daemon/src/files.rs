//! Private files, replaced as a whole or not at all, and data directories that one process owns.
//!
//! These calls block on the disk. Call them before the runtime starts, or from `spawn_blocking`.

#[cfg(unix)]
#[path = "files/unix.rs"]
mod system;
#[cfg(windows)]
#[path = "files/windows.rs"]
mod system;

#[cfg(unix)]
pub use system::exposed_mode;
pub use system::{AtOffset, make_private, private_directory, private_file, sync_directory};

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// File of a data directory that its process locks.
pub const LOCK_FILE: &str = "lock";
const TEMPORARY_MARK: &str = ".new-";

/// Replaces `path` by `bytes`, readable by the owner alone (mode 0600).
///
/// After a crash or a power loss the file holds either all old bytes or all new ones: the new file is flushed to the disk before
/// the rename, and the directory after it.
///
/// # Errors
/// The directory does not exist or cannot be written. The old file is then untouched, unless only the final flush of the
/// directory failed.
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

/// Replaces a file as [`write_private`] does, and overwrites the old bytes of a secret, unless the file has another hard link.
/// Disks that write out of place (flash, copy on write, snapshots) keep the old bytes nevertheless.
///
/// # Errors
/// As [`write_private`]; or the old bytes cannot be overwritten, and then the new ones are in place.
#[cfg(unix)] // std counts hard links only on Unix
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
pub fn sync_name(path: &Path) -> io::Result<()> {
    sync_directory(parent(path))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns a name that no concurrent write of this or another process uses.
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

/// A data directory that this process has locked. The lock ends with the value, or with the process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // Closing alone is not enough: a child process that is being started holds the descriptor until it runs its program.
        let _ = self.lock.unlock(); // at the latest, the end of the process unlocks it
    }
}

impl DataDir {
    /// Creates the directory (mode 0700, with parents) if it is missing, and locks it.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] if another process, or another value in this process, holds the lock.
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

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

/// Creates a directory and its missing parents, and makes the whole path durable: a file is as lost without the directory's name
/// as without its own. The creator of an existing part of the path may not have synced it.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    let named = path.ancestors().take_while(|directory| !directory.as_os_str().is_empty());
    let missing = named.take_while(|directory| !directory.exists()).count();
    private_directory().create(path)?;
    for (generation, above) in path.canonicalize()?.ancestors().skip(1).enumerate() {
        let synced = sync_directory(above);
        // Existing directories are synced as far as this user can: some cannot be opened.
        if generation < missing {
            synced?;
        }
    }
    Ok(())
}

/// Removes temporary files of [`write_private`] calls whose process died. Only the owner of the lock may: files of any other
/// process are still being written.
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

/// Error from opening a data directory. Daemons exit with [`crate::exit::RUNTIME`].
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error(
        "another postern has the data directory {} open: stop it, or name another (--data; keys.directory of an \
         issuer)",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error(
        "cannot use the data directory {}: {source}; name one that this user may write to (--data; keys.directory of an \
         issuer)", path.display()
    )]
    Unusable { path: PathBuf, source: io::Error },
}

#[cfg(test)]
#[path = "files/tests/power_loss.rs"]
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
