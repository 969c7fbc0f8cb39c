//! Tables of accounts, of their keys, certificates and declarations, and of settings.

use crate::database::{Connection, Error, Result, Row, Value, values};
use crate::quota::{Burst, Quota};
use postern_config::ConfigDuration;
use postern_daemon::tls::PublicKeyDigest;
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::time::Duration;

/// Terms of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Tokens per period; `None` for the tier's quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Rate and burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// Name of a tier in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// First second in which the account gets no more tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixSeconds>,
}

/// A key of an account, without the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// Identifier, unique among the keys of all accounts.
    pub id: i64,
    /// First second in which the key is refused; `None` if it does not retire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retires_at: Option<UnixSeconds>,
}

/// A client certificate of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateView {
    /// Identifier, unique among the certificates of all accounts.
    pub id: i64,
    /// SHA-256 of the certificate's public key (SubjectPublicKeyInfo in DER), in hex.
    pub public_key_sha256: String,
}

/// A row of the table `accounts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) enabled: bool,
    pub(crate) terms: Terms,
}

const COLUMNS: &str = "accounts.id, name, enabled, quota_tokens, quota_period_seconds, rate_tokens_per_second, \
                       burst_tokens, tier, expires_at_unix";

fn record(row: &Row<'_>) -> Result<Record> {
    let number = |column| Ok::<_, Error>(row.get::<Option<u32>>(column)?.and_then(NonZeroU32::new));
    let burst = Burst::of(number(5)?, number(6)?).flatten();
    let (tokens, seconds): (Option<u64>, Option<u64>) = (row.get(3)?, row.get(4)?);
    let period = |seconds| ConfigDuration(Duration::from_secs(seconds));
    let quota = tokens.zip(seconds).map(|(tokens, seconds)| Quota::new(tokens, period(seconds)));
    Ok(Record {
        id: row.get(0)?,
        name: row.get(1)?,
        enabled: row.get(2)?,
        terms: Terms { quota, burst, tier: row.get(7)?, expires_at: row.get(8)? },
    })
}

/// Finds the account of a stored key, and the key.
pub(crate) fn find_by_key(connection: &Connection, stored: &[u8; 32]) -> Result<Option<(Record, KeyView)>> {
    let sql = format!(
        "SELECT {COLUMNS}, api_keys.id, retires_at_unix FROM api_keys JOIN accounts ON accounts.id = account_id \
         WHERE key_hmac_sha256 = ?1"
    );
    connection.first(&sql, values![stored], |row| {
        Ok((record(row)?, KeyView { id: row.get(9)?, retires_at: row.get(10)? }))
    })
}

/// Finds the account of a client certificate.
pub(crate) fn find_by_certificate(connection: &Connection, key: &PublicKeyDigest) -> Result<Option<Record>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM client_certificates JOIN accounts ON accounts.id = account_id WHERE public_key_sha256 = ?1"
    );
    connection.first(&sql, values![&key.0], record)
}

pub(crate) fn find(connection: &Connection, name: &str) -> Result<Option<Record>> {
    connection.first(&format!("SELECT {COLUMNS} FROM accounts WHERE name = ?1"), values![name], record)
}

/// Counts the accounts of each tier for which `is_known` returns `false`, except accounts that have their own quota.
pub(crate) fn without_tier(
    connection: &Connection,
    is_known: impl Fn(&str) -> bool,
) -> Result<Vec<(String, u64)>> {
    // Steps from tier to tier in the index: a million accounts of a known tier do not require a million rows to be read.
    let next = "SELECT min(tier) FROM accounts WHERE quota_tokens IS NULL AND tier > ?1";
    let count = "SELECT count(*) FROM accounts WHERE quota_tokens IS NULL AND tier = ?1";
    let (mut found, mut last) = (Vec::new(), String::new());
    loop {
        let tier = connection.first(next, values![last.as_str()], |row| row.get(0))?;
        let Some(Some(tier)): Option<Option<String>> = tier else { return Ok(found) };
        if !is_known(&tier) {
            let accounts = connection.first(count, values![tier.as_str()], |row| row.get(0))?;
            found.push((tier.clone(), accounts.unwrap_or_default()));
        }
        last = tier;
    }
}

/// Calls `each` with every account, by name, until it fails.
pub(crate) fn all<E: From<Error>>(
    connection: &Connection,
    mut each: impl FnMut(Record) -> Result<(), E>,
) -> Result<(), E> {
    let sql = format!("SELECT {COLUMNS} FROM accounts ORDER BY name");
    connection.each(&sql, &[], |row| each(record(row)?))
}

/// Returns the column values of terms, in the order of the table.
fn values(terms: &Terms) -> [Value; 6] {
    [
        terms.quota.map(Quota::tokens).into(),
        terms.quota.map(Quota::seconds).into(),
        terms.burst.map(|burst| u64::from(burst.tokens_per_second.get())).into(),
        terms.burst.map(|burst| u64::from(burst.burst_tokens.get())).into(),
        terms.tier.as_deref().into(),
        terms.expires_at.into(),
    ]
}

pub(crate) fn insert(connection: &Connection, name: &str, terms: &Terms) -> Result<i64> {
    let sql = "INSERT INTO accounts (name, quota_tokens, quota_period_seconds, rate_tokens_per_second, burst_tokens, tier, \
               expires_at_unix) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING id";
    let values: Vec<_> = [name.into()].into_iter().chain(values(terms)).collect();
    Ok(connection.first(sql, &values, |row| row.get(0))?.unwrap_or_default())
}

pub(crate) fn update(connection: &Connection, record: &Record) -> Result<()> {
    let Record { id, enabled, terms, .. } = record;
    let sql = "UPDATE accounts SET enabled = ?2, quota_tokens = ?3, quota_period_seconds = ?4, rate_tokens_per_second = ?5, \
               burst_tokens = ?6, tier = ?7, expires_at_unix = ?8 WHERE id = ?1";
    let values: Vec<_> = [(*id).into(), (*enabled).into()].into_iter().chain(values(terms)).collect();
    connection.run(sql, &values).map(drop)
}

/// Removes an account and its keys. Its usage stays, so that an account of the same name does not get a fresh quota.
pub(crate) fn remove(connection: &Connection, id: i64) -> Result<()> {
    connection.run("DELETE FROM accounts WHERE id = ?1", values![id]).map(drop)
}

// ---- Keys ----

pub(crate) fn keys(connection: &Connection, id: i64) -> Result<Vec<KeyView>> {
    let sql = "SELECT id, retires_at_unix FROM api_keys WHERE account_id = ?1 ORDER BY id";
    connection.rows(sql, values![id], |row| Ok(KeyView { id: row.get(0)?, retires_at: row.get(1)? }))
}

pub(crate) fn insert_key(
    connection: &Connection,
    account: i64,
    stored: &[u8; 32],
    made_elsewhere: bool,
) -> Result<()> {
    let sql = "INSERT INTO api_keys (account_id, key_hmac_sha256, made_elsewhere) VALUES (?1, ?2, ?3)";
    connection.run(sql, values![account, stored, made_elsewhere]).map(drop)
}

/// Retires a key at `time`, unless it retires sooner.
pub(crate) fn retire_key(connection: &Connection, key: i64, time: UnixSeconds) -> Result<()> {
    let sql = "UPDATE api_keys SET retires_at_unix = \
               CASE WHEN retires_at_unix < ?2 THEN retires_at_unix ELSE ?2 END WHERE id = ?1";
    connection.run(sql, values![key, time]).map(drop)
}

pub(crate) fn remove_key(connection: &Connection, key: i64) -> Result<()> {
    connection.run("DELETE FROM api_keys WHERE id = ?1", values![key]).map(drop)
}

/// Returns the stored forms of the keys that this issuer did not generate: those that a file declares.
pub(crate) fn keys_made_elsewhere(connection: &Connection) -> Result<Vec<[u8; 32]>> {
    connection.rows("SELECT key_hmac_sha256 FROM api_keys WHERE made_elsewhere = 1", &[], |row| row.get(0))
}

pub(crate) fn has_keys(connection: &Connection) -> Result<bool> {
    Ok(connection.first("SELECT id FROM api_keys LIMIT 1", &[], |_| Ok(()))?.is_some())
}

// ---- Client certificates ----

pub(crate) fn certificates(connection: &Connection, id: i64) -> Result<Vec<CertificateView>> {
    let sql = "SELECT id, public_key_sha256 FROM client_certificates WHERE account_id = ?1 ORDER BY id";
    connection.rows(sql, values![id], |row| {
        let public_key_sha256 = PublicKeyDigest(row.get(1)?).to_string();
        Ok(CertificateView { id: row.get(0)?, public_key_sha256 })
    })
}

pub(crate) fn insert_certificate(connection: &Connection, account: i64, key: &PublicKeyDigest) -> Result<()> {
    let sql = "INSERT INTO client_certificates (account_id, public_key_sha256) VALUES (?1, ?2)";
    connection.run(sql, values![account, &key.0]).map(drop)
}

pub(crate) fn remove_certificate(connection: &Connection, certificate: i64) -> Result<()> {
    connection.run("DELETE FROM client_certificates WHERE id = ?1", values![certificate]).map(drop)
}

pub(crate) fn has_certificates(connection: &Connection) -> Result<bool> {
    Ok(connection.first("SELECT id FROM client_certificates LIMIT 1", &[], |_| Ok(()))?.is_some())
}

// ---- Accounts that a file declares ----

/// Returns the identifiers and names of the declared accounts.
pub(crate) fn declared(connection: &Connection) -> Result<Vec<(i64, String)>> {
    let sql = "SELECT id, name FROM declared_accounts JOIN accounts ON id = account_id ORDER BY name";
    connection.rows(sql, &[], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Returns the key that a file declared for an account: `None` without a declaration, `Some(None)` for a declaration without a
/// key.
pub(crate) fn declared_key(connection: &Connection, account: i64) -> Result<Option<Option<[u8; 32]>>> {
    let sql = "SELECT key_hmac_sha256 FROM declared_accounts WHERE account_id = ?1";
    connection.first(sql, values![account], |row| row.get(0))
}

pub(crate) fn declare(connection: &Connection, account: i64, stored: Option<&[u8; 32]>) -> Result<()> {
    let sql = "INSERT INTO declared_accounts (account_id, key_hmac_sha256) VALUES (?1, ?2) \
               ON CONFLICT (account_id) DO UPDATE SET key_hmac_sha256 = excluded.key_hmac_sha256";
    connection.run(sql, values![account, stored]).map(drop)
}

// ---- Settings ----

pub(crate) fn setting(connection: &Connection, name: &str) -> Result<Option<String>> {
    connection.first("SELECT value FROM settings WHERE name = ?1", values![name], |row| row.get(0))
}

pub(crate) fn set(connection: &Connection, name: &str, value: &str) -> Result<()> {
    let sql = "INSERT INTO settings (name, value) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    connection.run(sql, values![name, value]).map(drop)
}
