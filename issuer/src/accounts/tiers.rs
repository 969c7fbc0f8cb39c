//! Tiers: terms of the configuration file that many accounts share.
//!
//! The database has only the name of an account's tier, so another quota of a tier counts for all of its accounts with the reload,
//! whether there are ten or a million of them.

use super::records::Terms;
use crate::burst::Burst;
use crate::config::Tier;
use crate::quota::Quota;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

const MOST_NAME: usize = 64;

/// The tiers of the configuration, by name.
#[derive(Debug, Default)]
pub(crate) struct Tiers(BTreeMap<String, Tier>);

/// What an account may have at this moment: terms of its own, and those of its tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) quota: Quota,
    pub(crate) burst: Option<Burst>,
    pub(crate) turns: NonZeroU32,
    /// Which of them are the tier's.
    pub(crate) of_tier: Vec<TierTerm>,
}

/// A term that an account has by its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierTerm {
    /// Tokens in each period.
    Quota,
    /// Tokens in a short time.
    Burst,
}

impl Tiers {
    pub(crate) fn of(tiers: &[Tier]) -> Self {
        Self(tiers.iter().map(|tier| (tier.name.clone(), tier.clone())).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tier> {
        self.0.values()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The terms of an account; nothing where they are those of a tier that there is not.
    ///
    /// An account with a quota of its own has nothing of its tier: a rate that was meant for the tier's quota may be less than
    /// the account was promised.
    pub(crate) fn allowance(&self, own: &Terms) -> Option<Allowance> {
        if let Some(quota) = own.quota {
            return Some(Allowance { quota, burst: own.burst, turns: NonZeroU32::MIN, of_tier: Vec::new() });
        }
        let tier = self.0.get(own.tier.as_deref()?)?;
        let burst = own.burst.or(tier.burst());
        let has_burst = own.burst.is_none() && burst.is_some();
        let of_tier = [TierTerm::Quota].into_iter().chain(has_burst.then_some(TierTerm::Burst)).collect();
        Some(Allowance { quota: tier.quota, burst, turns: tier.turns, of_tier })
    }

    /// What to tell of a tier that there is not.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let names: Vec<_> = self.0.keys().map(|name| format!("{name:?}")).collect();
        if names.is_empty() {
            return format!(
                "there is no tier {name:?}: the configuration has no [[tiers]]; add it there, with a name and a quota"
            );
        }
        format!(
            "there is no tier {name:?}: choose one of {}, or add it to [[tiers]] in the configuration",
            names.join(", ")
        )
    }
}

/// Refuses what is no name of a tier, with a sentence.
pub(crate) fn check_tier_name(name: &str) -> Result<(), String> {
    let is_good = (1..=MOST_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let why = || {
        format!(
            "{name:?} is no name for a tier: it is one word of 1 to {MOST_NAME} letters, digits and the characters - _ ."
        )
    };
    is_good.then_some(()).ok_or_else(why)
}
