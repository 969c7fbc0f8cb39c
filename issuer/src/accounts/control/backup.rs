//! A copy of the database while it is in use.

use crate::accounts::AccountsError;
use crate::accounts::database::{self, FILE_NAME};
use rusqlite::params;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes the database in `directory` as it is at this moment to `target`, a new file (mode 0600), and reads every page of the
/// copy. The issuer may run, and is not held up. The secret of the API keys is another file, and not in it.
///
/// # Errors
/// A sentence for the operator. What was begun at `target` is removed.
pub fn backup(directory: &Path, target: &Path) -> Result<(), AccountsError> {
    let path = directory.join(FILE_NAME);
    let unusable = |path: &Path, reason: String| AccountsError::Unusable { path: path.to_owned(), reason };
    if !path.exists() {
        return Err(unusable(&path, "there is none: the issuer has not been started yet".to_owned()));
    }
    database::inspect(&path)?;
    let Some(name) = target.to_str() else {
        return Err(unusable(target, "its name is not UTF-8".to_owned()));
    };
    // SQLite would make it readable by all; it takes an empty file for a new one.
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target)
        .map_err(|source| AccountsError::Target { path: target.to_owned(), source })?;
    let copied = copy(&path, target, name);
    if copied.is_err() {
        let _ = std::fs::remove_file(target); // the first error is the one to report
    }
    copied
}

fn copy(path: &Path, target: &Path, name: &str) -> Result<(), AccountsError> {
    let connection = database::open_to_read(path)?;
    connection
        .pragma_update(None, "query_only", false) // the copy is written through it
        .and_then(|()| connection.execute("VACUUM INTO ?1", params![name]))
        .map_err(|error| AccountsError::of(target, &error))?;
    let copy = database::open_to_read(target)?;
    database::check_pages(&copy, target)?;
    std::fs::File::open(target)
        .and_then(|file| file.sync_all())
        .map_err(|error| AccountsError::Unusable { path: target.to_owned(), reason: error.to_string() })
}
