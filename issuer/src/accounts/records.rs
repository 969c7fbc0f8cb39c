//! The tables of accounts and of their keys.

use super::usage::{natural, whole};
use crate::burst::Burst;
use crate::quota::Quota;
use postern_config::ConfigDuration;
use postern_token::UnixSeconds;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::time::Duration;

/// What an account has of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Tokens in each period; without it, what the tier says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Tokens in a short time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// One of the tiers of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The first second in which the account gets no tokens any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixSeconds>,
}

/// A key of an account, without the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// Distinguishes the keys of all accounts.
    pub id: i64,
    /// The first second in which it is refused, if it is to be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retires_at: Option<UnixSeconds>,
}

/// One account of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) enabled: bool,
    pub(crate) terms: Terms,
}

pub(super) const COLUMNS: &str = "accounts.id, name, enabled, quota_tokens, quota_period_seconds, rate_tokens_per_second, \
                       burst_tokens, tier, expires_at_unix";

pub(super) fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let number = |column: usize| {
        let value: Option<i64> = row.get(column)?;
        Ok::<_, rusqlite::Error>(
            value.and_then(|value| NonZeroU32::new(u32::try_from(value).unwrap_or(u32::MAX))),
        )
    };
    let burst = match (number(5)?, number(6)?) {
        (Some(tokens_per_second), Some(burst_tokens)) => Some(Burst { tokens_per_second, burst_tokens }),
        _ => None,
    };
    let (tokens, seconds): (Option<i64>, Option<i64>) = (row.get(3)?, row.get(4)?);
    let period = |seconds| ConfigDuration(Duration::from_secs(natural(seconds)));
    let quota = tokens.zip(seconds).map(|(tokens, seconds)| Quota::new(natural(tokens), period(seconds)));
    let expires_at: Option<i64> = row.get(8)?;
    Ok(Record {
        id: row.get(0)?,
        name: row.get(1)?,
        enabled: row.get(2)?,
        terms: Terms {
            quota,
            burst,
            tier: row.get(7)?,
            expires_at: expires_at.map(|time| UnixSeconds(natural(time))),
        },
    })
}

/// The account of a stored key, and when the key retires.
pub(crate) fn find_by_key(
    connection: &Connection,
    stored: &[u8; 32],
) -> rusqlite::Result<Option<(Record, Option<UnixSeconds>)>> {
    let sql = format!(
        "SELECT {COLUMNS}, retires_at_unix FROM api_keys JOIN accounts ON accounts.id = account_id \
         WHERE key_hmac_sha256 = ?1"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row(params![stored], |row| {
        let retires: Option<i64> = row.get(9)?;
        Ok((record(row)?, retires.map(|time| UnixSeconds(natural(time)))))
    });
    found.optional()
}

pub(crate) fn find(connection: &Connection, name: &str) -> rusqlite::Result<Option<Record>> {
    let sql = format!("SELECT {COLUMNS} FROM accounts WHERE name = ?1");
    connection.prepare_cached(&sql)?.query_row(params![name], record).optional()
}

pub(crate) fn exists(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM accounts WHERE name = ?1")?.exists(params![name])
}

/// How many accounts have the terms of each tier for which `is_known` says no.
pub(crate) fn without_tier(
    connection: &Connection,
    is_known: impl Fn(&str) -> bool,
) -> rusqlite::Result<Vec<(String, u64)>> {
    // From one tier to the next in the index: with a million accounts of one tier, a million rows need not be read.
    let next = "SELECT min(tier) FROM accounts WHERE quota_tokens IS NULL AND tier > ?1";
    let count = "SELECT count(*) FROM accounts WHERE quota_tokens IS NULL AND tier = ?1";
    let (mut found, mut last) = (Vec::new(), String::new());
    loop {
        let tier = connection.prepare_cached(next)?.query_row(params![last], |row| row.get(0))?;
        let Some(tier): Option<String> = tier else { return Ok(found) };
        if !is_known(&tier) {
            let accounts = connection.prepare_cached(count)?.query_row(params![tier], |row| row.get(0))?;
            found.push((tier.clone(), natural(accounts)));
        }
        last = tier;
    }
}

/// How many accounts have a quota of their own of some tokens, and not more than `most`.
pub(crate) fn with_at_most(connection: &Connection, most: u64) -> rusqlite::Result<u64> {
    connection
        .prepare("SELECT count(*) FROM accounts WHERE quota_tokens BETWEEN 1 AND ?1")?
        .query_row(params![whole(most)], |row| row.get(0))
        .map(natural)
}

/// Calls `each` with every account, by name, until it fails.
pub(crate) fn all<E: From<rusqlite::Error>>(
    connection: &Connection,
    mut each: impl FnMut(Record) -> Result<(), E>,
) -> Result<(), E> {
    let mut statement =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM accounts ORDER BY name"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(record(row)?)?;
    }
    Ok(())
}

/// The columns of terms, in their order.
fn values(terms: &Terms) -> [Value; 6] {
    [
        terms.quota.map(|quota| whole(quota.tokens())).into(),
        terms.quota.map(|quota| whole(quota.seconds())).into(),
        terms.burst.map(|burst| burst.tokens_per_second.get()).into(),
        terms.burst.map(|burst| burst.burst_tokens.get()).into(),
        terms.tier.clone().into(),
        terms.expires_at.map(|time| whole(time.0)).into(),
    ]
}

pub(crate) fn insert(connection: &Connection, name: &str, terms: &Terms) -> rusqlite::Result<i64> {
    connection.prepare_cached(
        "INSERT INTO accounts (name, quota_tokens, quota_period_seconds, rate_tokens_per_second, burst_tokens, tier, \
         expires_at_unix) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?.execute(params_from_iter([Value::from(name.to_owned())].into_iter().chain(values(terms))))?;
    Ok(connection.last_insert_rowid())
}

pub(crate) fn update(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let Record { id, enabled, terms, .. } = record;
    connection.prepare_cached(
        "UPDATE accounts SET enabled = ?2, quota_tokens = ?3, quota_period_seconds = ?4, rate_tokens_per_second = ?5, \
         burst_tokens = ?6, tier = ?7, expires_at_unix = ?8 WHERE id = ?1",
    )?.execute(params_from_iter([Value::from(*id), Value::from(*enabled)].into_iter().chain(values(terms))))?;
    Ok(())
}

/// Removes an account and its keys. Its usage stays, so that it cannot come back with a fresh quota.
pub(crate) fn remove(connection: &Connection, id: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM accounts WHERE id = ?1")?.execute(params![id]).map(drop)
}

// ---- Keys ----

pub(crate) fn keys(connection: &Connection, id: i64) -> rusqlite::Result<Vec<KeyView>> {
    let mut statement = connection
        .prepare_cached("SELECT id, retires_at_unix FROM api_keys WHERE account_id = ?1 ORDER BY id")?;
    let rows = statement.query_map(params![id], |row| {
        let retires: Option<i64> = row.get(1)?;
        Ok(KeyView { id: row.get(0)?, retires_at: retires.map(|time| UnixSeconds(natural(time))) })
    })?;
    rows.collect()
}

pub(crate) fn insert_key(
    connection: &Connection,
    account: i64,
    stored: &[u8; 32],
    made_elsewhere: bool,
) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            "INSERT INTO api_keys (account_id, key_hmac_sha256, made_elsewhere) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![account, stored, made_elsewhere])?;
    Ok(connection.last_insert_rowid())
}

/// Retires a key at `time`, unless it retires sooner.
pub(crate) fn retire_key(connection: &Connection, key: i64, time: UnixSeconds) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE api_keys SET retires_at_unix = min(ifnull(retires_at_unix, ?2), ?2) WHERE id = ?1",
        )?
        .execute(params![key, whole(time.0)])
        .map(drop)
}

pub(crate) fn remove_key(connection: &Connection, key: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM api_keys WHERE id = ?1")?.execute(params![key]).map(drop)
}

/// What is stored of the keys that are not of our form: those that a file declares.
pub(crate) fn keys_made_elsewhere(connection: &Connection) -> rusqlite::Result<Vec<[u8; 32]>> {
    let mut statement =
        connection.prepare("SELECT key_hmac_sha256 FROM api_keys WHERE made_elsewhere = 1")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    rows.collect()
}

pub(crate) fn has_keys(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare("SELECT 1 FROM api_keys LIMIT 1")?.exists([])
}

/// Retires a key of an account at `time`, by what is stored of it, unless it retires sooner.
pub(crate) fn retire_stored(
    connection: &Connection,
    account: i64,
    stored: &[u8; 32],
    time: UnixSeconds,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE api_keys SET retires_at_unix = min(ifnull(retires_at_unix, ?3), ?3) \
             WHERE account_id = ?1 AND key_hmac_sha256 = ?2",
        )?
        .execute(params![account, stored, whole(time.0)])
        .map(drop)
}

/// Makes a retired key good again.
pub(crate) fn renew_stored(connection: &Connection, stored: &[u8; 32]) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE api_keys SET retires_at_unix = NULL WHERE key_hmac_sha256 = ?1")?
        .execute(params![stored])
        .map(drop)
}

// ---- Accounts that a file declares ----

/// Their numbers and names.
pub(crate) fn declared(connection: &Connection) -> rusqlite::Result<Vec<(i64, String)>> {
    let mut statement = connection
        .prepare("SELECT id, name FROM declared_accounts JOIN accounts ON id = account_id ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// The key, if any, that a file has declared for an account, if one has declared the account.
pub(crate) fn declared_key(
    connection: &Connection,
    account: i64,
) -> rusqlite::Result<Option<Option<[u8; 32]>>> {
    connection
        .prepare_cached("SELECT key_hmac_sha256 FROM declared_accounts WHERE account_id = ?1")?
        .query_row(params![account], |row| row.get(0))
        .optional()
}

pub(crate) fn declare(
    connection: &Connection,
    account: i64,
    stored: Option<&[u8; 32]>,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO declared_accounts (account_id, key_hmac_sha256) VALUES (?1, ?2)",
        )?
        .execute(params![account, stored])
        .map(drop)
}

// ---- Settings ----

pub(crate) fn setting(connection: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT value FROM settings WHERE name = ?1")?
        .query_row(params![name], |row| row.get(0))
        .optional()
}

pub(crate) fn set(connection: &Connection, name: &str, value: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        )?
        .execute(params![name, value])
        .map(drop)
}
