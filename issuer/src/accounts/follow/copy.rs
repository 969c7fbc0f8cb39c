//! Taking up one copy: it is copied again, checked completely, and its differences are written in one transaction.

use crate::accounts::api_key::{KeySecret, SECRET_FILE};
use crate::accounts::database::{self, AccountsError};
use crate::accounts::records;
use crate::accounts::store::{SECRET_CHECK, Store};
use postern_daemon::files::{exposed_mode, private_file};
use rusqlite::{Connection, TransactionBehavior, params};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Setting with the revision of the first issuer's accounts that this issuer has.
pub(super) const FOLLOWED: &str = "followed_revision";
/// Setting that counts changes of accounts, by triggers of the database.
const REVISION: &str = "revision";
/// File name of the private copy that is checked.
const CHECKED: &str = "accounts.copied";
/// Tables that are taken from the first issuer. `id` identifies their rows.
const TABLES: [&str; 3] = ["accounts", "api_keys", "client_certificates"];

/// The state of a file, to detect changes: inode, length, mtime and ctime in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::accounts) struct Signature([i128; 4]);

impl Signature {
    pub(in crate::accounts) fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Ok(Self([
            metadata.ino().into(),
            metadata.len().into(),
            time(metadata.mtime(), metadata.mtime_nsec()),
            time(metadata.ctime(), metadata.ctime_nsec()),
        ]))
    }
}

fn refused(path: &Path, reason: &str) -> AccountsError {
    AccountsError::Copy { path: path.to_owned(), reason: reason.to_owned() }
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> AccountsError {
    refused(path, &format!("it cannot be read ({error})"))
}

/// Returns the modification time of the copy at `path`. Refuses a copy that this process cannot read or other users can.
pub(super) fn readable(path: &Path) -> Result<SystemTime, AccountsError> {
    let metadata = File::open(path).and_then(|file| file.metadata());
    let metadata = metadata.map_err(|error| unreadable(path, &error))?;
    if let Some(mode) = exposed_mode(&metadata) {
        return Err(AccountsError::Exposed { path: path.to_owned(), mode });
    }
    metadata.modified().map_err(|error| unreadable(path, &error))
}

/// Reads the secret of API keys next to the copy at `path`.
pub(super) fn secret_next_to(path: &Path) -> Result<KeySecret, AccountsError> {
    let file = path.with_file_name(SECRET_FILE);
    let missing = "the first issuer's secret of API keys is not there".to_owned();
    KeySecret::read(&file)?.ok_or(AccountsError::Secret { path: file, reason: missing })
}

/// Takes up the accounts of the copy at `path`, which had this signature.
pub(super) fn take_up(store: &Store, path: &Path, signature: Signature) -> Result<(), AccountsError> {
    let checked = Checked::new(store.directory().join(CHECKED));
    let unreadable = |error: io::Error| unreadable(path, &error);
    readable(path)?;
    let mut source = File::open(path).map_err(unreadable)?;
    let mut target = private_file().write(true).create_new(true).open(&checked.0).map_err(unreadable)?;
    io::copy(&mut source, &mut target).map_err(unreadable)?;
    if Signature::of(path).map_err(unreadable)? != signature {
        return Err(refused(path, "it changes while it is read"));
    }
    check_is_backup(&checked.0, path)?;
    let connection = database::open(&checked.0).map_err(|error| as_copy(path, error))?;
    database::check_pages(&connection, &checked.0).map_err(|error| as_copy(path, error))?;
    let failed = |error: rusqlite::Error| as_copy(path, AccountsError::of(&checked.0, &error));
    let number = |connection: &Connection, name: &str| -> rusqlite::Result<Option<i64>> {
        Ok(records::setting(connection, name)?.map(|value| value.parse().unwrap_or(0)))
    };
    let revision = number(&connection, REVISION).map_err(failed)?.unwrap_or(0);
    let has_strays = connection
        .prepare("PRAGMA foreign_key_check")
        .and_then(|mut statement| statement.exists([]))
        .map_err(failed)?;
    if has_strays {
        return Err(refused(path, "it has API keys or certificates of accounts that it does not have"));
    }
    let check = records::setting(&connection, SECRET_CHECK).map_err(failed)?;
    drop(connection);

    let secret = secret_next_to(path)?;
    if check.as_ref() != Some(&secret.check()) {
        return Err(AccountsError::Secret {
            path: path.with_file_name(SECRET_FILE),
            reason: "it is not the secret that the copy of accounts.sqlite in its folder was made under"
                .to_owned(),
        });
    }
    let (known, own_check, has_keys) = store.with(|own| {
        Ok((number(own, FOLLOWED)?, records::setting(own, SECRET_CHECK)?, records::has_keys(own)?))
    })?;
    if let Some(known) = known.filter(|known| revision < *known) {
        return Err(refused(
            path,
            &format!(
                "it is older (revision {revision}) than the accounts that this issuer has (revision {known}): copy it again. If the first \
                 issuer was restored from a backup, run there: sqlite3 accounts.sqlite \"UPDATE settings SET value = {known} WHERE \
                 name = 'revision'\""
            ),
        ));
    }
    if own_check != check {
        if has_keys {
            return Err(refused(
                path,
                "its API keys are under another secret than those that this issuer has: it is of another issuer than the one that \
                 was followed before. An issuer that is to follow another one begins with an empty keys.directory",
            ));
        }
        store.take_up_secret(secret)?; // before the keys that depend on it
    }
    let own = store.reader()?;
    apply(own, &checked.0, revision).map_err(|error| store.error(&error))?;
    if known != Some(revision) {
        tracing::info!("the first issuer's accounts are taken up, as of revision {revision}");
    }
    Ok(())
}

/// Refuses a copy of a database in use, which may lack the content of its write-ahead log.
fn check_is_backup(checked: &Path, path: &Path) -> Result<(), AccountsError> {
    let mut header = [0; 20];
    let read = File::open(checked).and_then(|mut file| file.read_exact(&mut header));
    if read.is_ok() && header[18..] != [1, 1] {
        return Err(refused(
            path,
            "it is a copy of the database in use, which may lack its latest changes: make it with `postern issuer backup FILE`",
        ));
    }
    Ok(()) // a file that is too short is refused when it is opened
}

/// Converts an error about the checked file to one about the copy at `path`.
fn as_copy(path: &Path, error: AccountsError) -> AccountsError {
    match error {
        AccountsError::Version { found, .. } => AccountsError::Version { path: path.to_owned(), found },
        AccountsError::NotOurs { reason, .. } => refused(path, reason),
        AccountsError::Damaged { reason, .. } => {
            refused(path, &format!("it is not whole ({reason}): copy it again"))
        }
        AccountsError::Unusable { reason, .. } => refused(path, &format!("it cannot be checked ({reason})")),
        other => other,
    }
}

/// Finds the differences without blocking other writers, then writes them. Usage and shares stay this issuer's own.
fn apply(mut own: Connection, checked: &Path, revision: i64) -> rusqlite::Result<()> {
    own.pragma_update(None, "query_only", false)?;
    own.pragma_update(None, "foreign_keys", false)?; // a changed row is deleted and inserted; its keys must stay
    own.execute("ATTACH ?1 AS copied", params![checked.to_string_lossy()])?;
    for table in TABLES {
        own.execute_batch(&format!(
            "CREATE TEMP TABLE new_{table} AS SELECT * FROM copied.{table} EXCEPT SELECT * FROM main.{table};
             CREATE TEMP TABLE gone_{table} AS SELECT id FROM main.{table} EXCEPT SELECT id FROM copied.{table};"
        ))?;
    }
    let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for table in TABLES {
        transaction.execute_batch(&format!(
            "DELETE FROM main.{table} WHERE id IN (SELECT id FROM gone_{table} UNION ALL SELECT id FROM new_{table});"
        ))?;
    }
    for table in TABLES {
        transaction.execute_batch(&format!("INSERT INTO main.{table} SELECT * FROM new_{table};"))?;
    }
    for name in [REVISION, FOLLOWED] {
        records::set(&transaction, name, &revision.to_string())?; // after the triggers counted
    }
    transaction.commit()
}

/// The private copy that is checked. Dropping it removes the file, and SQLite's files next to it.
struct Checked(PathBuf);

impl Checked {
    fn new(path: PathBuf) -> Self {
        let checked = Self(path);
        checked.remove(); // left by a crash
        checked
    }

    fn remove(&self) {
        for file in database::files(&self.0) {
            let _ = std::fs::remove_file(file); // most do not exist
        }
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.remove();
    }
}
