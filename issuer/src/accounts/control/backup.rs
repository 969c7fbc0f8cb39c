//! Backup of the database while it is in use.

use super::Refused;
use crate::Config;
use crate::accounts::AccountsError;
use crate::accounts::database::{self, FILE_NAME};
use postern_daemon::files::private_file;
use rusqlite::params;
use std::io;
use std::path::Path;

/// Writes the present state of the SQLite database to `target`, a new file (mode 0600), and reads every page of the
/// copy. The issuer may run, and is not blocked. The secret of the API keys is another file, and not included.
///
/// # Errors
/// A sentence for the operator. An incomplete `target` is removed.
pub fn backup(config: &Config, target: &Path) -> Result<(), Refused> {
    if config.accounts.database.is_some() {
        return Err(Refused::usage(
            "the accounts are in PostgreSQL ([accounts] database): copy it with pg_dump",
        ));
    }
    let path = config.keys.directory.join(FILE_NAME);
    let unusable = |path: &Path, reason: &str| AccountsError::Unusable {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    if !path.exists() {
        return Err(unusable(&path, "there is none: the issuer has not been started yet").into());
    }
    database::inspect(&path)?;
    let name = target.to_str().ok_or_else(|| unusable(target, "its name is not UTF-8"))?;
    // SQLite would make the file readable by all users; it accepts an empty file as a new one.
    private_file().write(true).create_new(true).open(target).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::AlreadyExists => "there is a file of this name, which was left as it is".to_owned(),
            _ => error.to_string(),
        };
        let target = target.display();
        Refused::usage(format!(
            "the copy cannot be written to {target}: {why}; name a new file, in a folder that is there and writable"
        ))
    })?;
    let copied = copy(&path, target, name);
    if copied.is_err() {
        let _ = std::fs::remove_file(target); // the first error is the one to report
    }
    Ok(copied?)
}

fn copy(path: &Path, target: &Path, name: &str) -> Result<(), AccountsError> {
    let connection = database::open_to_read(path)?;
    connection
        .pragma_update(None, "query_only", false) // the copy is written through this connection
        .and_then(|()| connection.execute("VACUUM INTO ?1", params![name]))
        .map_err(|error| AccountsError::of(target, &error))?;
    let copy = database::open_to_read(target)?;
    database::check_pages(&copy, target)?;
    std::fs::File::open(target)
        .and_then(|file| file.sync_all())
        .map_err(|error| AccountsError::io(target, &error))
}
