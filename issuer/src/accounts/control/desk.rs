//! Carrying out what an operator asks for, in a running issuer or on the file of one that does not run.

use super::{AccountRequest, Edit, Line, MOST_NAME, Refused, certificates, is_account_name, not_here};
use crate::accounts::records::{self, KeyView, Record, Terms};
use crate::accounts::store::{Change, Store, set_needs_account};
use crate::accounts::{Accounts, AccountsError, Configured};
use postern_token::UnixSeconds;
use rusqlite::{Connection, Transaction};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The most keys of an account that are good, and the most that are retired and still told from unknown ones.
const MOST_KEYS: usize = 8;
const MOST_RETIRED: usize = 4;

/// Where requests are carried out.
pub(crate) struct Desk<'a> {
    pub(crate) store: &'a Store,
    /// What the configuration file says of accounts.
    pub(crate) configured: &'a Configured,
    /// What is in memory, where the issuer runs.
    pub(crate) running: Option<&'a Accounts>,
    /// The present time.
    pub(crate) now: UnixSeconds,
}

/// Why a request ended early.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It is not done.
    Refused(Refused),
    /// The operator's side closed the connection.
    Unread(io::Error),
    Database(rusqlite::Error),
}

impl From<Refused> for Ended {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Unread(error)
    }
}

impl From<rusqlite::Error> for Ended {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<AccountsError> for Ended {
    fn from(error: AccountsError) -> Self {
        Self::Refused(error.into())
    }
}

/// Where the lines of an answer go.
pub(crate) type Answer<'a> = &'a mut dyn FnMut(Line) -> io::Result<()>;

impl Desk<'_> {
    /// Answers a request with lines, the last of which is [`Line::Done`] or [`Line::Failed`]. Blocks on the disk.
    pub(crate) fn answer(&self, request: AccountRequest, answer: Answer<'_>) -> io::Result<()> {
        match self.carry_out(request, self.now, answer) {
            Ok(()) => answer(Line::Done),
            Err(Ended::Refused(refused)) => answer(Line::Failed(refused)),
            Err(Ended::Database(error)) => answer(Line::Failed(self.store.error(&error).into())),
            Err(Ended::Unread(error)) => Err(error),
        }
    }

    fn carry_out(&self, request: AccountRequest, now: UnixSeconds, answer: Answer<'_>) -> Result<(), Ended> {
        if let Some(copies) = self.configured.follows().filter(|_| request.is_change()) {
            return Err(Ended::Refused(not_here(copies)));
        }
        match request {
            AccountRequest::Add { name, terms, certificates } => {
                self.add(&name, &terms, &certificates, answer)
            }
            AccountRequest::AddCertificate { name, public_key_sha256 } => {
                self.add_certificate(&name, &public_key_sha256, answer)
            }
            AccountRequest::RemoveCertificate { name, certificate } => {
                self.remove_certificate(&name, certificate)
            }
            AccountRequest::List => self.list(answer),
            AccountRequest::Show { name } => self.show(&name, answer),
            AccountRequest::SetEnabled { name, enabled } => {
                self.edit(&name, |record| record.enabled = enabled)
            }
            AccountRequest::RotateKey { name, grace_seconds } => {
                self.rotate_key(&name, grace_seconds, now, answer)
            }
            AccountRequest::RetireKey { name, key } => self.retire_key(&name, key, now),
            AccountRequest::Change { name, quota, burst, tier, expires_at } => {
                if let Edit::Set(tier) = &tier {
                    self.check_tier(tier)?;
                }
                self.edit(&name, |Record { terms, .. }| {
                    quota.apply(&mut terms.quota);
                    burst.apply(&mut terms.burst);
                    tier.apply(&mut terms.tier);
                    expires_at.apply(&mut terms.expires_at);
                })
            }
            AccountRequest::Remove { name } => self.remove(&name),
            AccountRequest::Apply { accounts, prune } => self.apply(&accounts, prune, answer),
            AccountRequest::Usage { account, since } => self.usage(account.as_deref(), since, answer),
        }
    }

    // ---- Changes ----

    fn add(
        &self,
        name: &str,
        terms: &Terms,
        certificates: &[String],
        answer: Answer<'_>,
    ) -> Result<(), Ended> {
        let certificates: Vec<_> =
            certificates.iter().map(|key| certificates::parse(key)).collect::<Result<_, _>>()?;
        check_name(name)?;
        terms.tier.as_deref().map(|tier| self.check_tier(tier)).transpose()?;
        check_terms(name, terms)?;
        let key = self.write(|transaction| {
            if records::exists(transaction, name)? {
                return Err(Change::Refused(refused(format!(
                    "there is an account {name:?} already: choose another name, or change it (`postern issuer account --help`)"
                ))));
            }
            let id = records::insert(transaction, name, terms)?;
            set_needs_account(transaction)?;
            certificates.iter().try_for_each(|key| certificates::insert(transaction, id, key))?;
            certificates.is_empty().then(|| self.new_key(transaction, id)).transpose()
        })?;
        if let Some(accounts) = self.running {
            accounts.needs_account.store(true, Ordering::Release);
        }
        if !certificates.is_empty() {
            self.has_certificates();
        }
        self.changed(name);
        key.map_or(Ok(()), |key| answer(Line::ApiKey(key)))?;
        self.account(self.store.with(|connection| records::find(connection, name))?, answer)
    }

    fn edit(&self, name: &str, edit: impl FnOnce(&mut Record)) -> Result<(), Ended> {
        self.write(|transaction| {
            let mut record = self.find(transaction, name)?;
            edit(&mut record);
            check_terms(name, &record.terms).map_err(Change::Refused)?;
            Ok(records::update(transaction, &record)?)
        })?;
        self.changed(name);
        Ok(())
    }

    fn rotate_key(
        &self,
        name: &str,
        grace_seconds: Option<u64>,
        now: UnixSeconds,
        answer: Answer<'_>,
    ) -> Result<(), Ended> {
        let key = self.write(|transaction| {
            let Record { id, .. } = self.find(transaction, name)?;
            let good = self.make_room(transaction, (id, name), grace_seconds == Some(0))?;
            if let Some(grace) = grace_seconds {
                let end = now.saturating_add(Duration::from_secs(grace));
                for key in good {
                    records::retire_key(transaction, key.id, end)?;
                }
            }
            self.new_key(transaction, id)
        })?;
        self.changed(name);
        Ok(answer(Line::ApiKey(key))?)
    }

    fn retire_key(&self, name: &str, key: i64, now: UnixSeconds) -> Result<(), Ended> {
        self.write(|transaction| {
            let Record { id, .. } = self.find(transaction, name)?;
            if !records::keys(transaction, id)?.iter().any(|known| known.id == key) {
                return Err(Change::Refused(refused(format!(
                    "{name:?} has no key {key}: `postern issuer account show` lists its keys"
                ))));
            }
            Ok(records::retire_key(transaction, key, now)?)
        })?;
        self.changed(name);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), Ended> {
        self.write(|transaction| {
            let record = self.find(transaction, name)?;
            Ok(records::remove(transaction, record.id)?)
        })?;
        self.changed(name);
        self.settle(Some(name));
        Ok(())
    }

    /// Removes retired keys of an account until it has room for one more, and returns those that are good, which may be many where
    /// the one more takes the place of all.
    pub(super) fn make_room(
        &self,
        transaction: &Transaction<'_>,
        (id, name): (i64, &str),
        replaces_all: bool,
    ) -> Result<Vec<KeyView>, Change<Ended>> {
        let is_retired = |time: Option<UnixSeconds>| time.is_some_and(|time| time <= self.now);
        let (retired, good): (Vec<_>, Vec<_>) =
            records::keys(transaction, id)?.into_iter().partition(|key| is_retired(key.retires_at));
        if !replaces_all && good.len() >= MOST_KEYS {
            return Err(Change::Refused(refused(format!(
                "{name:?} has {MOST_KEYS} keys that are good, the most there may be: retire one first (`postern issuer account \
                 retire-key`), or all of them with `rotate-key --grace 0s`"
            ))));
        }
        for key in retired.iter().rev().skip(MOST_RETIRED) {
            records::remove_key(transaction, key.id)?;
        }
        Ok(good)
    }

    fn new_key(&self, transaction: &Transaction<'_>, account: i64) -> Result<String, Change<Ended>> {
        let no_bytes =
            || Ended::Refused(Refused::runtime("the system gives no random bytes for a key: try again"));
        let key = self.store.secret().make_key().ok_or_else(no_bytes).map_err(Change::Refused)?.0;
        let stored = self.store.secret().stored(&crate::accounts::api_key::sha256(key.as_bytes()));
        records::insert_key(transaction, account, &stored, false)?;
        Ok(key)
    }

    pub(super) fn write<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Change<Ended>>,
    ) -> Result<T, Ended> {
        self.store.write(change)
    }

    /// From the next request on the change counts.
    pub(super) fn changed(&self, name: &str) {
        if let Some(accounts) = self.running {
            accounts.active.forget(name);
            accounts.are_unchecked.store(true, Ordering::Release);
        }
    }

    pub(super) fn find(&self, connection: &Connection, name: &str) -> Result<Record, Change<Ended>> {
        records::find(connection, name)?.ok_or_else(|| Change::Refused(self.missing(name)))
    }

    pub(super) fn missing(&self, name: &str) -> Ended {
        refused(format!("there is no account {name:?}: `postern issuer account list` names them all"))
    }

    fn check_tier(&self, tier: &str) -> Result<(), Ended> {
        let tiers = &self.configured.tiers;
        if tiers.has(tier) { Ok(()) } else { Err(refused(tiers.unknown(tier))) }
    }
}

impl<T> Edit<T> {
    fn apply(self, value: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *value = None,
            Self::Set(new) => *value = Some(new),
        }
    }
}

pub(super) fn refused(sentence: String) -> Ended {
    Ended::Refused(Refused::usage(sentence))
}

pub(super) fn check_name(name: &str) -> Result<(), Ended> {
    let why = || {
        refused(format!(
            "{name:?} is no name for an account: it begins with a letter or a digit, and has 1 to {MOST_NAME} characters, none of \
             them a control character"
        ))
    };
    is_account_name(name).then_some(()).ok_or_else(why)
}

/// Without a quota an account has its tier's, and so needs one.
pub(super) fn check_terms(name: &str, terms: &Terms) -> Result<(), Ended> {
    if terms.quota.is_some() || terms.tier.is_some() {
        return Ok(());
    }
    Err(refused(format!(
        "{name:?} would have neither a quota nor a tier, and so no terms at all: give it a quota, such as 10000/1d, or one of the \
         [[tiers]] of the configuration (--tier)"
    )))
}
