//! A file beside the wallet, of what a restart should not forget: its name is the wallet's, with an ending.

use postern_daemon::files::write_private;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

pub(crate) struct FileBeside {
    path: PathBuf,
    /// Whether a failure to write has been logged.
    complained: bool,
}

impl FileBeside {
    pub(crate) fn of(wallet: &Path, ending: &str) -> Self {
        let mut name = OsString::from(wallet);
        name.push(ending);
        Self { path: name.into(), complained: false }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its text; none while there is no file. Blocks on the disk.
    pub(crate) fn read(&self) -> io::Result<Option<String>> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What `parse` makes of its text. Where there is no file or a wrong one it is the default; of a wrong one the log says so, and
    /// that `loss` follows. Blocks on the disk.
    pub(crate) fn load<T: Default>(&self, parse: impl FnOnce(String) -> Result<T, String>, loss: &str) -> T {
        let read = self.read().map_err(|error| error.to_string());
        let parsed = read.and_then(|text| text.map_or_else(|| Ok(T::default()), parse));
        parsed.unwrap_or_else(|reason| {
            tracing::warn!(
                "{} is not used: {reason}. {loss}; delete the file, or mend it and start again",
                self.path.display()
            );
            T::default()
        })
    }

    /// Replaces its text.
    pub(crate) async fn write(&self, text: &str) -> io::Result<()> {
        let (path, bytes) = (self.path.clone(), text.as_bytes().to_vec());
        let written = spawn_blocking(move || write_private(&path, &bytes)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Replaces its text, and returns whether that worked. Of failures in a row the first is logged, with the `loss` that follows.
    pub(crate) async fn save(&mut self, text: &str, loss: &str) -> bool {
        match self.write(text).await {
            Ok(()) => self.complained = false,
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::warn!("cannot write {}: {error}; {loss}. Check the disk", self.path.display());
                }
            }
        }
        !self.complained
    }
}
