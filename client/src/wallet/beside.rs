//! Files beside the wallet that outlive a restart. Their names are the wallet's with an ending.

use postern_daemon::files::write_private;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

/// A text file beside the wallet, and the text that it is known to hold.
pub(crate) struct FileBeside {
    path: PathBuf,
    saved: String,
    /// Whether a failure to write has been logged.
    complained: bool,
}

impl FileBeside {
    pub(crate) fn of(wallet: &Path, ending: &str) -> Self {
        let mut name = OsString::from(wallet);
        name.push(ending);
        Self { path: name.into(), saved: String::new(), complained: false }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what `parse` makes of the file's text, or the default without a file. Logs why a file cannot be used, and that
    /// `loss` follows. Blocks on the disk.
    pub(crate) fn load<T: Default>(
        &mut self,
        parse: impl FnOnce(&str) -> Result<T, String>,
        loss: &str,
    ) -> T {
        let parsed = match std::fs::read_to_string(&self.path) {
            Ok(text) => parse(&text).inspect(|_| self.saved = text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
            Err(error) => Err(error.to_string()),
        };
        parsed.unwrap_or_else(|reason| {
            tracing::warn!(
                "{} is not used: {reason}. {loss}; delete the file, or mend it and start again",
                self.path.display()
            );
            T::default()
        })
    }

    /// Replaces the file's text where it differs and is not empty, and returns whether the file holds it. Of failures in a row
    /// the first is logged, with the `loss` that follows.
    pub(crate) async fn save(&mut self, text: String, loss: &str) -> bool {
        if text.is_empty() || text == self.saved {
            return true;
        }
        let (path, bytes) = (self.path.clone(), text.as_bytes().to_vec());
        let written = spawn_blocking(move || write_private(&path, &bytes)).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => (self.saved, self.complained) = (text, false),
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::warn!("cannot write {}: {error}; {loss}. Check the disk", self.path.display());
                }
            }
        }
        !self.complained
    }
}
