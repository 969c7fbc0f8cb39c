//! Moves accounts, usage and token keys of a stopped issuer from its files into PostgreSQL, or back.
//!
//! The target is complete before the source is emptied: a crash leaves both, and the command is run again.

use super::at_rest::AtRest;
use super::control::shared_secret;
use super::{KeysError, Shelf, set_aside};
use crate::accounts::api_key::{KeySecret, SECRET_FILE};
use crate::accounts::{FILE_NAME, open_database, set_needs_account};
use crate::config::Config;
use crate::control::Refused;
use crate::database::{Connection, Error, Value};
use postern_daemon::files::{DataDir, sync_directory};
use postern_token::UnixSeconds;
use postern_token::key_file::is_reference;
use std::io;
use std::path::Path;

/// The tables and their columns, those that others refer to first.
const TABLES: [(&str, &[&str]); 6] = [
    (
        "accounts",
        &[
            "id",
            "name",
            "enabled",
            "quota_tokens",
            "quota_period_seconds",
            "rate_tokens_per_second",
            "burst_tokens",
            "tier",
            "expires_at_unix",
        ],
    ),
    ("api_keys", &["id", "account_id", "key_hmac_sha256", "made_elsewhere", "retires_at_unix"]),
    ("declared_accounts", &["account_id", "key_hmac_sha256"]),
    ("client_certificates", &["id", "account_id", "public_key_sha256"]),
    ("usage", &["period_start_unix", "period_seconds", "account", "tokens"]),
    ("keys_allowed_elsewhere", &["key_hmac_sha256", "day"]),
];
/// Rows in one statement.
const ROWS: usize = 500;

/// The place that accounts and keys are moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrateTo {
    /// The database of `[accounts] database`.
    Postgres,
    /// SQLite and key files in `[keys] directory`.
    Sqlite,
}

/// Moves everything to an empty place, while no issuer runs on either. Returns the number of accounts. The source's files are kept in
/// a folder beside them; a source in PostgreSQL is emptied.
///
/// # Errors
/// A sentence for the operator; the source is as before.
pub fn migrate(config: &Config, to: MigrateTo) -> Result<u64, Refused> {
    let Some(server) = config.server()? else {
        return Err(Refused::usage(
            "[accounts] database is not set: name the PostgreSQL there that is moved to or from",
        ));
    };
    config.check()?;
    let lock = DataDir::open(&config.keys.directory).map_err(KeysError::from)?;
    let at_rest = AtRest::of(&config.keys)?;
    let path = lock.join(FILE_NAME);
    let [file, table] = [Shelf::Directory(lock.path().to_owned()), Shelf::in_database(server.clone())?];
    let sqlite = Connection::Sqlite(open_database(&path)?);
    let postgres = Connection::open(server.clone()).map_err(|error| Refused::runtime(error.to_string()))?;
    let failed = |error: Error| Refused::runtime(format!("nothing was moved: {error}"));
    let unwritten = |error: io::Error| Refused::runtime(format!("the token keys cannot be moved: {error}"));
    let secret = lock.join(SECRET_FILE);
    let moved = match to {
        MigrateTo::Postgres => {
            check_empty(&postgres)?;
            copy_keys(&file, &table, &at_rest)?;
            if let Some(secret) = KeySecret::read(&secret)? {
                let place = table.join(SECRET_FILE);
                let _ = table.remove(&place); // of an attempt before
                table.write(&place, &at_rest.content(secret.text().as_bytes())?).map_err(unwritten)?;
            }
            copy_tables(&sqlite, &postgres).map_err(failed)?
        }
        MigrateTo::Sqlite => {
            check_empty(&sqlite)?;
            copy_keys(&table, &file, &at_rest)?;
            let known = shared_secret(server, &config.keys)?;
            let _ = std::fs::remove_file(&secret); // of an attempt before
            known.write(&secret)?;
            copy_tables(&postgres, &sqlite).map_err(failed)?
        }
    };
    match to {
        MigrateTo::Postgres => {
            sqlite.batch("PRAGMA wal_checkpoint(TRUNCATE)").map_err(failed)?;
            drop(sqlite);
            put_away(lock.path(), &file).map_err(unwritten)?;
        }
        MigrateTo::Sqlite => {
            let tables = TABLES.iter().rev().map(|(table, _)| format!("DELETE FROM {table};"));
            let all: String = tables.chain(["DELETE FROM token_keys;".to_owned()]).collect();
            postgres.transact(|postgres| postgres.batch(&all)).map_err(failed)?;
        }
    }
    Ok(moved)
}

fn check_empty(into: &Connection) -> Result<(), Refused> {
    for table in ["accounts", "usage"] {
        let found = into.first(&format!("SELECT 1 FROM {table} LIMIT 1"), &[], |_| Ok(()));
        if found.map_err(|error| Refused::runtime(error.to_string()))?.is_some() {
            return Err(Refused::usage(format!(
                "nothing was moved: the target has {table} already, and two issuers' cannot be merged"
            )));
        }
    }
    Ok(())
}

/// Copies the key files that are not there yet, encrypted, and those that are set aside.
fn copy_keys(from: &Shelf, into: &Shelf, at_rest: &AtRest) -> Result<(), Refused> {
    let known = into.key_files()?;
    let names: Vec<_> = known.iter().filter_map(|path| path.file_name()).collect();
    let live = from.key_files()?.into_iter().map(|path| (path.clone(), path));
    let aside = set_aside::all(from)?.into_iter().map(|aside| (aside.path, aside.original));
    let all: Vec<_> = live.chain(aside).collect();
    if names.iter().any(|name| all.iter().all(|(path, _)| path.file_name() != Some(name))) {
        return Err(Refused::usage("nothing was moved: the target has token keys of another issuer"));
    }
    for (path, original) in all {
        let Some(name) = path.file_name() else { continue };
        let target = into.join(name);
        if into.read(&target).is_ok() {
            continue; // of an attempt before
        }
        let content = from.content(&path)?;
        let content = match is_reference(&original) {
            true => content.to_vec(),
            false => at_rest.content(&at_rest.read(&original, content)?.plain)?.into_owned(),
        };
        into.write(&target, &content).map_err(KeysError::unwritable(&target))?;
    }
    Ok(())
}

/// Copies all tables in one transaction. Returns the number of accounts.
fn copy_tables(from: &Connection, into: &Connection) -> Result<u64, Error> {
    into.transact(|into| {
        let mut accounts = 0;
        for (table, columns) in TABLES {
            let mut waiting: Vec<Value> = Vec::new();
            let insert = |values: &mut Vec<Value>| {
                let row = |row: usize| {
                    let numbers = (1..=columns.len()).map(|column| format!("?{}", row * columns.len() + column));
                    format!("({})", numbers.collect::<Vec<_>>().join(", "))
                };
                let rows: Vec<_> = (0..values.len() / columns.len()).map(row).collect();
                let sql = format!("INSERT INTO {table} ({}) VALUES {}", columns.join(", "), rows.join(", "));
                into.run(&sql, &std::mem::take(values))
            };
            let select = format!("SELECT {} FROM {table}", columns.join(", "));
            from.each(&select, &[], |row| {
                for column in 0..columns.len() {
                    waiting.push(row.value(column)?);
                }
                accounts += u64::from(table == "accounts");
                if waiting.len() >= ROWS * columns.len() { insert(&mut waiting).map(drop) } else { Ok(()) }
            })?;
            if !waiting.is_empty() {
                insert(&mut waiting)?;
            }
            if matches!(into, Connection::Postgres(_)) && columns[0] == "id" {
                into.first(
                    &format!(
                        "SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM {table}), false)"
                    ),
                    &[],
                    |_| Ok(()),
                )?;
            }
        }
        set_needs_account(into)?;
        Ok(accounts)
    })
}

/// Moves the files of the database and of the keys into a folder of their own.
fn put_away(directory: &Path, keys: &Shelf) -> io::Result<()> {
    let folder = directory.join(format!("migrated-{}", UnixSeconds::now()));
    std::fs::create_dir(&folder)?;
    let aside = set_aside::all(keys).map_err(io::Error::other)?.into_iter().map(|aside| aside.path);
    let live = keys.key_files().map_err(io::Error::other)?;
    let database = ["", "-wal", "-shm"].map(|ending| directory.join(format!("{FILE_NAME}{ending}")));
    for path in live.into_iter().chain(aside).chain(database).chain([directory.join(SECRET_FILE)]) {
        if let Some(name) = path.file_name().filter(|_| path.exists()) {
            std::fs::rename(&path, folder.join(name))?;
        }
    }
    sync_directory(&folder)?;
    sync_directory(directory)
}
