//! Creation, opening and checks of the database file.
//!
//! SQLite with a write-ahead log and `synchronous = FULL`: committed data survives a power loss, and readers (this process,
//! `sqlite3`, a backup) never wait for a writer. The issuer's lock on the directory makes it the only `postern` that writes.

use crate::database::{Error, SCHEMA};
use nix::unistd::geteuid;
use postern_daemon::files::{exposed_mode, private_file, sync_name};
use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::ffi::c_int;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// File name of the database, in the directory of the keys.
pub(crate) const FILE_NAME: &str = "accounts.sqlite";
/// SQLite's application id of the file: "Post".
const APPLICATION_ID: u32 = 0x506f_7374;
/// Version of [`SCHEMA`], in the file's `user_version`.
const VERSION: u32 = 1;
/// Longest wait for another program, such as `sqlite3`, to end its transaction.
const PATIENCE: Duration = Duration::from_secs(2);
/// Length of the log, in pages, from which on it is copied to the file.
const CHECKPOINT_PAGES: c_int = 1_000;
/// Capacity of the cache of prepared statements.
const STATEMENTS: usize = 64;

/// An error of the account database. Each message states what to do.
#[derive(Debug, thiserror::Error)]
pub enum AccountsError {
    #[error(
        "the accounts in {path} are of version {found}, and this postern knows version {VERSION} alone: run the postern that made \
         them, or restore a backup that this one made"
    )]
    Version { path: PathBuf, found: u32 },
    #[error(
        "{path} is not a database of accounts: {reason}; move it away and restore accounts.sqlite from a backup"
    )]
    NotOurs { path: PathBuf, reason: &'static str },
    #[error(
        "the database {path} is damaged ({reason}): stop the issuer, move the file and its companions (-wal, -shm) away, and \
         restore it from a backup; `sqlite3 FILE .recover` saves what can be read"
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{path} belongs to the user with the number {owner}, and this process runs as {own}: run it as that user (such as sudo -u \
         postern), or give the file to this one with chown"
    )]
    Owner { path: PathBuf, owner: u32, own: u32 },
    #[error("{path} can be read by other users (mode {mode:o}): run chmod 600 on it")]
    Exposed { path: PathBuf, mode: u32 },
    #[error(
        "another program, such as sqlite3, has locked the database {path}: end its transaction (COMMIT or ROLLBACK)"
    )]
    Busy { path: PathBuf },
    #[error("cannot use the database {place} ([accounts] database): {reason}")]
    Server { place: String, reason: String },
    #[error("cannot use the database {path}: {reason}. Free some space, or make the directory writable")]
    Unusable { path: PathBuf, reason: String },
    #[error(
        "{path}: {reason}, and without it no API key is recognized; restore the file from a backup of the same time as \
         accounts.sqlite"
    )]
    Secret { path: PathBuf, reason: String },
}

impl AccountsError {
    /// Converts an error of SQLite about the database at `path`.
    pub(crate) fn of(path: &Path, error: &rusqlite::Error) -> Self {
        let (path, reason) = (path.to_owned(), error.to_string());
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, reason },
            Some(ErrorCode::NotADatabase) => {
                Self::NotOurs { path, reason: "it does not begin as an SQLite database" }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path },
            _ => Self::Unusable { path, reason },
        }
    }

    /// Converts an error of a statement: `place` is the file of SQLite, or the server.
    pub(crate) fn of_statement(place: &Path, error: &Error) -> Self {
        match error {
            Error::Sqlite(error) => Self::of(place, error),
            Error::Unsure(error) if matches!(**error, Error::Sqlite(_)) => Self::of_statement(place, error),
            other => Self::Server { place: place.display().to_string(), reason: other.to_string() },
        }
    }

    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        Self::Unusable { path: path.to_owned(), reason: error.to_string() }
    }
}

/// Opens the database at `path` for writing, and creates it if it is missing. The caller holds the lock of its directory.
pub(crate) fn open(path: &Path) -> Result<Connection, AccountsError> {
    check_owner(path)?;
    if !path.exists() {
        // SQLite would make the file readable by all users. The files next to it get its mode.
        let made = private_file().write(true).create_new(true).open(path);
        made.and_then(|_| sync_name(path)).map_err(|error| AccountsError::io(path, &error))?;
    }
    check_header(path)?;
    let failed = |error: rusqlite::Error| AccountsError::of(path, &error);
    let mut connection = connect(path).map_err(failed)?;
    fill(&mut connection, path)?;
    connection.wal_hook(Some(check_point)).map_err(failed)?;
    Ok(connection)
}

/// Opens the database at `path` for reading, concurrently with the writer.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, AccountsError> {
    // Not SQLITE_OPEN_READ_ONLY: a reader takes part in the write-ahead log, and writes to the `-shm` file for that.
    let connection = connect(path).and_then(|connection| {
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    });
    connection.map_err(|error| AccountsError::of(path, &error))
}

/// Copies the log to the file after a commit, as SQLite does by itself, which reports a failure of the copy as one of the commit.
/// A copy that fails is tried again after the next commit.
fn check_point(log: &mut Wal, pages: c_int) -> rusqlite::Result<()> {
    if pages >= CHECKPOINT_PAGES {
        drop(log.checkpoint());
    }
    Ok(())
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let access = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, access)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Overwrites deleted content in pages that are written anyway; pages that become free keep theirs.
    connection.pragma_update(None, "secure_delete", "FAST")?;
    Ok(connection)
}

/// Creates the tables of a new file, and refuses other versions.
fn fill(connection: &mut Connection, path: &Path) -> Result<(), AccountsError> {
    let failed = |error: rusqlite::Error| AccountsError::of(path, &error);
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        let reason = format!("its file system has no write-ahead log (the journal is {mode:?})");
        return Err(AccountsError::Unusable { path: path.to_owned(), reason });
    }
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    match found {
        VERSION => Ok(()),
        0 => make(connection).map_err(failed),
        found => Err(AccountsError::Version { path: path.to_owned(), found }),
    }
}

fn make(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    // Writes the log to the file itself, whose header identifies it.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Finds the errors of [`open`] without SQLite: creates no file and takes no lock.
pub(crate) fn inspect(path: &Path) -> Result<(), AccountsError> {
    if !path.exists() {
        return Ok(());
    }
    match check_owner(path) {
        // Root examines on behalf of the issuer's user. Files that root's SQLite creates next to the database get its owner.
        Err(AccountsError::Owner { own: 0, .. }) => {}
        checked => checked?,
    }
    check_header(path)
}

/// Refuses files of other users or readable by them, also next to the database. `sqlite3` run by root may leave files that this
/// process may not write.
fn check_owner(path: &Path) -> Result<(), AccountsError> {
    for file in files(path) {
        let Ok(metadata) = std::fs::symlink_metadata(&file) else { continue };
        check_owned(&file, &metadata)?;
        if let Some(mode) = exposed_mode(&metadata).filter(|_| metadata.is_file()) {
            return Err(AccountsError::Exposed { path: file, mode });
        }
    }
    Ok(())
}

/// Returns the path of a database, and of the files that SQLite keeps next to it while it is in use.
pub(super) fn files(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|ending| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    })
}

/// Returns an error if another user owns `directory`.
pub(crate) fn check_directory(directory: &Path) -> Result<(), AccountsError> {
    std::fs::metadata(directory).map_or(Ok(()), |metadata| check_owned(directory, &metadata))
}

fn check_owned(path: &Path, metadata: &Metadata) -> Result<(), AccountsError> {
    let (own, owner) = (own_user(), metadata.uid());
    if owner == own { Ok(()) } else { Err(AccountsError::Owner { path: path.to_owned(), owner, own }) }
}

/// Returns the effective user id of this process.
pub(crate) fn own_user() -> u32 {
    geteuid().as_raw()
}

/// Checks the header, the first 100 bytes: <https://www.sqlite.org/fileformat.html#the_database_header>.
fn check_header(path: &Path) -> Result<(), AccountsError> {
    let mut header = [0; 100];
    let mut file = File::open(path).map_err(|error| AccountsError::io(path, &error))?;
    let length = file.metadata().map_err(|error| AccountsError::io(path, &error))?.len();
    if length == 0 {
        return Ok(()); // created by a process that died before writing
    }
    let not_ours = |reason| AccountsError::NotOurs { path: path.to_owned(), reason };
    file.read_exact(&mut header).map_err(|_| not_ours("it is shorter than any database"))?;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (found, application) = (number(60), number(68));
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(not_ours("it does not begin as an SQLite database"));
    }
    match (application, found) {
        (0, 0) | (APPLICATION_ID, VERSION) => Ok(()),
        (APPLICATION_ID, found) => Err(AccountsError::Version { path: path.to_owned(), found }),
        _ => Err(not_ours("it is the database of another program")),
    }
}

/// Reads every page to find damage.
pub(crate) fn check_pages(connection: &Connection, path: &Path) -> Result<(), AccountsError> {
    let said = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    match said {
        Ok(said) if said == "ok" => Ok(()),
        Ok(reason) => Err(AccountsError::Damaged { path: path.to_owned(), reason }),
        Err(error) => Err(AccountsError::of(path, &error)),
    }
}

#[cfg(test)]
mod tests;
