//! Why a store's directory cannot be opened or kept in order.

use crate::Unknown;
use std::io;
use std::path::{Path, PathBuf};

/// Why the embedded store cannot be opened, or an expired epoch not dropped.
///
/// A store that cannot read everything it once wrote does not open: to start without a record would let its token be
/// spent again. Each message has what is wrong, where, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process (or another [`Embedded`](crate::Embedded) in this one) has the directory.
    #[error("another process has the double-spend store {} open: stop it, or use another directory", .0.display())]
    InUse(PathBuf),
    /// The system refused to read or write.
    #[error("cannot {action} {}: {source}; check the disk, and that this user may write there", .path.display())]
    Io {
        /// The operation: "read", "create", …
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Others could delete or replace records.
    #[error("others may write to the double-spend store {} (mode {mode:o}): chmod 700 it", .path.display())]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Something in the directory is not this store's. It could be records under a wrong name, so it is not ignored.
    #[error("{} does not belong in the double-spend store: move it out of the directory", .0.display())]
    Foreign(PathBuf),
    /// A records file cannot be read as one.
    #[error(
        "the spent records in {} cannot be trusted: {why}. Bring the file back from a backup; or rename it to end in \
         .retired instead of .spent, and all tokens of its key are refused from then on",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A later version of the program wrote the file.
    #[error("{} has version {version}, written by a later Postern: run that version", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version it names.
        version: u32,
    },
    /// No thread for syncing could be started.
    #[error("cannot start the double-spend store's sync thread: {0}; allow more processes (ulimit -u)")]
    Thread(io::Error),
}

impl StoreError {
    /// What it means to a spend.
    pub(crate) fn unknown(&self) -> Unknown {
        match self {
            Self::Io { source, .. } | Self::Thread(source) => Unknown::from(source.kind()),
            _ => Unknown::Unavailable(io::ErrorKind::InvalidData),
        }
    }
}

/// Gives an `io::Error` its place: `file.sync_all().on("sync", &path)?`.
pub(crate) trait On<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, StoreError>;
}

impl<T> On<T> for io::Result<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io { action, path: path.to_owned(), source })
    }
}
