//! What the configuration file says of accounts: a handful of them, beside those of the database, and the tiers of all.

use super::api_key::KeyDigest;
use super::tiers::{Tiers, check_tier_name};
use crate::StartError;
use crate::config::{Account, Config, GroupConfig, Tier, invalid};
use crate::quota::Quota;
use crate::share::Share;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The most requests of an account that are signed in a row: some 30 ms of one core.
const MOST_TURNS: u32 = 100;

/// The accounts and tiers of one reading of the configuration file.
#[derive(Debug, Default)]
pub(crate) struct Configured {
    pub(super) accounts: Vec<Account>,
    pub(super) tiers: Tiers,
    /// Accounts may be kept elsewhere.
    pub(super) has_authorizer: bool,
    /// The issuers that it shares its accounts with.
    pub(super) group: Option<GroupConfig>,
    pub(super) by_key: HashMap<KeyDigest, usize>,
}

impl Configured {
    pub(crate) fn of(config: &Config) -> Self {
        let has_authorizer = config.authorizer.is_some();
        Self { has_authorizer, group: config.group.clone(), ..Self::new(&config.accounts, &config.tiers) }
    }

    pub(super) fn new(accounts: &[Account], tiers: &[Tier]) -> Self {
        let by_key = accounts.iter().enumerate().map(|(place, account)| (account.key_sha256.0, place));
        Self {
            accounts: accounts.to_vec(),
            tiers: Tiers::of(tiers),
            has_authorizer: false,
            group: None,
            by_key: by_key.collect(),
        }
    }

    /// Which part of a quota this issuer gives.
    pub(super) fn share(&self) -> Share {
        self.group.as_ref().map_or(Share::WHOLE, |group| group.share)
    }

    /// The places of the file whose quota is some tokens, and none of them this issuer's. The log has no names of accounts.
    pub(super) fn without_token(&self) -> Vec<String> {
        let is_without = |quota: Quota| quota.tokens() > 0 && self.share().of(quota.tokens()) == 0;
        let accounts = self.accounts.iter().filter(|account| account.quota.is_some_and(is_without)).count();
        let accounts = (accounts > 0).then(|| format!("{accounts} of [[accounts]]"));
        let tiers = self.tiers.iter().filter(|tier| is_without(tier.quota));
        accounts.into_iter().chain(tiers.map(|tier| format!("[[tiers]] {:?}", tier.name))).collect()
    }

    /// Where the copies are of the issuer whose accounts this one has.
    pub(super) fn follows(&self) -> Option<&Path> {
        self.group.as_ref()?.follow.as_deref()
    }

    pub(super) fn with_key(&self, digest: &KeyDigest) -> Option<&Account> {
        self.by_key.get(digest).and_then(|place| self.accounts.get(*place))
    }

    pub(super) fn with_name(&self, name: &str) -> Option<&Account> {
        self.accounts.iter().find(|account| account.name == name)
    }
}

/// Refuses two accounts of one name or with one key, accounts without terms, and tiers that make no sense.
pub(crate) fn check(config: &Config) -> Result<(), StartError> {
    check_tiers(&config.tiers)?;
    let tiers = Tiers::of(&config.tiers);
    let (mut keys, mut names) = (HashSet::new(), HashSet::new());
    for Account { name, key_sha256, quota, tier } in &config.accounts {
        if !keys.insert(key_sha256) {
            return Err(invalid(format!(
                "[[accounts]] {name:?} has the same key_sha256 as another account: give each a key of its own"
            )));
        }
        if !names.insert(name.as_str()) {
            return Err(invalid(format!(
                "[[accounts]] {name:?} is there twice: give each account a name of its own"
            )));
        }
        match tier {
            Some(tier) if !tiers.has(tier) => {
                return Err(invalid(format!("[[accounts]] {name:?}: {}", tiers.unknown(tier))));
            }
            None if quota.is_none() => {
                return Err(invalid(format!(
                    "[[accounts]] {name:?} has neither a quota nor a tier: write quota = \"10000/1d\", or the name of one of \
                     [[tiers]] as its tier"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_tiers(tiers: &[Tier]) -> Result<(), StartError> {
    let mut names = HashSet::new();
    for tier in tiers {
        let name = &tier.name;
        check_tier_name(name).map_err(|sentence| invalid(format!("[[tiers]] {sentence}")))?;
        if !names.insert(name) {
            return Err(invalid(format!(
                "[[tiers]] {name:?} is there twice: give each tier a name of its own"
            )));
        }
        if tier.turns.get() > MOST_TURNS {
            return Err(invalid(format!(
                "[[tiers]] {name:?} has {} turns: others would wait too long, so write 1 to {MOST_TURNS}",
                tier.turns
            )));
        }
        if tier.rate.is_some() != tier.burst.is_some() {
            return Err(invalid(format!(
                "[[tiers]] {name:?} has one of rate and burst, which need each other: write both, such as rate = 5 and burst = \
                 50, or neither"
            )));
        }
    }
    Ok(())
}
