use crate::Unknown;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why the embedded store cannot be opened, or an expired epoch cannot be dropped.
///
/// A store that cannot read everything it once wrote does not open: starting without a record would let its token be spent
/// again. Each message contains the fault, its place, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process, or another [`Embedded`](crate::Embedded) in this process, has the directory open.
    #[error("another process has the double-spend store {} open: stop it, or use another directory", .0.display())]
    InUse(PathBuf),
    /// The system could not read or write.
    #[error("cannot {action} {}: {source}; check the disk, and that this user may write there", .path.display())]
    Io {
        /// The operation: "read", "create", …
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users could delete or replace records.
    #[error("others may write to the double-spend store {} (mode {mode:o}): chmod 700 it", .path.display())]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// An unknown entry in the directory. It could be records under a wrong name, so it is not ignored.
    #[error("{} does not belong in the double-spend store: move it out of the directory", .0.display())]
    Foreign(PathBuf),
    /// A records file is corrupt.
    #[error(
        "the spent records in {} cannot be trusted: {why}. Bring the file back from a backup; or rename it to end in \
         .retired instead of .spent, and all tokens of its key are refused from then on",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// A later version of the program wrote the file.
    #[error("{} has version {version}, written by a later Postern: run that version", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version in its header.
        version: u32,
    },
    /// The sync thread could not be started.
    #[error("cannot start the double-spend store's sync thread: {0}; allow more processes (ulimit -u)")]
    Thread(io::Error),
}

impl StoreError {
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
