//! What the configuration file says of accounts: the tiers of all of them, and who else has them.

use super::tiers::{Tiers, check_tier_name};
use crate::StartError;
use crate::config::{Config, GroupConfig, Tier};
use crate::share::Share;
use std::collections::HashSet;
use std::path::Path;

/// The most requests of an account that are signed in a row: some 30 ms of one core.
const MOST_TURNS: u32 = 100;

/// What one reading of the configuration file says of accounts.
#[derive(Debug, Default)]
pub(crate) struct Configured {
    pub(super) tiers: Tiers,
    /// Accounts may be kept elsewhere.
    pub(super) has_authorizer: bool,
    /// The issuers that it shares its accounts with.
    pub(super) group: Option<GroupConfig>,
}

impl Configured {
    pub(crate) fn of(config: &Config) -> Self {
        let has_authorizer = config.authorizer.is_some();
        Self { tiers: Tiers::of(&config.tiers), has_authorizer, group: config.group.clone() }
    }

    /// Which part of a quota this issuer gives.
    pub(super) fn share(&self) -> Share {
        self.group.as_ref().map_or(Share::WHOLE, |group| group.share)
    }

    /// The tiers whose quota is some tokens, and none of them this issuer's.
    pub(super) fn without_token(&self) -> Vec<String> {
        let is_without = |tier: &&Tier| tier.quota.tokens() > 0 && self.share().of(tier.quota.tokens()) == 0;
        self.tiers.iter().filter(is_without).map(|tier| format!("[[tiers]] {:?}", tier.name)).collect()
    }

    /// Where the copies are of the issuer whose accounts this one has.
    pub(super) fn follows(&self) -> Option<&Path> {
        self.group.as_ref()?.follow.as_deref()
    }
}

/// Refuses tiers that make no sense.
pub(crate) fn check_tiers(tiers: &[Tier]) -> Result<(), StartError> {
    let mut names = HashSet::new();
    for tier in tiers {
        let name = &tier.name;
        check_tier_name(name).map_err(|sentence| StartError::Config(format!("[[tiers]] {sentence}")))?;
        if !names.insert(name) {
            return Err(StartError::Config(format!(
                "[[tiers]] {name:?} is there twice: give each tier a name of its own"
            )));
        }
        if tier.turns.get() > MOST_TURNS {
            return Err(StartError::Config(format!(
                "[[tiers]] {name:?} has {} turns: others would wait too long, so write 1 to {MOST_TURNS}",
                tier.turns
            )));
        }
        if tier.rate.is_some() != tier.burst.is_some() {
            return Err(StartError::Config(format!(
                "[[tiers]] {name:?} has one of rate and burst, which need each other: write both, such as rate = 5 and burst = \
                 50, or neither"
            )));
        }
    }
    Ok(())
}
