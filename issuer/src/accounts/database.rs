//! The database file: made, opened and checked.
//!
//! SQLite with a write-ahead log and `synchronous = FULL`: what is committed survives a power loss, and readers (this process,
//! `sqlite3`, a backup) never wait for a writer. The issuer's lock on the directory makes it the only `postern` that writes.

use nix::unistd::geteuid;
use postern_daemon::files::sync_name;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the file, beside the keys.
pub(crate) const FILE_NAME: &str = "accounts.sqlite";
/// What SQLite keeps beside it while it is in use.
const BESIDE: [&str; 2] = ["-wal", "-shm"];
/// Marks the file as ours: "Post".
const APPLICATION_ID: u32 = 0x506f_7374;
const SCHEMA: &str = include_str!("schema.sql");
/// The version of [`SCHEMA`], as the file's `user_version`.
const VERSION: u32 = 1;
/// How long to wait for another program, such as `sqlite3`, to end its transaction.
const PATIENCE: Duration = Duration::from_secs(2);
/// Statements that are kept prepared.
const STATEMENTS: usize = 64;

/// Why the accounts cannot be used. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum AccountsError {
    /// Made by another version of this program.
    #[error(
        "the accounts in {} are of version {found}, and this postern knows version {VERSION} alone: run the postern that made \
         them, or restore a backup that this one made", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Another program's database, or no database.
    #[error(
        "{} is not a database of accounts: {reason}; move it away and restore accounts.sqlite from a backup", path.display()
    )]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What it is.
        reason: &'static str,
    },
    /// A page of it makes no sense.
    #[error(
        "the database {} is damaged ({reason}): stop the issuer, move the file and those beside it (-wal, -shm) away, and \
         restore it from a backup; `sqlite3 FILE .recover` saves what can be read", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// SQLite's finding.
        reason: String,
    },
    /// It belongs to another user.
    #[error(
        "{} belongs to the user with the number {owner}, and this process runs as {own}: run it as that user (such as sudo -u \
         postern), or give the file to this one with chown", path.display()
    )]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        own: u32,
    },
    /// Others may read it.
    #[error("{} can be read by other users (mode {mode:o}): run chmod 600 on it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Another program has a transaction open.
    #[error(
        "another program, such as sqlite3, has locked the database {}: end its transaction (COMMIT or ROLLBACK)", path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A copy of the first issuer's accounts, at an issuer that follows it.
    #[error("the copy {} of the first issuer's accounts is not taken up: {reason}", path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The system refused.
    #[error("cannot use the database {}: {reason}. Free some space, or make the directory writable", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The system's or SQLite's error.
        reason: String,
    },
    /// The copy cannot be begun.
    #[error("the copy cannot be written to {}: {}; name a new file, in a folder that is there and writable", path.display(), unwritable(source))]
    Target {
        /// Where it was to be.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The secret of the API keys is not there, or another.
    #[error(
        "{}: {reason}, and without it no API key is recognized; restore the file from a backup of the same time as \
         accounts.sqlite", path.display()
    )]
    Secret {
        /// The file of the secret.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl AccountsError {
    /// A sentence of SQLite about the database at `path`.
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

    fn io(path: &Path, error: &io::Error) -> Self {
        Self::Unusable { path: path.to_owned(), reason: error.to_string() }
    }
}

fn unwritable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => "there is a file of this name, which was left as it is".to_owned(),
        _ => error.to_string(),
    }
}

/// Opens the database at `path` to write, and makes it when it is missing. The caller has the lock of its directory.
pub(crate) fn open(path: &Path) -> Result<Connection, AccountsError> {
    check_owner(path)?;
    if !path.exists() {
        // SQLite would make it readable by all. The files beside it get its mode.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        made.and_then(|_| sync_name(path)).map_err(|error| AccountsError::io(path, &error))?;
    }
    check_header(path)?;
    let failed = |error: rusqlite::Error| AccountsError::of(path, &error);
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    fill(&mut connection, path)?;
    Ok(connection)
}

/// Opens the database at `path` to read, beside the writer.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, AccountsError> {
    // Not SQLITE_OPEN_READ_ONLY: a reader takes part in the write-ahead log, for which it writes to the file beside it.
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE).and_then(|connection| {
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    });
    connection.map_err(|error| AccountsError::of(path, &error))
}

fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // A page that was removed from the database says nothing any more.
    connection.pragma_update(None, "secure_delete", "FAST")?;
    Ok(connection)
}

/// Makes the tables of a new file, and refuses those of another version.
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
    // Into the file itself, whose header tells what it is.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Finds what [`open`] would refuse, without SQLite: it makes no file and takes no lock.
pub(crate) fn inspect(path: &Path) -> Result<(), AccountsError> {
    if !path.exists() {
        return Ok(());
    }
    match check_owner(path) {
        // Root examines for the issuer's user. What root's SQLite makes beside the file belongs to that user, too.
        Err(AccountsError::Owner { own: 0, .. }) => {}
        checked => checked?,
    }
    check_header(path)
}

/// The file, and those beside it, belong to this process alone. `sqlite3` run by root leaves files that we may not write.
fn check_owner(path: &Path) -> Result<(), AccountsError> {
    let own = own_user();
    let name = path.as_os_str();
    let beside = BESIDE.iter().map(|end| {
        let mut name = name.to_owned();
        name.push(end);
        PathBuf::from(name)
    });
    for file in std::iter::once(path.to_owned()).chain(beside) {
        let Ok(metadata) = std::fs::symlink_metadata(&file) else { continue };
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
        if owner != own {
            return Err(AccountsError::Owner { path: file, owner, own });
        }
        if mode & 0o077 != 0 && metadata.is_file() {
            return Err(AccountsError::Exposed { path: file, mode });
        }
    }
    Ok(())
}

/// Says whose a directory is that this process may not use.
pub(crate) fn check_directory(directory: &Path) -> Result<(), AccountsError> {
    let Ok(metadata) = std::fs::metadata(directory) else { return Ok(()) };
    let (own, owner) = (own_user(), metadata.uid());
    if owner == own {
        return Ok(());
    }
    Err(AccountsError::Owner { path: directory.to_owned(), owner, own })
}

/// The effective user of this process.
pub(crate) fn own_user() -> u32 {
    geteuid().as_raw()
}

/// What the first hundred bytes tell: <https://www.sqlite.org/fileformat.html#the_database_header>.
fn check_header(path: &Path) -> Result<(), AccountsError> {
    let mut header = [0; 100];
    let mut file = File::open(path).map_err(|error| AccountsError::io(path, &error))?;
    let length = file.metadata().map_err(|error| AccountsError::io(path, &error))?.len();
    if length == 0 {
        return Ok(()); // it was made, and the process died
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

/// Reads every page.
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
