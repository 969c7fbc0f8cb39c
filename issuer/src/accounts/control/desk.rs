//! Execution of operators' requests, in a running issuer or on the files of one that does not run.

use super::{AccountRequest, Edit, Line, MOST_NAME, Refused, is_account_name};
use crate::accounts::api_key::KeySecret;
use crate::accounts::records::{self, KeyView, Record, Terms};
use crate::accounts::store::{Store, set_needs_account};
use crate::accounts::{Accounts, AccountsError, Configured};
use crate::database::{Connection, Error};
use crate::keys::control::shared_secret;
use crate::{Config, StartError};
use postern_daemon::files::DataDir;
use postern_daemon::tls::PublicKeyDigest;
use postern_daemon::utc::rfc3339;
use postern_token::UnixSeconds;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Largest number of an account's valid keys, and of its retired keys that are still distinguished from unknown ones.
const MOST_KEYS: usize = 8;
const MOST_RETIRED: usize = 4;
/// Largest number of certificates of an account.
const MOST_CERTIFICATES: usize = 8;

/// The context in which requests are executed.
pub(crate) struct Desk<'a> {
    pub(crate) store: &'a Store,
    pub(crate) configured: &'a Configured,
    /// Accounts in memory; `None` if the issuer does not run.
    pub(crate) running: Option<&'a Accounts>,
    pub(crate) now: UnixSeconds,
}

/// The reason a request ended early.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum Ended {
    Refused(#[from] Refused),
    /// The operator's side closed the connection.
    Unread(#[from] io::Error),
    Database(#[from] Error),
}

impl From<AccountsError> for Ended {
    fn from(error: AccountsError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<StartError> for Refused {
    fn from(error: StartError) -> Self {
        Self { sentence: error.to_string(), code: error.exit_code() }
    }
}

impl From<AccountsError> for Refused {
    fn from(error: AccountsError) -> Self {
        Self::runtime(error.to_string())
    }
}

/// The receiver of an answer's lines.
pub(crate) type Answer<'a> = &'a mut dyn FnMut(Line) -> io::Result<()>;

/// Opens the database of a configuration, where tokens need an account from then on, or the one in `directory`, whose lock the
/// caller holds. `secret` is the database's, if it is known.
pub(crate) fn open_store(
    config: &Config,
    directory: &Path,
    secret: Option<KeySecret>,
) -> Result<Store, StartError> {
    let Some(server) = config.server()? else { return Ok(Store::open(directory)?) };
    let secret = secret.map_or_else(|| shared_secret(server.clone(), &config.keys), Ok)?;
    let store = Store::shared(server, secret)?;
    store.transact(set_needs_account).map_err(|error| store.error(&error))?;
    Ok(store)
}

/// Answers a request on the files of an issuer that does not run, as `lock` proves.
pub(crate) fn answer(
    lock: &DataDir,
    config: &Config,
    request: AccountRequest,
    answer: Answer<'_>,
) -> Result<io::Result<()>, StartError> {
    let (store, configured) = (open_store(config, lock.path(), None)?, Configured::of(config));
    let desk = Desk { store: &store, configured: &configured, running: None, now: UnixSeconds::now() };
    Ok(desk.answer(request, answer))
}

impl Accounts {
    /// Answers a request while the issuer runs.
    pub(crate) fn answer(&self, request: AccountRequest, answer: Answer<'_>) -> io::Result<()> {
        let configured = self.configured.load_full();
        let now = UnixSeconds::now();
        Desk { store: &self.store, configured: &configured, running: Some(self), now }.answer(request, answer)
    }
}

impl Desk<'_> {
    /// Answers a request with lines, the last of which is [`Line::Done`] or [`Line::Failed`]. Blocks on the disk.
    pub(crate) fn answer(&self, request: AccountRequest, answer: Answer<'_>) -> io::Result<()> {
        match self.carry_out(request, answer) {
            Ok(()) => answer(Line::Done),
            Err(Ended::Refused(refused)) => answer(Line::Failed(refused)),
            Err(Ended::Database(error)) => answer(Line::Failed(self.store.error(&error).into())),
            Err(Ended::Unread(error)) => Err(error),
        }
    }

    fn carry_out(&self, request: AccountRequest, answer: Answer<'_>) -> Result<(), Ended> {
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
                self.rotate_key(&name, grace_seconds, answer)
            }
            AccountRequest::RetireKey { name, key } => self.retire_key(&name, key),
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
            certificates.iter().map(|key| parse_certificate(key)).collect::<Result<_, _>>()?;
        check_name(name)?;
        terms.tier.as_deref().map(|tier| self.check_tier(tier)).transpose()?;
        check_terms(name, terms)?;
        self.check_end(name, terms)?;
        let key = self.store.change(|transaction| -> Result<_, Ended> {
            if records::find(transaction, name)?.is_some() {
                return Err(refused(format!(
                    "there is an account {name:?} already: choose another name, or change it (`postern issuer account --help`)"
                )));
            }
            let id = records::insert(transaction, name, terms)?;
            set_needs_account(transaction)?;
            certificates.iter().try_for_each(|key| insert_certificate(transaction, (id, name), key))?;
            certificates.is_empty().then(|| self.new_key(transaction, id)).transpose()
        })?;
        if let Some(accounts) = self.running {
            accounts.needs_account.store(true, Ordering::Release);
            accounts.has_certificates.fetch_or(!certificates.is_empty(), Ordering::AcqRel);
        }
        self.changed(name);
        key.map_or(Ok(()), |key| answer(Line::ApiKey(key)))?;
        self.account(self.store.with(|connection| records::find(connection, name))?, answer)
    }

    /// Refuses terms of a new account that have ended. An account that exists may be ended by a day of the past.
    fn check_end(&self, name: &str, terms: &Terms) -> Result<(), Ended> {
        match terms.expires_at {
            Some(end) if end <= self.now => Err(refused(format!(
                "{name:?} would get no tokens: it would end at {}, and that time has passed. Give a later day (UTC), or leave the \
                 end out. No account was made",
                rfc3339(end.0)
            ))),
            _ => Ok(()),
        }
    }

    fn edit(&self, name: &str, edit: impl FnOnce(&mut Record)) -> Result<(), Ended> {
        self.change(name, |transaction, mut record| {
            edit(&mut record);
            check_terms(name, &record.terms)?;
            Ok(records::update(transaction, &record)?)
        })
    }

    fn rotate_key(&self, name: &str, grace_seconds: Option<u64>, answer: Answer<'_>) -> Result<(), Ended> {
        let key = self.change(name, |transaction, Record { id, .. }| {
            let good = self.make_room(transaction, (id, name), grace_seconds == Some(0))?;
            if let Some(grace) = grace_seconds {
                let end = self.now.saturating_add(Duration::from_secs(grace));
                for key in good {
                    records::retire_key(transaction, key.id, end)?;
                }
            }
            self.new_key(transaction, id)
        })?;
        Ok(answer(Line::ApiKey(key))?)
    }

    fn retire_key(&self, name: &str, key: i64) -> Result<(), Ended> {
        self.change(name, |transaction, Record { id, .. }| {
            if !records::keys(transaction, id)?.iter().any(|known| known.id == key) {
                return Err(refused(format!(
                    "{name:?} has no key {key}: `postern issuer account show` lists its keys"
                )));
            }
            Ok(records::retire_key(transaction, key, self.now)?)
        })
    }

    fn add_certificate(&self, name: &str, public_key_sha256: &str, answer: Answer<'_>) -> Result<(), Ended> {
        let key = parse_certificate(public_key_sha256)?;
        let view = self.change(name, |transaction, Record { id, .. }| {
            insert_certificate(transaction, (id, name), &key)?;
            Ok(records::certificates(transaction, id)?.pop())
        })?;
        if let Some(accounts) = self.running {
            accounts.has_certificates.store(true, Ordering::Release);
        }
        view.map_or(Ok(()), |view| Ok(answer(Line::Certificate(view))?))
    }

    fn remove_certificate(&self, name: &str, certificate: i64) -> Result<(), Ended> {
        self.change(name, |transaction, Record { id, .. }| {
            if !records::certificates(transaction, id)?.iter().any(|known| known.id == certificate) {
                return Err(refused(format!(
                    "{name:?} has no certificate {certificate}: `postern issuer account show` lists its certificates"
                )));
            }
            Ok(records::remove_certificate(transaction, certificate)?)
        })
    }

    fn remove(&self, name: &str) -> Result<(), Ended> {
        self.change(name, |transaction, record| Ok(records::remove(transaction, record.id)?))?;
        self.settle(Some(name));
        Ok(())
    }

    /// Changes an account in one transaction, effective from the next request.
    fn change<T>(
        &self,
        name: &str,
        change: impl FnOnce(&Connection, Record) -> Result<T, Ended>,
    ) -> Result<T, Ended> {
        let value = self.store.change(|transaction| {
            let record = records::find(transaction, name)?.ok_or_else(|| missing(name))?;
            change(transaction, record)
        })?;
        self.changed(name);
        Ok(value)
    }

    /// Deletes all but the newest `MOST_RETIRED` retired keys, and returns the valid ones. Refuses if there are `MOST_KEYS`
    /// valid keys, unless the new key `replaces_all`.
    pub(super) fn make_room(
        &self,
        transaction: &Connection,
        (id, name): (i64, &str),
        replaces_all: bool,
    ) -> Result<Vec<KeyView>, Ended> {
        let is_retired = |time: Option<UnixSeconds>| time.is_some_and(|time| time <= self.now);
        let (retired, good): (Vec<_>, Vec<_>) =
            records::keys(transaction, id)?.into_iter().partition(|key| is_retired(key.retires_at));
        if !replaces_all && good.len() >= MOST_KEYS {
            return Err(refused(format!(
                "{name:?} has {MOST_KEYS} keys that are good, the most there may be: retire one first (`postern issuer account \
                 retire-key`), or all of them with `rotate-key --grace 0s`"
            )));
        }
        for key in retired.iter().rev().skip(MOST_RETIRED) {
            records::remove_key(transaction, key.id)?;
        }
        Ok(good)
    }

    fn new_key(&self, transaction: &Connection, account: i64) -> Result<String, Ended> {
        let no_bytes = || Refused::runtime("the system gives no random bytes for a key: try again");
        let key = self.store.secret().make_key().ok_or_else(no_bytes)?;
        let stored = self.store.secret().stored(&crate::accounts::api_key::sha256(key.as_bytes()));
        records::insert_key(transaction, account, &stored, false)?;
        Ok(key)
    }

    /// Makes a committed change effective from the next request.
    fn changed(&self, name: &str) {
        if let Some(accounts) = self.running {
            accounts.active.forget(name);
            accounts.are_unchecked.store(true, Ordering::Release);
        }
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

pub(super) fn missing(name: &str) -> Ended {
    refused(format!("there is no account {name:?}: `postern issuer account list` names them all"))
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

/// Refuses terms with neither a quota nor a tier: without a quota, an account has its tier's.
pub(super) fn check_terms(name: &str, terms: &Terms) -> Result<(), Ended> {
    if terms.quota.is_some() || terms.tier.is_some() {
        return Ok(());
    }
    Err(refused(format!(
        "{name:?} would have neither a quota nor a tier, and so no terms at all: give it a quota, such as 10000/1d, or one of the \
         [[tiers]] of the configuration (--tier)"
    )))
}

/// Adds a certificate to an account that does not have it yet.
pub(super) fn insert_certificate(
    transaction: &Connection,
    (account, name): (i64, &str),
    key: &PublicKeyDigest,
) -> Result<(), Ended> {
    match records::find_by_certificate(transaction, key)? {
        Some(owner) if owner.id == account => return Ok(()),
        Some(owner) => {
            return Err(refused(format!(
                "{:?} is known by this certificate, or by another one of the same key: remove it there first (`postern issuer \
                 account remove-certificate`), or give each account its own key",
                owner.name
            )));
        }
        None => {}
    }
    if records::certificates(transaction, account)?.len() >= MOST_CERTIFICATES {
        return Err(refused(format!(
            "{name:?} has {MOST_CERTIFICATES} certificates, the most there may be: remove one first (`postern issuer account \
             remove-certificate`)"
        )));
    }
    Ok(records::insert_certificate(transaction, account, key)?)
}

pub(super) fn parse_certificate(public_key_sha256: &str) -> Result<PublicKeyDigest, Ended> {
    let mut key = [0; 32];
    hex::decode_to_slice(public_key_sha256, &mut key).map_err(|_| {
        refused("a certificate is given as the SHA-256 of its public key, in 64 hex digits".to_owned())
    })?;
    Ok(PublicKeyDigest(key))
}
