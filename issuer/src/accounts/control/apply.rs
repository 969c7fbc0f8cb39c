//! Accounts that a file declares, for operators who keep configuration in files: Kubernetes, compose, a repository.

use super::desk::{
    Answer, Desk, Ended, check_name, check_terms, insert_certificate, parse_certificate, refused,
};
use super::{AccountChange, DeclaredAccount, KeyHash, Line, Terms};
use crate::accounts::api_key::KeyDigest;
use crate::accounts::records::{self, Record};
use crate::accounts::store::set_needs_account;
use crate::database::{Connection, Result as Read};
use crate::quota::Burst;
use postern_daemon::tls::PublicKeyDigest;
use postern_daemon::utc;
use postern_token::UnixSeconds;
use std::collections::HashSet;

/// A validated declaration of an account.
struct Wanted<'a> {
    name: &'a str,
    terms: Terms,
    key: Option<KeyDigest>,
    certificates: Option<Vec<PublicKeyDigest>>,
}

/// An account that has released the key and the certificates that it no longer declares.
struct Released {
    id: i64,
    is_new: bool,
    changed: Vec<String>,
    /// Stored form of a newly declared key.
    key: Option<[u8; 32]>,
}

impl Desk<'_> {
    /// Makes the accounts match a file: all of them, or none. `prune` removes accounts that an earlier file declared and this
    /// one does not; accounts made by other means stay.
    pub(super) fn apply(
        &self,
        declared: &[DeclaredAccount],
        prune: bool,
        answer: Answer<'_>,
    ) -> Result<(), Ended> {
        let wanted = declared.iter().map(|account| self.want(account)).collect::<Result<Vec<_>, _>>()?;
        check_unique(&wanted)?;
        let changes = self.store.change(|transaction| -> Result<_, Ended> {
            let removed = if prune { remove_others(transaction, &wanted)? } else { Vec::new() };
            let mut changes: Vec<_> =
                removed.into_iter().map(|name| (name, AccountChange::Removed)).collect();
            // Every account releases what it no longer declares before any takes it: keys and certificates may move.
            let released = wanted.iter().map(|account| self.release(transaction, account));
            for (account, released) in wanted.iter().zip(released.collect::<Result<Vec<_>, _>>()?) {
                let change = self.take_up(transaction, account, released)?;
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
        let burst = Burst::of(*rate, *burst).ok_or_else(|| {
            wrong(
                "has one of rate and burst, which need each other: write both, such as rate = 5 and burst = 50, or neither",
            )
        })?;
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
        let parse = |keys: &Vec<String>| keys.iter().map(|key| parse_certificate(key)).collect();
        let certificates: Option<Result<Vec<_>, _>> = certificates.as_ref().map(parse);
        let certificates = certificates.transpose().map_err(|_: Ended| {
            wrong("has one of certificates that is not 64 hex digits, the SHA-256 of the certificate's public key")
        })?;
        Ok(Wanted { name, terms, key: key_sha256.map(|key| key.0), certificates })
    }

    /// Adds or changes the terms of one account, retires its previous key, and removes undeclared certificates. A file does not
    /// set `enabled`.
    fn release(&self, transaction: &Connection, wanted: &Wanted<'_>) -> Result<Released, Ended> {
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
                return Err(refused(format!(
                    "[[accounts]] {name:?} has neither a key_sha256 nor certificates, so no client could be it: write one, or let \
                     `postern issuer account add` make the account and its key first"
                )));
            }
            None => records::insert(transaction, name, terms)?,
        };
        // An unchanged key is left as it is: an operator may have retired it since, and a restart must not restore it.
        let new = key.as_ref().map(|key| self.store.secret().stored(key));
        let last = records::declared_key(transaction, id)?;
        let is_declared = last == Some(new);
        if !is_declared {
            records::declare(transaction, id, new.as_ref())?;
            if let Some(last) = &last.flatten()
                && let Some((owner, key)) = records::find_by_key(transaction, last)?
                && owner.id == id
            {
                records::retire_key(transaction, key.id, self.now)?;
            }
            if last.flatten() != new {
                changed.push("key_sha256".to_owned());
            }
        }
        if let Some(certificates) = certificates
            && release_certificates(transaction, id, certificates)?
        {
            changed.push("certificates".to_owned());
        }
        Ok(Released { id, is_new: known.is_none(), changed, key: new.filter(|_| !is_declared) })
    }

    /// Gives an account the key and the certificates that it declares.
    fn take_up(
        &self,
        transaction: &Connection,
        wanted: &Wanted<'_>,
        Released { id, is_new, changed, key }: Released,
    ) -> Result<Option<AccountChange>, Ended> {
        if let Some(key) = &key {
            self.give_key(transaction, (id, wanted.name), key)?;
        }
        for certificate in wanted.certificates.iter().flatten() {
            insert_certificate(transaction, (id, wanted.name), certificate)?;
        }
        let change = if is_new { AccountChange::Added } else { AccountChange::Changed(changed) };
        Ok(Some(change).filter(|change| *change != AccountChange::Changed(Vec::new())))
    }

    /// Makes a key valid for an account, unless another account has it. A retired one counts as a new key of the account.
    fn give_key(
        &self,
        transaction: &Connection,
        (id, name): (i64, &str),
        key: &[u8; 32],
    ) -> Result<(), Ended> {
        match records::find_by_key(transaction, key)? {
            Some((owner, key)) if owner.id == id && key.retires_at.is_none() => return Ok(()),
            Some((owner, key)) if owner.id != id && key.retires_at.is_none_or(|time| time > self.now) => {
                return Err(refused(format!(
                    "[[accounts]] {name:?} has the same key_sha256 as the account {:?}: give each account its own key",
                    owner.name
                )));
            }
            Some((_, key)) => records::remove_key(transaction, key.id)?,
            None => {}
        }
        self.make_room(transaction, (id, name), false)?;
        records::insert_key(transaction, id, key, true)?;
        Ok(())
    }
}

/// Removes accounts that an earlier file declared and this one does not; returns their names.
fn remove_others(transaction: &Connection, wanted: &[Wanted<'_>]) -> Read<Vec<String>> {
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

/// Removes the account's certificates that are not `wanted`; returns `true` if these differ from those it had.
fn release_certificates(
    transaction: &Connection,
    id: i64,
    wanted: &[PublicKeyDigest],
) -> Result<bool, Ended> {
    let known = records::certificates(transaction, id)?;
    let wanted: HashSet<_> = wanted.iter().map(PublicKeyDigest::to_string).collect();
    let (kept, others): (Vec<_>, Vec<_>) =
        known.into_iter().partition(|view| wanted.contains(&view.public_key_sha256));
    others.iter().try_for_each(|view| records::remove_certificate(transaction, view.id))?;
    Ok(!others.is_empty() || kept.len() < wanted.len())
}

fn check_unique(wanted: &[Wanted<'_>]) -> Result<(), Ended> {
    if wanted.is_empty() {
        return Err(refused("the file declares no account: each begins with [[accounts]]".to_owned()));
    }
    let (mut names, mut keys) = (HashSet::new(), HashSet::new());
    for Wanted { name, key, .. } in wanted {
        if !names.insert(name) {
            return Err(refused(format!(
                "[[accounts]] {name:?} is there twice: give each account its own name"
            )));
        }
        if key.as_ref().is_some_and(|key| !keys.insert(key)) {
            return Err(refused(format!(
                "[[accounts]] {name:?} has the same key_sha256 as another account: give each account its own key"
            )));
        }
    }
    Ok(())
}

fn differing(one: &Terms, other: &Terms) -> Vec<String> {
    let terms = [
        ("quota", one.quota != other.quota),
        ("rate", one.burst != other.burst),
        ("tier", one.tier != other.tier),
        ("expires", one.expires_at != other.expires_at),
    ];
    terms.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
}
