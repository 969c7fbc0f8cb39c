//! Which clients' certificates an account is known by.

use super::Line;
use super::desk::{Answer, Desk, Ended, refused};
use crate::accounts::certificates;
use crate::accounts::records::Record;
use crate::accounts::store::Change;
use postern_daemon::tls::PublicKeyDigest;
use rusqlite::{OptionalExtension, Transaction, params};
use std::sync::atomic::Ordering;

/// The most certificates of an account.
const MOST: usize = 8;

impl Desk<'_> {
    pub(super) fn add_certificate(
        &self,
        name: &str,
        public_key_sha256: &str,
        answer: Answer<'_>,
    ) -> Result<(), Ended> {
        let key = parse(public_key_sha256)?;
        let view = self.write(|transaction| {
            let Record { id, .. } = self.find(transaction, name)?;
            insert(transaction, id, &key)?;
            Ok(certificates::of_account(transaction, id)?.pop())
        })?;
        self.has_certificates();
        self.changed(name);
        view.map_or(Ok(()), |view| Ok(answer(Line::Certificate(view))?))
    }

    pub(super) fn remove_certificate(&self, name: &str, certificate: i64) -> Result<(), Ended> {
        self.write(|transaction| {
            let Record { id, .. } = self.find(transaction, name)?;
            if !certificates::of_account(transaction, id)?.iter().any(|known| known.id == certificate) {
                return Err(Change::Refused(refused(format!(
                    "{name:?} has no certificate {certificate}: `postern issuer account show` lists its certificates"
                ))));
            }
            Ok(certificates::remove(transaction, certificate)?)
        })?;
        self.changed(name);
        Ok(())
    }

    pub(super) fn has_certificates(&self) {
        if let Some(accounts) = self.running {
            accounts.has_certificates.store(true, Ordering::Release);
        }
    }
}

/// Adds a certificate to an account, unless it has it.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    account: i64,
    key: &PublicKeyDigest,
) -> Result<(), Change<Ended>> {
    match certificates::find(transaction, key)? {
        Some(owner) if owner.id == account => return Ok(()),
        Some(owner) => {
            return Err(Change::Refused(refused(format!(
                "{:?} is known by this certificate, or by another one of the same key: remove it there first (`postern issuer \
                 account remove-certificate`), or give each account a key of its own",
                owner.name
            ))));
        }
        None => {}
    }
    if certificates::of_account(transaction, account)?.len() >= MOST {
        let name = transaction
            .query_row("SELECT name FROM accounts WHERE id = ?1", params![account], |row| {
                row.get::<_, String>(0)
            })
            .optional()?;
        return Err(Change::Refused(refused(format!(
            "{:?} has {MOST} certificates, the most there may be: remove one first (`postern issuer account remove-certificate`)",
            name.unwrap_or_default()
        ))));
    }
    Ok(certificates::insert(transaction, account, key)?)
}

pub(super) fn parse(public_key_sha256: &str) -> Result<PublicKeyDigest, Ended> {
    let mut key = [0; 32];
    hex::decode_to_slice(public_key_sha256, &mut key).map_err(|_| {
        refused("a certificate is given as the SHA-256 of its public key, in 64 hex digits".to_owned())
    })?;
    Ok(PublicKeyDigest(key))
}
