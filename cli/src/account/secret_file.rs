//! A new file for a secret that is shown once.

use crate::failure::Failure;
use nix::unistd::{getuid, seteuid};
use postern_daemon::files::private_file;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that only the caller can read. Without a secret in it, it is removed again.
pub(super) struct SecretFile {
    path: PathBuf,
    file: File,
    is_written: bool,
}

impl SecretFile {
    /// Creates the file, which must not exist: before the request, because a key that cannot be written would be lost.
    pub(super) fn create(path: PathBuf) -> Result<Self, Failure> {
        match private_file().write(true).create_new(true).open(&path) {
            Ok(file) => Ok(Self { path, file, is_written: false }),
            Err(error) => Err(Failure::usage(format_args!(
                "cannot create {}: {error}; name a file that does not exist. Nothing was changed",
                path.display()
            ))),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&mut self, secret: &str) -> io::Result<()> {
        writeln!(self.file, "{secret}")?;
        self.file.sync_all()?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.is_written {
            let _ = seteuid(getuid()); // root may have become the issuer's user, who cannot remove it
            let _ = std::fs::remove_file(&self.path); // an empty file is a nuisance, and no harm
        }
    }
}
