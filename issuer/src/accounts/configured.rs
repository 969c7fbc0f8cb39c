//! Account settings in the configuration file: authorizer, usage, and tiers, whose terms many accounts share.
//!
//! The database has only the name of an account's tier, so a reload changes the quota of all accounts of a tier, ten or a
//! million.

use super::records::Terms;
use crate::config::{Config, Tier, UsageConfig};
use crate::quota::{Burst, Quota};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Account settings of one reading of the configuration file.
#[derive(Debug, Default)]
pub(crate) struct Configured {
    pub(super) tiers: Tiers,
    /// `true` if an authorizer may keep further accounts.
    pub(super) has_authorizer: bool,
    pub(super) usage: UsageConfig,
}

impl Configured {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            tiers: Tiers::of(&config.tiers),
            has_authorizer: config.authorizer.is_some(),
            usage: config.usage.clone(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tiers(BTreeMap<String, Tier>);

/// Effective terms of an account, its own and its tier's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) quota: Quota,
    pub(crate) burst: Option<Burst>,
    pub(crate) turns: NonZeroU32,
    /// Terms that come from the tier.
    pub(crate) of_tier: Vec<TierTerm>,
}

/// A term that an account has from its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierTerm {
    /// Tokens per period.
    Quota,
    /// Rate and burst.
    Burst,
}

impl Tiers {
    pub(crate) fn of(tiers: &[Tier]) -> Self {
        Self(tiers.iter().map(|tier| (tier.name.clone(), tier.clone())).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the effective terms of an account; `None` if its tier is not in the configuration.
    ///
    /// An account that has its own quota gets nothing from its tier: a rate for the tier's quota may be less than the account was
    /// promised.
    pub(crate) fn allowance(&self, own: &Terms) -> Option<Allowance> {
        if let Some(quota) = own.quota {
            return Some(Allowance { quota, burst: own.burst, turns: NonZeroU32::MIN, of_tier: Vec::new() });
        }
        let tier = self.0.get(own.tier.as_deref()?)?;
        let burst = own.burst.or(Burst::of(tier.rate, tier.burst).flatten());
        let has_burst = own.burst.is_none() && burst.is_some();
        let of_tier = [TierTerm::Quota].into_iter().chain(has_burst.then_some(TierTerm::Burst)).collect();
        Some(Allowance { quota: tier.quota, burst, turns: tier.turns, of_tier })
    }

    /// Returns the error message about an unknown tier.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let names: Vec<_> = self.0.keys().map(|name| format!("{name:?}")).collect();
        if names.is_empty() {
            return format!(
                "there is no tier {name:?}: the configuration in force has no [[tiers]]; add it there, with a name and a quota, and \
                 reload a running issuer (SIGHUP)"
            );
        }
        format!(
            "there is no tier {name:?}: choose one of {}, or add it to [[tiers]] in the configuration, and reload a running issuer (SIGHUP)",
            names.join(", ")
        )
    }
}
