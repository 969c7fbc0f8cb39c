//! The table of clients' certificates: by which public keys an account is known.

use super::records::{COLUMNS, Record, record};
use postern_daemon::tls::PublicKeyDigest;
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

/// A client's certificate of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateView {
    /// Distinguishes the certificates of all accounts.
    pub id: i64,
    /// The SHA-256 of its public key (SubjectPublicKeyInfo in DER), in hex.
    pub public_key_sha256: String,
}

/// The account of a client's certificate.
pub(crate) fn find(connection: &Connection, key: &PublicKeyDigest) -> rusqlite::Result<Option<Record>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM client_certificates JOIN accounts ON accounts.id = account_id WHERE public_key_sha256 = ?1"
    );
    connection.prepare_cached(&sql)?.query_row(params![key.0], record).optional()
}

pub(crate) fn of_account(connection: &Connection, id: i64) -> rusqlite::Result<Vec<CertificateView>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, public_key_sha256 FROM client_certificates WHERE account_id = ?1 ORDER BY id",
    )?;
    let rows = statement.query_map(params![id], |row| {
        let key = PublicKeyDigest(row.get(1)?);
        Ok(CertificateView { id: row.get(0)?, public_key_sha256: key.to_string() })
    })?;
    rows.collect()
}

pub(crate) fn insert(connection: &Connection, account: i64, key: &PublicKeyDigest) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO client_certificates (account_id, public_key_sha256) VALUES (?1, ?2)")?
        .execute(params![account, key.0])
        .map(drop)
}

pub(crate) fn remove(connection: &Connection, certificate: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM client_certificates WHERE id = ?1")?
        .execute(params![certificate])
        .map(drop)
}

/// Whether there is any.
pub(crate) fn exist(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM client_certificates LIMIT 1")?.exists([])
}
