//! The issuer's database: SQLite in a file, or PostgreSQL, which several issuers share. Both have the same tables and execute the
//! same statements, with `?1` for the first value. Everything here blocks.

pub(crate) mod postgres;
mod value;

use postern_daemon::utc;
use postern_token::UnixSeconds;
use postgres::{Server, Session};
use rusqlite::types::ValueRef;
use std::sync::Arc;
use value::FromValue;
pub(crate) use value::{Error, Result, Value, values};

/// The tables, as SQLite has them.
pub(crate) const SCHEMA: &str = include_str!("database/schema.sql");
/// Advisory locks: of the creation of the tables and the merge of past usage, of changes of token keys, and of accounts.
pub(crate) const TABLES: i64 = 0x506f_7374_0001;
pub(crate) const KEYS: i64 = 0x506f_7374_0002;
pub(crate) const ACCOUNTS: i64 = 0x506f_7374_0003;
/// Seconds by which the clocks of issuers and database may differ.
const CLOCK_TOLERANCE: u64 = 30;
/// Version of the tables.
const VERSION: &str = "1";

/// A connection, for one thread at a time.
#[derive(Debug)]
pub(crate) enum Connection {
    Sqlite(rusqlite::Connection),
    Postgres(Session),
}

/// A row of a result.
pub(crate) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a tokio_postgres::Row),
}

impl Connection {
    /// Connects to PostgreSQL, and creates the tables if there are none.
    pub(crate) fn open(server: Arc<Server>) -> Result<Self> {
        let connection = Self::Postgres(Session::new(server));
        connection.transact(|connection| {
            connection.lock(TABLES)?;
            let is_there = "SELECT 1 FROM information_schema.tables WHERE table_schema = current_schema() \
                            AND table_name = 'settings'";
            if connection.first(is_there, &[], |_| Ok(()))?.is_none() {
                return connection.batch(&tables());
            }
            let version = "SELECT value FROM settings WHERE name = 'version'";
            match connection.first(version, &[], |row| row.get::<String>(0))? {
                Some(found) if found == VERSION => Ok(()),
                found => Err(Error::Away(format!(
                    "its tables are of version {}, and this postern knows version {VERSION} alone",
                    found.as_deref().unwrap_or("0")
                ))),
            }
        })?;
        Ok(connection)
    }

    /// Takes an advisory lock until the end of the transaction. A transaction of SQLite is the only one.
    pub(crate) fn lock(&self, lock: i64) -> Result<()> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(session) => {
                session.each("SELECT pg_advisory_xact_lock(?1)", values![lock], |_| Ok(()))
            }
        }
    }

    /// Executes a statement that returns no rows. Returns the number of changed rows.
    pub(crate) fn run(&self, sql: &str, values: &[Value]) -> Result<u64> {
        match self {
            Self::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(sql)?;
                Ok(statement.execute(rusqlite::params_from_iter(values))? as u64)
            }
            Self::Postgres(session) => session.run(sql, values),
        }
    }

    /// Calls `each` with every row, until it fails.
    pub(crate) fn each<E: From<Error>>(
        &self,
        sql: &str,
        values: &[Value],
        mut each: impl FnMut(&Row<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(sql).map_err(Error::from)?;
                let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(Error::from)?;
                while let Some(row) = rows.next().map_err(Error::from)? {
                    each(&Row::Sqlite(row))?;
                }
                Ok(())
            }
            Self::Postgres(session) => session.each(sql, values, |row| each(&Row::Postgres(row))),
        }
    }

    /// Returns all rows.
    pub(crate) fn rows<T>(
        &self,
        sql: &str,
        values: &[Value],
        mut read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        self.each(sql, values, |row| read(row).map(|value| rows.push(value)))?;
        Ok(rows)
    }

    /// Returns the first row, if there is one. The statement returns few.
    pub(crate) fn first<T>(
        &self,
        sql: &str,
        values: &[Value],
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.rows(sql, values, read)?.into_iter().next())
    }

    /// Runs `change` in one transaction: durable when this returns, without effect after an error, and either of both after
    /// [`Error::Unsure`]. A panic of `change` ends the transaction before the next one.
    pub(crate) fn transact<T, E: From<Error>>(
        &self,
        change: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        match self {
            Self::Sqlite(connection) => {
                if !connection.is_autocommit() {
                    self.batch("ROLLBACK")?;
                }
                self.batch("BEGIN IMMEDIATE")?;
            }
            Self::Postgres(session) => session.begin()?,
        }
        let changed = change(self);
        match (&changed, self) {
            (Ok(_), _) => {}
            (Err(_), Self::Sqlite(_)) => drop(self.batch("ROLLBACK")), // the first error is the one to report
            (Err(_), Self::Postgres(session)) => session.rollback(),
        }
        let value = changed?;
        let committed = match self {
            Self::Sqlite(_) => self.batch("COMMIT").inspect_err(|_| drop(self.batch("ROLLBACK"))),
            Self::Postgres(session) => session.commit(),
        };
        match committed {
            Ok(()) => Ok(value),
            Err(error) if error.is_full() => Err(error.into()),
            Err(error) => Err(Error::Unsure(error.into()).into()),
        }
    }

    /// Describes the fault of the clock, if `now` differs from the time of PostgreSQL, which all issuers have to share.
    pub(crate) fn clock_fault(&self, now: UnixSeconds) -> Result<Option<String>> {
        let Self::Postgres(session) = self else { return Ok(None) };
        let time = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)";
        let theirs = self.first(time, &[], |row| row.get::<UnixSeconds>(0))?.unwrap_or(now);
        Ok((now.0.abs_diff(theirs.0) > CLOCK_TOLERANCE).then(|| {
            format!(
                "the clock shows {}, and that of the database {} {}: gateways may refuse the tokens of keys that a wrong clock has \
                 made. Past usage and expired keys stay as they are until both agree: set the clocks (NTP)",
                utc::rfc3339(now.0),
                session.server.place,
                utc::rfc3339(theirs.0)
            )
        }))
    }

    /// Executes statements without values.
    pub(crate) fn batch(&self, sql: &str) -> Result<()> {
        match self {
            Self::Sqlite(connection) => Ok(connection.execute_batch(sql)?),
            Self::Postgres(session) => session.batch(sql),
        }
    }

    /// Returns what makes a `SELECT` lock its rows until the end of the transaction: a transaction of SQLite is the only one.
    pub(crate) fn locking(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "",
            Self::Postgres(_) => " FOR UPDATE",
        }
    }

    /// Returns a number that differs after a change of accounts by another issuer or program.
    pub(crate) fn version(&self) -> Result<i64> {
        match self {
            Self::Sqlite(connection) => {
                Ok(connection.pragma_query_value(None, "data_version", |row| row.get(0))?)
            }
            Self::Postgres(_) => {
                let revision = "SELECT CAST(value AS BIGINT) FROM settings WHERE name = 'revision'";
                self.first(revision, &[], |row| row.get(0)).map(Option::unwrap_or_default)
            }
        }
    }
}

impl Row<'_> {
    pub(crate) fn value(&self, column: usize) -> Result<Value> {
        match self {
            Self::Sqlite(row) => Ok(match row.get_ref(column)? {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) => Value::Integer(number),
                ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
                ValueRef::Text(text) => {
                    Value::Text(std::str::from_utf8(text).map_err(|_| Error::Column(column))?.to_owned())
                }
                ValueRef::Real(_) => return Err(Error::Column(column)),
            }),
            Self::Postgres(row) => value::read(row, column),
        }
    }

    pub(crate) fn get<T: FromValue>(&self, column: usize) -> Result<T> {
        T::from_value(self.value(column)?).ok_or(Error::Column(column))
    }
}

/// Returns [`SCHEMA`] in PostgreSQL's types, and what only it has.
fn tables() -> String {
    let names = [
        ("INTEGER PRIMARY KEY,", "BIGINT PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,"),
        (" INTEGER", " BIGINT"),
        (" BLOB", " BYTEA"),
        (") STRICT, WITHOUT ROWID;", ");"),
        (") STRICT;", ");"),
    ];
    let tables = SCHEMA.split("-- For people.").next().unwrap_or_default();
    names.iter().fold(tables.to_owned(), |text, (from, to)| text.replace(from, to))
        + include_str!("database/postgres.sql")
}
