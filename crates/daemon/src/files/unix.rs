//! Permissions, directories and positioned I/O on Unix.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
pub use std::os::unix::fs::FileExt as AtOffset;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Returns options that create files with mode 0600 (owner only).
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Returns the permission bits of a file that users other than its owner may access.
pub fn exposed_mode(metadata: &Metadata) -> Option<u32> {
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Returns a builder that creates missing directories and their parents with mode 0700 (owner only).
pub fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

/// Restricts an existing file to its owner (mode 0600).
pub fn make_private(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o600))
}

/// Flushes a directory, so that a name created or removed in it survives a power loss.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
