//! The database and the secret of its keys, open to write: one connection, and one writer at a time.

use super::api_key::{KeySecret, SECRET_FILE};
use super::database::{self, AccountsError, FILE_NAME};
use super::records;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which secret the keys are stored under.
pub(super) const SECRET_CHECK: &str = "secret_check";
/// Set with the first account and never unset: removing the last account must not open the issuer to everyone.
const NEEDS_ACCOUNT: &str = "tokens_need_an_account";

/// The database, open to write.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    secret: ArcSwap<KeySecret>,
    connection: Mutex<Connection>,
}

impl Store {
    /// Opens the database in `directory`, whose lock the caller has; makes it when it is missing. Blocks on the disk.
    pub(crate) fn open(directory: &Path) -> Result<Self, AccountsError> {
        let path = directory.join(FILE_NAME);
        let connection = database::open(&path)?;
        let secret = open_secret(&connection, &path, &directory.join(SECRET_FILE))?;
        Ok(Self { path, secret: ArcSwap::from_pointee(secret), connection: Mutex::new(connection) })
    }

    /// Reads every page: damage is found at the start, and not when the one account asks that it hit.
    pub(crate) fn check_pages(&self) -> Result<(), AccountsError> {
        database::check_pages(&self.connection.lock(), &self.path)
    }

    pub(crate) fn secret(&self) -> Guard<Arc<KeySecret>> {
        self.secret.load()
    }

    /// Another secret from now on, while no key depends on the one before.
    pub(super) fn take_up_secret(&self, secret: KeySecret) -> Result<(), AccountsError> {
        secret.write(&self.directory().join(SECRET_FILE))?;
        self.with(|connection| records::set(connection, SECRET_CHECK, &secret.check()))?;
        self.secret.store(Arc::new(secret));
        Ok(())
    }

    pub(super) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// A connection of its own to read.
    pub(crate) fn reader(&self) -> Result<Connection, AccountsError> {
        database::open_to_read(&self.path)
    }

    /// Runs `read` on the writer's connection.
    pub(crate) fn with<T>(
        &self,
        read: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, AccountsError> {
        read(&mut self.connection.lock()).map_err(|error| self.error(&error))
    }

    /// One transaction: on the disk when this returns, or nothing of it. Waits for the one before.
    pub(crate) fn write<T, E: From<AccountsError>>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Change<E>>,
    ) -> Result<T, E> {
        let mut connection = self.connection.lock();
        let changed = (|| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })();
        changed.map_err(|error| match error {
            Change::Database(error) => self.error(&error).into(),
            Change::Refused(error) => error,
        })
    }

    pub(crate) fn error(&self, error: &rusqlite::Error) -> AccountsError {
        AccountsError::of(&self.path, error)
    }
}

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum Change<E> {
    /// The database.
    Database(rusqlite::Error),
    /// What was asked for.
    Refused(E),
}

impl<E> From<rusqlite::Error> for Change<E> {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// Whether tokens are for accounts, by the database.
pub(crate) fn needs_account(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(records::setting(connection, NEEDS_ACCOUNT)?.is_some())
}

pub(crate) fn set_needs_account(connection: &Connection) -> rusqlite::Result<()> {
    if needs_account(connection)? { Ok(()) } else { records::set(connection, NEEDS_ACCOUNT, "1") }
}

/// A lost secret is made anew only while no key depends on it.
fn open_secret(connection: &Connection, path: &Path, file: &Path) -> Result<KeySecret, AccountsError> {
    let failed = |error: rusqlite::Error| AccountsError::of(path, &error);
    let secret = match known_secret(connection, path, file)? {
        Some(secret) => secret,
        None => KeySecret::make(file)?,
    };
    let check = secret.check();
    if records::setting(connection, SECRET_CHECK).map_err(failed)?.as_ref() != Some(&check) {
        records::set(connection, SECRET_CHECK, &check).map_err(failed)?;
    }
    Ok(secret)
}

/// The secret of the file, if API keys can be stored under it; none where there are neither a secret nor keys.
fn known_secret(
    connection: &Connection,
    path: &Path,
    file: &Path,
) -> Result<Option<KeySecret>, AccountsError> {
    let failed = |error: rusqlite::Error| AccountsError::of(path, &error);
    let refused = |reason: &str| AccountsError::Secret { path: file.to_owned(), reason: reason.to_owned() };
    let secret = KeySecret::read(file)?;
    if !records::has_keys(connection).map_err(failed)? {
        return Ok(secret);
    }
    let Some(secret) = secret else { return Err(refused("the secret of the API keys is missing")) };
    match records::setting(connection, SECRET_CHECK).map_err(failed)? {
        Some(known) if known != secret.check() => {
            Err(refused("it is not the secret that the API keys are stored under"))
        }
        _ => Ok(Some(secret)),
    }
}

/// Finds what [`Store::open`] would refuse; it makes no file, and takes no lock.
pub(crate) fn inspect(directory: &Path) -> Result<(), AccountsError> {
    let (path, file) = (directory.join(FILE_NAME), directory.join(SECRET_FILE));
    database::inspect(&path)?;
    if has_database(&path) {
        known_secret(&database::open_to_read(&path)?, &path, &file)?;
    } else {
        KeySecret::read(&file)?;
    }
    Ok(())
}

/// Whether something was ever written to the database at `path`.
fn has_database(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
}

/// Whether the database in `directory` says that tokens are for accounts, before the issuer has opened it.
pub(crate) fn has_accounts(directory: &Path) -> Result<bool, AccountsError> {
    let path = directory.join(FILE_NAME);
    if !has_database(&path) {
        return Ok(false);
    }
    database::inspect(&path)?;
    let connection = database::open_to_read(&path)?;
    needs_account(&connection).map_err(|error| AccountsError::of(&path, &error))
}
