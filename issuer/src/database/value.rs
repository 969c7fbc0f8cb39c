//! Errors, and values in columns: numbers, texts and bytes, in either engine.

use bytes::BytesMut;
use postern_token::UnixSeconds;
use rusqlite::types::{ToSqlOutput, ValueRef};
use std::error::Error as _;
use tokio_postgres::types::{self as postgres, IsNull, Type, to_sql_checked};

/// An error of a statement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL refused a statement.
    #[error("{}", sentence(.0))]
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

impl Error {
    /// Returns `true` if a commit failed because SQLite could not write its last frame: no later reader, and no recovery after a
    /// crash, takes a part of it for a commit.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Sqlite(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull))
    }
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

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

impl rusqlite::ToSql for Value {
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

// ---- PostgreSQL ----

/// Describes an error with its cause: the crate's own text names only its kind.
pub(crate) fn sentence(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(error), _) => format!("{} (SQLSTATE {})", error.message(), error.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// Reads a column.
pub(super) fn read(row: &tokio_postgres::Row, column: usize) -> Result<Value> {
    let of = row.columns().get(column).map(|column| column.type_());
    Ok(match of {
        Some(&Type::INT8) => row.try_get::<_, Option<i64>>(column)?.into(),
        Some(&Type::INT4) => row.try_get::<_, Option<i32>>(column)?.map(i64::from).into(),
        Some(&Type::TEXT) => row.try_get::<_, Option<&str>>(column)?.into(),
        Some(&Type::BYTEA) => row.try_get::<_, Option<&[u8]>>(column)?.into(),
        _ => return Err(Error::Column(column)),
    })
}

impl postgres::ToSql for Value {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(number) => postgres::ToSql::to_sql(number, of, out),
            Self::Text(text) => postgres::ToSql::to_sql(text, of, out),
            Self::Blob(bytes) => postgres::ToSql::to_sql(bytes, of, out),
        }
    }

    fn accepts(of: &Type) -> bool {
        [Type::INT8, Type::TEXT, Type::BYTEA].contains(of)
    }

    to_sql_checked!();
}
