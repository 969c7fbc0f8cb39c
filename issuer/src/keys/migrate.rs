//! Moves accounts, usage and token keys of a stopped issuer from its files into PostgreSQL, or back.
//!
//! The target is complete, and marked so, before the source is emptied. The command can be run again after a crash: before the mark
//! it goes on copying, after it only empties the source.

use super::at_rest::AtRest;
use super::control::shared_secret;
use super::{KeysError, Shelf, set_aside};
use crate::accounts::api_key::{KeySecret, SECRET_FILE};
use crate::accounts::{FILE_NAME, open_database, set_needs_account};
use crate::config::Config;
use crate::control::Refused;
use crate::database::postgres::Server;
use crate::database::{Connection, Error, Value, values};
use aws_lc_rs::digest::{Context, SHA256};
use postern_daemon::files::{DataDir, sync_directory};
use postern_token::UnixSeconds;
use postern_token::key_file::is_reference;
use std::io;
use std::path::Path;
use std::sync::Arc;

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
/// Setting of the target with the digest of the source that it is a copy of, until the source is empty.
const MARK: &str = "migrated_from";
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

/// The two places, locked.
struct Migration<'a> {
    config: &'a Config,
    to: MigrateTo,
    server: Arc<Server>,
    lock: DataDir,
    sqlite: Connection,
    postgres: Connection,
    file: Shelf,
    table: Shelf,
}

/// Moves everything to an empty place, while no issuer runs on either. Returns the number of accounts. The source's files are kept in
/// a folder beside them; a source in PostgreSQL is emptied. After an interruption it can be run again.
///
/// # Errors
/// A sentence for the operator.
pub fn migrate(config: &Config, to: MigrateTo) -> Result<u64, Refused> {
    let migration = Migration::open(config, to)?;
    migration.copy()?;
    migration.empty_source()
}

impl<'a> Migration<'a> {
    fn open(config: &'a Config, to: MigrateTo) -> Result<Self, Refused> {
        let Some(server) = config.server()? else {
            return Err(Refused::usage(
                "[accounts] database is not set: name the PostgreSQL there that is moved to or from",
            ));
        };
        config.check()?;
        let lock = DataDir::open(&config.keys.directory).map_err(KeysError::from)?;
        let file = Shelf::Directory(lock.path().to_owned());
        let table = Shelf::in_database(server.clone())?;
        let sqlite = Connection::Sqlite(open_database(&lock.join(FILE_NAME))?);
        let postgres =
            Connection::open(server.clone()).map_err(|error| Refused::runtime(error.to_string()))?;
        Ok(Self { config, to, server, lock, sqlite, postgres, file, table })
    }

    /// Returns source and target.
    const fn ways(&self) -> (&Connection, &Connection) {
        match self.to {
            MigrateTo::Postgres => (&self.sqlite, &self.postgres),
            MigrateTo::Sqlite => (&self.postgres, &self.sqlite),
        }
    }

    /// Copies everything and marks the target, unless an attempt before has done so.
    fn copy(&self) -> Result<(), Refused> {
        let (from, into) = self.ways();
        let failed = |error: Error| Refused::runtime(format!("nothing was moved: {error}"));
        let digest = digest_of(from).map_err(failed)?;
        let mark = into
            .first("SELECT value FROM settings WHERE name = ?1", values![MARK], |row| row.get::<String>(0))
            .map_err(failed)?;
        if let Some(mark) = mark {
            let source = if self.to == MigrateTo::Postgres { &self.file } else { &self.table };
            if mark == digest && !source.key_files()?.is_empty() {
                return self.copy_secrets(); // the source may have made a key since
            }
            // The source may be empty already, and then nothing can be missing in the target.
            if mark == digest || find_content(from).map_err(failed)?.is_none() {
                return Ok(());
            }
            return Err(Refused::usage(
                "nothing was moved: an interrupted attempt has copied everything, and the source was used after it. Begin \
                 with an empty target: a new database, or a directory without accounts.sqlite and key files",
            ));
        }
        if let Some(table) = find_content(into).map_err(failed)? {
            return Err(Refused::usage(format!(
                "nothing was moved: the target has {table} already, and two issuers' cannot be merged"
            )));
        }
        self.copy_secrets()?;
        copy_tables(from, into, &digest).map_err(failed)
    }

    /// Copies the keys, and the secret of API keys.
    fn copy_secrets(&self) -> Result<(), Refused> {
        let Self { config, file, table, .. } = self;
        let at_rest = AtRest::of(&config.keys)?;
        let secret = self.lock.join(SECRET_FILE);
        let unwritten =
            |error: io::Error| Refused::runtime(format!("the token keys cannot be moved: {error}"));
        match self.to {
            MigrateTo::Postgres => {
                table.hold()?;
                copy_keys(file, table, &at_rest)?;
                if let Some(secret) = KeySecret::read(&secret)? {
                    let place = table.join(SECRET_FILE);
                    let _ = table.remove(&place); // of an attempt before
                    table.write(&place, &at_rest.content(secret.text().as_bytes())?).map_err(unwritten)?;
                }
                table.release();
            }
            MigrateTo::Sqlite => {
                copy_keys(table, file, &at_rest)?;
                let known = shared_secret(self.server.clone(), &config.keys)?;
                let _ = std::fs::remove_file(&secret); // of an attempt before
                known.write(&secret)?;
            }
        }
        Ok(())
    }

    /// Empties the source, and takes the mark off the target. Returns the number of accounts.
    fn empty_source(self) -> Result<u64, Refused> {
        let failed = |error: &dyn std::fmt::Display| {
            Refused::runtime(format!(
                "everything was copied, and the source cannot be emptied: {error}. Start no issuer, and run this again"
            ))
        };
        let unmark = |connection: &Connection| {
            connection.run("DELETE FROM settings WHERE name = ?1", values![MARK]).map(drop)
        };
        let count = |connection: &Connection| {
            connection.first("SELECT count(*) FROM accounts", &[], |row| row.get::<u64>(0))
        };
        let target = match self.to {
            MigrateTo::Postgres => {
                self.sqlite.batch("PRAGMA wal_checkpoint(TRUNCATE)").map_err(|error| failed(&error))?;
                drop(self.sqlite);
                put_away(self.lock.path(), &self.file).map_err(|error| failed(&error))?;
                self.postgres
            }
            MigrateTo::Sqlite => {
                let tables = TABLES.map(|(table, _)| table).join(", ");
                // TRUNCATE calls no trigger.
                let all = format!(
                    "TRUNCATE {tables}, token_keys; \
                     UPDATE settings SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = 'revision'"
                );
                self.postgres
                    .transact(|postgres| {
                        postgres.batch(&all)?;
                        unmark(postgres)
                    })
                    .map_err(|error: Error| failed(&error))?;
                self.sqlite
            }
        };
        unmark(&target).map_err(|error| failed(&error))?;
        Ok(count(&target).map_err(|error| failed(&error))?.unwrap_or_default())
    }
}

/// Returns a table that is not empty.
fn find_content(connection: &Connection) -> Result<Option<&'static str>, Error> {
    for table in ["accounts", "usage"] {
        if connection.first(&format!("SELECT 1 FROM {table} LIMIT 1"), &[], |_| Ok(()))?.is_some() {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Returns the digest of all rows of a source.
fn digest_of(connection: &Connection) -> Result<String, Error> {
    let mut digest = Context::new(&SHA256);
    for (table, columns) in TABLES {
        digest.update(table.as_bytes());
        let numbers: Vec<_> = (1..=columns.len()).map(|column| column.to_string()).collect();
        let order = numbers.join(", ");
        let select = format!("SELECT {} FROM {table} ORDER BY {order}", columns.join(", "));
        connection.each(&select, &[], |row| {
            for column in 0..columns.len() {
                digest.update(format!("{:?},", row.value(column)?).as_bytes());
            }
            Ok::<_, Error>(())
        })?;
    }
    Ok(hex::encode(digest.finish()))
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

/// Copies all tables and marks the copy in one transaction.
fn copy_tables(from: &Connection, into: &Connection, digest: &str) -> Result<(), Error> {
    into.transact(|into| {
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
        into.run("INSERT INTO settings (name, value) VALUES (?1, ?2)", values![MARK, digest])?;
        Ok(())
    })
}

/// Moves the files of the database and of the keys into a folder of their own, the database first: without it the source is empty.
fn put_away(directory: &Path, keys: &Shelf) -> io::Result<()> {
    let folder = directory.join(format!("migrated-{}", UnixSeconds::now()));
    std::fs::create_dir(&folder)?;
    let aside = set_aside::all(keys).map_err(io::Error::other)?.into_iter().map(|aside| aside.path);
    let live = keys.key_files().map_err(io::Error::other)?;
    let database = ["", "-wal", "-shm"].map(|ending| directory.join(format!("{FILE_NAME}{ending}")));
    for path in database.into_iter().chain(live).chain(aside).chain([directory.join(SECRET_FILE)]) {
        if let Some(name) = path.file_name().filter(|_| path.exists()) {
            std::fs::rename(&path, folder.join(name))?;
        }
    }
    sync_directory(&folder)?;
    sync_directory(directory)
}

#[cfg(test)]
mod tests;
