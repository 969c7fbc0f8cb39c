//! Accounts: who may request tokens, and how many each has received. API keys are kept as hashes; the counts are in a
//! file, which `ledger` keeps ahead of the tokens that are signed.

mod ledger;

use crate::StartError;
use crate::config::{Account, KeyHash, invalid};
use crate::health::Health;
use crate::quota::{Charge, Meter, Spent, Usage, Writing};
use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use ledger::{Ledger, WRITE_EVERY};
use postern_token::UnixSeconds;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use ledger::{FILE_NAME, inspect};

/// The accounts of an issuer.
#[derive(Debug)]
pub(crate) struct Accounts {
    known: ArcSwap<Known>,
    ledger: Ledger,
}

/// The accounts of one reading of the configuration.
#[derive(Debug)]
struct Known {
    meters: HashMap<KeyHash, Arc<Meter>>,
    /// Present accounts, and removed ones while their period lasts, so that an account that returns keeps its usage.
    names: BTreeMap<String, Named>,
}

#[derive(Clone, Debug)]
struct Named {
    meter: Arc<Meter>,
    is_listed: bool,
}

/// Who sends a request.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Anyone: the issuer has no accounts.
    Anyone,
    /// One of the accounts.
    Account(Arc<Meter>),
}

/// Why an account gets no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoToken {
    /// Its quota is used up.
    Spent(Spent),
    /// It cannot be written down that the quota is used.
    Unrecorded,
}

/// Why an API key was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAccount {
    /// There is none, or it is not `Authorization: Bearer KEY`.
    Missing,
    /// It belongs to no account.
    Unknown,
}

impl Accounts {
    /// The accounts of the configuration, with their earlier usage from the file at `path`.
    pub(crate) fn open(accounts: &[Account], path: PathBuf) -> Result<Self, StartError> {
        check(accounts)?;
        let (ledger, usages) = Ledger::open(path)?;
        let before = usages.into_iter().map(|(name, usage)| (name, Named::away(usage)));
        Ok(Self { known: ArcSwap::from_pointee(Known::of(accounts, before)), ledger })
    }

    /// Takes the accounts of another reading of the configuration, which [`check`] has let pass. An account of the same
    /// name has used what it had used, also when it was away for a while.
    pub(crate) fn replace(&self, accounts: &[Account]) {
        let before = self.known.load().lasting(UnixSeconds::now());
        self.known.store(Arc::new(Known::of(accounts, before)));
    }

    /// Whether there is no account, so that anyone who reaches the issuer gets tokens.
    pub(crate) fn is_open(&self) -> bool {
        self.known.load().meters.is_empty()
    }

    /// Finds the account of a request.
    ///
    /// The key is hashed and the hash looked up. The time that takes may depend on the hash, which does not help an
    /// attacker find a key that has it; it does not depend on how much of a key was right.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<Caller, NoAccount> {
        let known = self.known.load();
        if known.meters.is_empty() {
            return Ok(Caller::Anyone);
        }
        let hash = KeyHash(sha256(api_key(headers).ok_or(NoAccount::Missing)?));
        known.meters.get(&hash).cloned().map(Caller::Account).ok_or(NoAccount::Unknown)
    }

    /// Counts one token against the caller's quota, once the file allows for it. Dropped early, it counts nothing.
    pub(crate) async fn charge(&self, caller: &Caller, now: UnixSeconds) -> Result<Charge, NoToken> {
        match caller {
            Caller::Anyone => Ok(Charge::FREE),
            Caller::Account(meter) => self.ledger.charge(meter, now).await,
        }
    }

    /// Writes the exact counts, as the issuer stops.
    pub(crate) async fn save(self: &Arc<Self>, health: &Health) {
        self.write(Writing::Exact, health).await;
    }

    /// Writes reservations when they are needed, and the rest periodically. Never ends; cancel safe.
    pub(crate) async fn keep_saving(self: Arc<Self>, health: &Health) {
        let mut upkeep = interval(WRITE_EVERY);
        upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let writing = self.ledger.due(&mut upkeep).await;
            self.write(writing, health).await;
        }
    }

    async fn write(self: &Arc<Self>, writing: Writing, health: &Health) {
        let accounts = self.clone();
        let write = move || accounts.ledger.write(&|| accounts.meters(), writing);
        // An error of the join means that the runtime is shutting down.
        if let Ok(written) = tokio::task::spawn_blocking(write).await {
            self.ledger.report(written, health);
        }
    }

    fn meters(&self) -> Vec<(String, Arc<Meter>)> {
        let lasting = self.known.load().lasting(UnixSeconds::now());
        lasting.into_iter().map(|(name, named)| (name, named.meter)).collect()
    }
}

impl Known {
    fn of(accounts: &[Account], before: impl IntoIterator<Item = (String, Named)>) -> Self {
        let away = |(name, named)| (name, Named { is_listed: false, ..named });
        let mut names: BTreeMap<String, Named> = before.into_iter().map(away).collect();
        let mut meters = HashMap::new();
        for account in accounts {
            let named = names.entry(account.name.clone()).or_insert_with(|| Named::away(Usage::default()));
            named.is_listed = true;
            named.meter.set_quota(account.quota);
            meters.insert(account.key_sha256, named.meter.clone());
        }
        Self { meters, names }
    }

    /// The accounts whose count matters.
    fn lasting(&self, now: UnixSeconds) -> Vec<(String, Named)> {
        let counts = |named: &Named| named.is_listed || named.meter.usage().lasts(now);
        let lasting = self.names.iter().filter(|(_, named)| counts(named));
        lasting.map(|(name, named)| (name.clone(), named.clone())).collect()
    }
}

impl Named {
    fn away(usage: Usage) -> Self {
        Self { meter: Arc::new(Meter::unlisted(usage)), is_listed: false }
    }
}

/// Refuses two accounts of one name, or with one key.
pub(crate) fn check(accounts: &[Account]) -> Result<(), StartError> {
    let (mut keys, mut names) = (HashSet::new(), HashSet::new());
    for account in accounts {
        if !keys.insert(account.key_sha256) {
            return Err(invalid(format!(
                "[[accounts]] {:?} has the same key_sha256 as another account: give each a key of its own",
                account.name
            )));
        }
        if !names.insert(account.name.as_str()) {
            return Err(invalid(format!(
                "[[accounts]] {:?} is there twice: give each account a name of its own",
                account.name
            )));
        }
    }
    Ok(())
}

impl Caller {
    /// Distinguishes callers from each other.
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Anyone => 0,
            Self::Account(meter) => meter.number(),
        }
    }
}

/// The key of `Authorization: Bearer KEY`; nothing when there is no such field, or several.
fn api_key(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?.as_bytes(), values.next()) else { return None };
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !key.is_empty()).then_some(key)
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref()); // SHA-256 always gives 32 bytes
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::NoCharge;
    use http::HeaderValue;
    use std::os::unix::fs::PermissionsExt;

    fn account(name: &str, key: &str, quota: &str) -> Account {
        Account {
            name: name.to_owned(),
            key_sha256: KeyHash(sha256(key.as_bytes())),
            quota: quota.parse().unwrap(),
        }
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap()));
        values.collect()
    }

    #[test]
    fn only_one_bearer_field_with_a_known_key_is_an_account() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let accounts = Accounts::open(&[account("one", "k1", "1/1d")], path).unwrap();
        let refusal = |values: &[&str]| accounts.authorize(&headers(values)).err();
        assert_eq!(refusal(&["Bearer k1"]), None);
        assert_eq!(refusal(&["bearer  k1 "]), None);
        for missing in
            [&[][..], &["Bearer"], &["Bearer "], &["Basic k1"], &["k1"], &["Bearer k1", "Bearer k1"]]
        {
            assert_eq!(refusal(missing), Some(NoAccount::Missing), "{missing:?}");
        }
        for unknown in ["Bearer k", "Bearer k11", "Bearer K1", "Bearer k1, Bearer k1"] {
            assert_eq!(refusal(&[unknown]), Some(NoAccount::Unknown), "{unknown}");
        }
    }

    /// Counts a token of the account with this key, with a file that is written whenever one has to be.
    fn charge(accounts: &Accounts, key: &str, now: UnixSeconds) -> Option<bool> {
        let Ok(Caller::Account(meter)) = accounts.authorize(&headers(&[&format!("Bearer {key}")])) else {
            return None;
        };
        loop {
            match meter.charge(now).map(Charge::keep) {
                Err(NoCharge::Unreserved) => {
                    let _waiting = meter.wait();
                    write(accounts, Writing::Reserve);
                }
                charged => return Some(charged.is_ok()),
            }
        }
    }

    fn write(accounts: &Accounts, writing: Writing) {
        accounts.ledger.write(&|| accounts.meters(), writing).unwrap();
    }

    #[test]
    fn counts_survive_in_a_private_file_and_a_damaged_one_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let configured = [account("one", "k1", "2/1d"), account("two", "k2", "1/1h")];
        let now = UnixSeconds::now();
        let first = Accounts::open(&configured, path.clone()).unwrap();
        assert_eq!(charge(&first, "k1", now), Some(true));
        write(&first, Writing::Exact);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        let second = Accounts::open(&configured, path.clone()).unwrap();
        assert_eq!(charge(&second, "k1", now), Some(true));
        assert_eq!(charge(&second, "k1", now), Some(false));

        std::fs::write(&path, b"").unwrap();
        let error = Accounts::open(&configured, path).unwrap_err().to_string();
        assert!(error.contains("usage.json") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn accounts_that_keep_their_name_keep_their_count_when_they_are_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(
            &[account("one", "k1", "2/1d"), account("two", "k2", "2/1d")],
            directory.path().join(FILE_NAME),
        )
        .unwrap();
        let charge = |key: &str| charge(&accounts, key, UnixSeconds::now());
        assert_eq!((charge("k1"), charge("k1"), charge("k2")), (Some(true), Some(true), Some(true)));
        accounts.replace(&[account("one", "new key", "3/1d"), account("three", "k3", "1/1d")]);
        assert_eq!((charge("k1"), charge("k2")), (None, None), "a key that is not listed any more");
        assert_eq!(
            (charge("new key"), charge("new key")),
            (Some(true), Some(false)),
            "two of three were used"
        );
        assert_eq!((charge("k3"), charge("k3")), (Some(true), Some(false)));
        assert!(!accounts.is_open());
        accounts.replace(&[account("one", "k1", "3/1d"), account("two", "k2", "2/1d")]);
        assert_eq!(
            (charge("k2"), charge("k2")),
            (Some(true), Some(false)),
            "it was away, and had used one of two"
        );
        accounts.replace(&[]);
        assert!(accounts.is_open());
    }

    #[test]
    fn names_and_keys_are_each_of_one_account() {
        let path = PathBuf::from("/nonexistent/usage.json");
        for twin in [account("one", "k2", "1/1d"), account("two", "k1", "1/1d")] {
            let error = Accounts::open(&[account("one", "k1", "1/1d"), twin], path.clone()).unwrap_err();
            assert!(matches!(error, StartError::Config(_)), "{error}");
        }
    }
}
