//! The issuer's database: SQLite in a file, or PostgreSQL, which several issuers share. Both have the same tables and execute the
//! same statements, with `?1` for the first value. Everything here blocks.

pub(crate) mod postgres;

use postern_token::UnixSeconds;
use postgres::Session;
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};

/// The tables, as SQLite has them.
pub(crate) const SCHEMA: &str = include_str!("database/schema.sql");

/// An error of a statement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL refused a statement.
    #[error("{}", postgres::sentence(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// PostgreSQL cannot be reached, or does not answer.
    #[error("{0}")]
    Away(String),
    #[error("column {0} has a value of another type")]
    Column(usize),
    /// A transaction may have been committed, or not.
    #[error("{0}, and its last change may be in effect or not")]
    Unsure(Box<Error>),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// A connection, for one thread at a time.
#[derive(Debug)]
pub(crate) enum Connection {
    Sqlite(rusqlite::Connection),
    Postgres(Session),
}

/// A value in a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    Text(String),
    Blob(Vec<u8>),
}

/// Makes a list of [`Value`]s.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::database::Value::from($value)),*] };
}
pub(crate) use values;

/// A row of a result.
pub(crate) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a tokio_postgres::Row),
}

impl Connection {
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
        match self {
            Self::Sqlite(_) => self.batch("COMMIT").inspect_err(|_| drop(self.batch("ROLLBACK"))),
            Self::Postgres(session) => session.commit(),
        }
        .map_err(|error| Error::Unsure(error.into()))?;
        Ok(value)
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

// ---- Values ----

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
            Self::Postgres(row) => postgres::value(row, column),
        }
    }

    pub(crate) fn get<T: FromValue>(&self, column: usize) -> Result<T> {
        T::from_value(self.value(column)?).ok_or(Error::Column(column))
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

/// Saturates: no quota and no time exceeds an `i64`.
impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(is_true: bool) -> Self {
        Self::Integer(is_true.into())
    }
}

impl From<UnixSeconds> for Value {
    fn from(time: UnixSeconds) -> Self {
        time.0.into()
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Blob(bytes.to_vec())
    }
}

impl From<&[u8; 32]> for Value {
    fn from(hash: &[u8; 32]) -> Self {
        hash.as_slice().into()
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A type that a column is read as.
pub(crate) trait FromValue: Sized {
    fn from_value(value: Value) -> Option<Self>;
}

impl FromValue for i64 {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Integer(number) = value { Some(number) } else { None }
    }
}

/// Reads negative numbers as 0.
impl FromValue for u64 {
    fn from_value(value: Value) -> Option<Self> {
        i64::from_value(value).map(|number| Self::try_from(number).unwrap_or(0))
    }
}

impl FromValue for u32 {
    fn from_value(value: Value) -> Option<Self> {
        u64::from_value(value).map(|number| Self::try_from(number).unwrap_or(Self::MAX))
    }
}

impl FromValue for bool {
    fn from_value(value: Value) -> Option<Self> {
        i64::from_value(value).map(|number| number != 0)
    }
}

impl FromValue for UnixSeconds {
    fn from_value(value: Value) -> Option<Self> {
        u64::from_value(value).map(UnixSeconds)
    }
}

impl FromValue for String {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text) } else { None }
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Blob(bytes) = value { Some(bytes) } else { None }
    }
}

impl FromValue for [u8; 32] {
    fn from_value(value: Value) -> Option<Self> {
        Vec::from_value(value)?.try_into().ok()
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Option<Self> {
        if value == Value::Null { Some(None) } else { T::from_value(value).map(Some) }
    }
}
