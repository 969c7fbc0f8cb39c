//! Permissions, directories and places in files, as Unix has them.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
pub use std::os::unix::fs::FileExt as AtOffset;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// For a file that only its owner may read and write (mode 0600), once it is created.
#[must_use]
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// For directories that only their owner may use (mode 0700), and those above them, where they are missing.
#[must_use]
pub fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

/// Takes a file that is there from everyone but its owner (mode 0600).
///
/// # Errors
/// When the file is another user's.
pub fn make_private(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o600))
}

/// Flushes a directory, so that a name made or removed in it survives a power loss.
///
/// # Errors
/// When the directory cannot be opened or flushed.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
