//! Accounts that a file declares, for operators who keep what runs in files: Kubernetes, compose, a repository.

use super::certificates;
use super::desk::{Answer, Desk, Ended, check_name, check_terms, refused};
use super::{Line, Terms};
use crate::Burst;
use crate::accounts::api_key::{KeyDigest, sha256};
use crate::accounts::certificates as stored;
use crate::accounts::records::{self, Record};
use crate::accounts::store::{Change, set_needs_account};
use crate::quota::Quota;
use postern_daemon::tls::PublicKeyDigest;
use postern_daemon::utc;
use postern_token::UnixSeconds;
use rusqlite::Transaction;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;

/// A file of accounts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountsFile {
    /// The accounts.
    #[serde(default)]
    pub accounts: Vec<DeclaredAccount>,
}

/// An account as a file declares it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeclaredAccount {
    /// A name for the operator, unique. It is never shown to clients.
    pub name: String,
    /// The SHA-256 of the account's API key. Keys that `postern issuer account` made are good beside it.
    #[serde(default)]
    pub key_sha256: Option<KeyHash>,
    /// How many tokens the account gets in each period. Without it the account has the terms of its tier.
    #[serde(default)]
    pub quota: Option<Quota>,
    /// How many tokens a second, on average, besides the quota. It needs `burst`.
    #[serde(default)]
    pub rate: Option<NonZeroU32>,
    /// How many tokens at once, after a pause. It needs `rate`.
    #[serde(default)]
    pub burst: Option<NonZeroU32>,
    /// One of `[[tiers]]`, by its name.
    #[serde(default)]
    pub tier: Option<String>,
    /// The first day (UTC) without tokens, such as "2027-01-31".
    #[serde(default)]
    pub expires: Option<String>,
    /// The SHA-256 of the public keys of its clients' certificates, in hex. Without it those it has stay.
    #[serde(default)]
    pub certificates: Option<Vec<String>>,
}

/// What became of a declared account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountChange {
    /// It is new.
    Added,
    /// These of its values are others, by their names in the file.
    Changed(Vec<String>),
    /// It is not declared any more.
    Removed,
}

/// A declared account whose values make sense.
struct Wanted<'a> {
    name: &'a str,
    terms: Terms,
    key: Option<KeyDigest>,
    certificates: Option<Vec<PublicKeyDigest>>,
}

impl Desk<'_> {
    /// Makes the accounts what a file declares: all of them, or none. With `prune` accounts go that an earlier file declared, and
    /// this one does not; those that were made otherwise stay.
    pub(super) fn apply(
        &self,
        declared: &[DeclaredAccount],
        prune: bool,
        answer: Answer<'_>,
    ) -> Result<(), Ended> {
        let wanted = declared.iter().map(|account| self.want(account)).collect::<Result<Vec<_>, _>>()?;
        check_unique(&wanted)?;
        let changes = self.write(|transaction| {
            let removed = if prune { remove_others(transaction, &wanted)? } else { Vec::new() };
            let mut changes: Vec<_> =
                removed.into_iter().map(|name| (name, AccountChange::Removed)).collect();
            for account in &wanted {
                let change = self.take_up(transaction, account)?;
                changes.extend(change.map(|change| (account.name.to_owned(), change)));
            }
            set_needs_account(transaction)?;
            Ok(changes)
        })?;
        if let Some(accounts) = self.running.filter(|_| !changes.is_empty()) {
            accounts.take_up_database()?;
        }
        for (account, change) in changes {
            if change == AccountChange::Removed {
                self.settle(Some(&account));
            }
            answer(Line::Applied { account, change })?;
        }
        Ok(())
    }

    fn want<'a>(&self, declared: &'a DeclaredAccount) -> Result<Wanted<'a>, Ended> {
        let DeclaredAccount { name, key_sha256, quota, rate, burst, tier, expires, certificates } = declared;
        let wrong = |what: &str| refused(format!("[[accounts]] {name:?} {what}"));
        check_name(name)?;
        let burst = match (*rate, *burst) {
            (Some(tokens_per_second), Some(burst_tokens)) => Some(Burst { tokens_per_second, burst_tokens }),
            (None, None) => None,
            _ => {
                return Err(wrong(
                    "has one of rate and burst, which need each other: write both, such as rate = 5 and burst = 50, or neither",
                ));
            }
        };
        let day = |text: &str| {
            let wrong =
                || wrong(&format!("expires on {text:?}, which is no day: write it as \"2027-01-31\""));
            utc::day(text).map(UnixSeconds).ok_or_else(wrong)
        };
        let expires_at = expires.as_deref().map(day).transpose()?;
        let tiers = &self.configured.tiers;
        if let Some(tier) = tier.as_deref().filter(|tier| !tiers.has(tier)) {
            return Err(refused(format!("[[accounts]] {name:?}: {}", tiers.unknown(tier))));
        }
        let terms = Terms { quota: *quota, burst, tier: tier.clone(), expires_at };
        check_terms(name, &terms)?;
        if key_sha256.is_some_and(KeyHash::is_of_no_key) {
            return Err(wrong(
                "has a key_sha256 that is a placeholder, or the hash of nothing, as of a variable that is not set: make a key with \
                 `key=$(openssl rand -hex 32)`, give it to the client, and write here what `printf %s \"$key\" | sha256sum` prints",
            ));
        }
        let parse = |keys: &Vec<String>| keys.iter().map(|key| certificates::parse(key)).collect();
        let certificates: Option<Result<Vec<_>, _>> = certificates.as_ref().map(parse);
        let certificates = certificates.transpose().map_err(|_: Ended| {
            wrong("has one of certificates that is not 64 hex digits, the SHA-256 of the certificate's public key")
        })?;
        Ok(Wanted { name, terms, key: key_sha256.map(|key| key.0), certificates })
    }

    /// Adds or changes one account. Whether it is enabled is not in a file.
    fn take_up(
        &self,
        transaction: &Transaction<'_>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<AccountChange>, Change<Ended>> {
        let Wanted { name, terms, key, certificates } = wanted;
        let known = records::find(transaction, name)?;
        let mut changed = Vec::new();
        let id = match &known {
            Some(record) => {
                changed = differing(&record.terms, terms);
                if !changed.is_empty() {
                    records::update(transaction, &Record { terms: terms.clone(), ..record.clone() })?;
                }
                record.id
            }
            None if key.is_none() && certificates.iter().all(Vec::is_empty) => {
                return Err(Change::Refused(refused(format!(
                    "[[accounts]] {name:?} has neither a key_sha256 nor certificates, so no client could be it: write one, or let \
                     `postern issuer account add` make the account and its key first"
                ))));
            }
            None => records::insert(transaction, name, terms)?,
        };
        if self.take_up_key(transaction, (id, name), key.as_ref())? {
            changed.push("key_sha256".to_owned());
        }
        if let Some(certificates) = certificates
            && take_up_certificates(transaction, id, certificates)?
        {
            changed.push("certificates".to_owned());
        }
        let change = if known.is_none() { AccountChange::Added } else { AccountChange::Changed(changed) };
        Ok(Some(change).filter(|change| *change != AccountChange::Changed(Vec::new())))
    }

    /// Whether another key is declared than the last time. One that is not new is left as it is: an operator who has retired it
    /// since does not want it back at the next restart.
    fn take_up_key(
        &self,
        transaction: &Transaction<'_>,
        (id, name): (i64, &str),
        key: Option<&KeyDigest>,
    ) -> Result<bool, Change<Ended>> {
        let new = key.map(|key| self.store.secret().stored(key));
        let last = records::declared_key(transaction, id)?;
        if last == Some(new) {
            return Ok(false);
        }
        records::declare(transaction, id, new.as_ref())?;
        let last = last.flatten();
        if let Some(last) = &last {
            records::retire_stored(transaction, id, last, self.now)?;
        }
        if let Some(new) = &new {
            match records::find_by_key(transaction, new)? {
                Some((owner, _)) if owner.id != id => {
                    return Err(Change::Refused(refused(format!(
                        "[[accounts]] {name:?} has the same key_sha256 as the account {:?}: give each account a key of its own",
                        owner.name
                    ))));
                }
                Some((_, None)) => {}
                Some((_, Some(_))) => records::renew_stored(transaction, new)?, // it was retired, and is declared again
                None => {
                    self.make_room(transaction, (id, name), false)?;
                    records::insert_key(transaction, id, new, true)?;
                }
            }
        }
        Ok(last != new)
    }
}

/// Removes the accounts that an earlier file declared, and returns their names.
fn remove_others(transaction: &Transaction<'_>, wanted: &[Wanted<'_>]) -> rusqlite::Result<Vec<String>> {
    let names: HashSet<_> = wanted.iter().map(|account| account.name).collect();
    let mut others = records::declared(transaction)?;
    others.retain(|(_, name)| !names.contains(name.as_str()));
    others
        .into_iter()
        .map(|(id, name)| {
            records::remove(transaction, id)?;
            Ok(name)
        })
        .collect()
}

/// Whether the account's certificates are others now.
fn take_up_certificates(
    transaction: &Transaction<'_>,
    id: i64,
    wanted: &[PublicKeyDigest],
) -> Result<bool, Change<Ended>> {
    let known = stored::of_account(transaction, id)?;
    let is_wanted = |hex: &str| wanted.iter().any(|key| key.to_string() == hex);
    let mut is_changed = false;
    for view in known.iter().filter(|view| !is_wanted(&view.public_key_sha256)) {
        stored::remove(transaction, view.id)?;
        is_changed = true;
    }
    for key in wanted.iter().filter(|key| !known.iter().any(|view| view.public_key_sha256 == key.to_string()))
    {
        certificates::insert(transaction, id, key)?;
        is_changed = true;
    }
    Ok(is_changed)
}

fn check_unique(wanted: &[Wanted<'_>]) -> Result<(), Ended> {
    if wanted.is_empty() {
        return Err(refused("the file declares no account: each begins with [[accounts]]".to_owned()));
    }
    let (mut names, mut keys) = (HashSet::new(), HashSet::new());
    for Wanted { name, key, .. } in wanted {
        if !names.insert(name) {
            return Err(refused(format!(
                "[[accounts]] {name:?} is there twice: give each account a name of its own"
            )));
        }
        if key.as_ref().is_some_and(|key| !keys.insert(key)) {
            return Err(refused(format!(
                "[[accounts]] {name:?} has the same key_sha256 as another account: give each account a key of its own"
            )));
        }
    }
    Ok(())
}

/// The names of the terms that differ.
fn differing(one: &Terms, other: &Terms) -> Vec<String> {
    let terms = [
        ("quota", one.quota != other.quota),
        ("rate", one.burst != other.burst),
        ("tier", one.tier != other.tier),
        ("expires", one.expires_at != other.expires_at),
    ];
    terms.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
}

/// The SHA-256 of an API key: 64 hex digits in the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Whether it is the hash of nothing, or one byte again and again.
    fn is_of_no_key(self) -> bool {
        self.0.iter().all(|byte| *byte == self.0[0]) || self.0 == sha256(b"")
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(redacted)")
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(self.0))
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let mut hash = [0; 32];
        hex::decode_to_slice(text.as_bytes(), &mut hash)
            .map_err(|_| de::Error::custom("it is not 64 hex digits; never write the API key itself here"))?;
        Ok(Self(hash))
    }
}

impl JsonSchema for KeyHash {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "KeyHash".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // "secret" keeps a value that was refused out of the error: it may be the API key, written in the wrong place.
        json_schema!({
            "type": "string",
            "format": "secret",
            "x-accepted": "64 hex digits, the SHA-256 of the API key",
        })
    }
}
