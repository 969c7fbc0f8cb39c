//! Taking up one copy: it is copied once more, checked whole, and what differs is written in one transaction.

use super::Signature;
use crate::accounts::api_key::{KeySecret, SECRET_FILE};
use crate::accounts::database::{self, AccountsError};
use crate::accounts::records;
use crate::accounts::store::{SECRET_CHECK, Store};
use rusqlite::{Connection, TransactionBehavior, params};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The revision of the first issuer's accounts that this one has.
pub(super) const FOLLOWED: &str = "followed_revision";
/// Counts the changes of accounts, by triggers of the database.
const REVISION: &str = "revision";
/// The file that a copy is checked in.
const CHECKED: &str = "accounts.copied";
/// The tables that are the first issuer's. Their rows are told apart by `id`.
const TABLES: [&str; 3] = ["accounts", "api_keys", "client_certificates"];

pub(super) fn refused(path: &Path, reason: &str) -> AccountsError {
    AccountsError::Copy { path: path.to_owned(), reason: reason.to_owned() }
}

fn unreadable(path: &Path, error: &io::Error) -> AccountsError {
    refused(path, &format!("it cannot be read ({error})"))
}

/// When the copy at `path` was made, which this process can read, and others cannot.
pub(super) fn readable(path: &Path) -> Result<SystemTime, AccountsError> {
    let metadata = File::open(path).and_then(|file| file.metadata());
    let metadata = metadata.map_err(|error| unreadable(path, &error))?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(AccountsError::Exposed { path: path.to_owned(), mode });
    }
    metadata.modified().map_err(|error| unreadable(path, &error))
}

/// The secret of API keys beside the copy at `path`.
pub(super) fn secret_beside(path: &Path) -> Result<KeySecret, AccountsError> {
    let file = path.with_file_name(SECRET_FILE);
    let missing = "the first issuer's secret of API keys is not there".to_owned();
    KeySecret::read(&file)?.ok_or(AccountsError::Secret { path: file, reason: missing })
}

/// Takes up the accounts of the copy at `path`, which was seen with this signature.
pub(super) fn take_up(store: &Store, path: &Path, signature: Signature) -> Result<(), AccountsError> {
    let checked = Checked::new(store.directory().join(CHECKED));
    let unreadable = |error: io::Error| unreadable(path, &error);
    readable(path)?;
    let mut source = File::open(path).map_err(unreadable)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&checked.0);
    let copied = target.as_mut().map_err(|error| io::Error::other(error.to_string()));
    copied.and_then(|target| io::copy(&mut source, target)).map_err(unreadable)?;
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

    let secret = secret_beside(path)?;
    if check.as_ref() != Some(&secret.check()) {
        return Err(AccountsError::Secret {
            path: path.with_file_name(SECRET_FILE),
            reason: "it is not the secret that the copy of accounts.sqlite beside it was made under"
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

/// A copy of the live file may lack what its write-ahead log has.
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

/// What is wrong with the file that was checked, as said of the copy.
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

/// Finds what differs while others write, and writes that. Usage and shares are this issuer's own.
fn apply(mut own: Connection, checked: &Path, revision: i64) -> rusqlite::Result<()> {
    own.pragma_update(None, "query_only", false)?;
    own.pragma_update(None, "foreign_keys", false)?; // a changed account is removed and inserted, and its keys stay
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
        records::set(&transaction, name, &revision.to_string())?; // after the triggers have counted
    }
    transaction.commit()
}

/// The file that a copy is checked in. It goes with the value, with what SQLite keeps beside it.
struct Checked(PathBuf);

impl Checked {
    fn new(path: PathBuf) -> Self {
        let checked = Self(path);
        checked.remove(); // what a crash has left
        checked
    }

    fn remove(&self) {
        for end in ["", "-wal", "-shm"] {
            let mut name = self.0.clone().into_os_string();
            name.push(end);
            let _ = std::fs::remove_file(name); // most are not there
        }
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.remove();
    }
}
