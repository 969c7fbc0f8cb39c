//! The accounts of the configuration file: a handful, beside those of the database.

use super::api_key::KeyDigest;
use crate::StartError;
use crate::config::{Account, invalid};
use std::collections::{HashMap, HashSet};

/// The accounts of one reading of the configuration file.
#[derive(Debug)]
pub(super) struct Configured {
    pub(super) accounts: Vec<Account>,
    by_key: HashMap<KeyDigest, usize>,
}

impl Configured {
    pub(super) fn of(accounts: &[Account]) -> Self {
        let by_key = accounts.iter().enumerate().map(|(place, account)| (account.key_sha256.0, place));
        Self { accounts: accounts.to_vec(), by_key: by_key.collect() }
    }

    pub(super) fn with_key(&self, digest: &KeyDigest) -> Option<Account> {
        self.by_key.get(digest).and_then(|place| self.accounts.get(*place)).cloned()
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
