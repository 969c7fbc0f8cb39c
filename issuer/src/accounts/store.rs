//! The database, open for writing, and the secret of its keys: one connection, and one writer at a time.

use super::api_key::{KeySecret, SECRET_FILE};
use super::database::{self, AccountsError, FILE_NAME};
use super::records;
use crate::database::postgres::{Server, Session};
use crate::database::{ACCOUNTS, Connection, Error, Result};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Setting with the fingerprint of the secret that the stored keys depend on.
pub(super) const SECRET_CHECK: &str = "secret_check";
/// Setting that the first account or authorizer creates, and nothing removes: removing the last account must
/// not open the issuer to everyone.
const NEEDS_ACCOUNT: &str = "tokens_need_an_account";

/// Longest wait of a request for the disk.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Store {
    /// The file of SQLite, or the place of the server, for people.
    path: PathBuf,
    secret: KeySecret,
    connection: Mutex<Connection>,
}

impl Store {
    /// Opens the database in `directory`, whose lock the caller holds, and creates it if it is missing. Blocks on the disk.
    pub(crate) fn open(directory: &Path) -> Result<Self, AccountsError> {
        let path = directory.join(FILE_NAME);
        let connection = Connection::Sqlite(database::open(&path)?);
        let secret = open_secret(&connection, &path, &directory.join(SECRET_FILE))?;
        Ok(Self { path, secret, connection: Mutex::new(connection) })
    }

    /// Opens the database of `server`, whose API keys are under `secret`.
    pub(crate) fn shared(server: Arc<Server>, secret: KeySecret) -> Result<Self, AccountsError> {
        let path = PathBuf::from(&server.place);
        let connection =
            Connection::open(server).map_err(|error| AccountsError::of_statement(&path, &error))?;
        Ok(Self { path, secret, connection: Mutex::new(connection) })
    }

    /// Reads every page, so that damage is found at the start and not at a request of the account that it affects.
    pub(crate) fn check_pages(&self) -> Result<(), AccountsError> {
        match &*self.connection.lock() {
            Connection::Sqlite(connection) => database::check_pages(connection, &self.path),
            Connection::Postgres(_) => Ok(()),
        }
    }

    pub(crate) fn secret(&self) -> &KeySecret {
        &self.secret
    }

    /// Opens another connection, for reading.
    pub(crate) fn reader(&self) -> Result<Connection, AccountsError> {
        match &*self.connection.lock() {
            Connection::Sqlite(_) => Ok(Connection::Sqlite(database::open_to_read(&self.path)?)),
            Connection::Postgres(session) => Ok(Connection::Postgres(Session::new(session.server.clone()))),
        }
    }

    /// Runs `read` on the writer's connection.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T, AccountsError> {
        read(&self.connection.lock()).map_err(|error| self.error(&error))
    }

    /// Runs `change` in one transaction, and waits for the previous writer ([`Connection::transact`]).
    pub(crate) fn transact<T, E: From<Error>>(
        &self,
        change: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        self.connection.lock().transact(change)
    }

    /// Changes accounts in one transaction, one at a time among all issuers: a change reads an account and writes all of it.
    pub(crate) fn change<T, E: From<Error>>(
        &self,
        change: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact(|transaction| {
            transaction.lock(ACCOUNTS)?;
            change(transaction)
        })
    }

    pub(crate) fn error(&self, error: &Error) -> AccountsError {
        AccountsError::of_statement(&self.path, error)
    }
}

/// Returns `true` if tokens require an account.
pub(crate) fn needs_account(connection: &Connection) -> Result<bool> {
    Ok(records::setting(connection, NEEDS_ACCOUNT)?.is_some())
}

pub(crate) fn set_needs_account(connection: &Connection) -> Result<()> {
    if needs_account(connection)? { Ok(()) } else { records::set(connection, NEEDS_ACCOUNT, "1") }
}

/// Opens the secret. A lost secret is generated again only while no key depends on it.
fn open_secret(connection: &Connection, path: &Path, file: &Path) -> Result<KeySecret, AccountsError> {
    let failed = |error: Error| AccountsError::of_statement(path, &error);
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

/// Reads the secret, and checks it if API keys depend on it. `None` if there are neither a secret nor keys.
fn known_secret(
    connection: &Connection,
    path: &Path,
    file: &Path,
) -> Result<Option<KeySecret>, AccountsError> {
    let failed = |error: Error| AccountsError::of_statement(path, &error);
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

/// Finds the errors of [`Store::open`]; creates no file and takes no lock.
pub(crate) fn inspect(directory: &Path) -> Result<(), AccountsError> {
    let (path, file) = (directory.join(FILE_NAME), directory.join(SECRET_FILE));
    database::inspect(&path)?;
    if has_database(&path) {
        known_secret(&Connection::Sqlite(database::open_to_read(&path)?), &path, &file)?;
    } else {
        KeySecret::read(&file)?;
    }
    Ok(())
}

/// Returns `true` if the database at `path` exists and is not empty.
fn has_database(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
}

/// Returns `true` if tokens require an account, before the issuer has opened the database in `directory`.
pub(crate) fn has_accounts(directory: &Path) -> Result<bool, AccountsError> {
    let path = directory.join(FILE_NAME);
    if !has_database(&path) {
        return Ok(false);
    }
    database::inspect(&path)?;
    let connection = Connection::Sqlite(database::open_to_read(&path)?);
    needs_account(&connection).map_err(|error| AccountsError::of_statement(&path, &error))
}
