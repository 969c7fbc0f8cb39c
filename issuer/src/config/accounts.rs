//! What the configuration says of accounts: the tiers of their terms, and their usage.

use crate::StartError;
use crate::burst::Burst;
use crate::quota::Quota;
use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Terms that accounts share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Its name: one word of 1 to 64 letters, digits and the characters - _ . and unique.
    pub name: String,
    /// How many tokens each of its accounts gets in each period, such as "10000/1d". Periods are aligned to
    /// 1970-01-01 UTC, so that "1d" ends at midnight UTC. No crash of the issuer gives tokens beyond it; one may cost an account a
    /// fiftieth of it, four tokens at least and 512 at most, beside the tokens that were being requested.
    pub quota: Quota,
    /// How many tokens a second each of its accounts gets, on average, besides the quota. It needs `burst`.
    #[serde(default)]
    pub rate: Option<NonZeroU32>,
    /// How many tokens each of its accounts gets at once, after a pause. It needs `rate`.
    #[serde(default)]
    pub burst: Option<NonZeroU32>,
    /// How many tokens of one of its accounts are signed for one of another account's, from 1 to 100. It counts while both wait; places
    /// in the queue are the same for all.
    #[serde(default = "one_turn")]
    #[schemars(range(max = 100))]
    pub turns: NonZeroU32,
}

fn one_turn() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl Tier {
    /// Its rate and burst, which [`check`](crate::accounts::check_tiers) has found to be there both, or neither.
    pub(crate) fn burst(&self) -> Option<Burst> {
        Some(Burst { tokens_per_second: self.rate?, burst_tokens: self.burst? })
    }
}

/// The usage of accounts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UsageConfig {
    /// How long the usage of past periods is kept, from one day to ten years. Periods shorter than a day are merged into their
    /// day when it is over.
    pub keep_for: ConfigDuration,
    /// Name accounts where usage can be watched: `postern_issuer_account_tokens_total` in the metrics, and a table on the live page.
    /// Whoever reads them then sees within seconds when which account requests tokens, and beside a gateway's metrics may guess
    /// whose a spend is. Without it no time of an account's is finer than its period.
    pub name_accounts: bool,
}

impl Default for UsageConfig {
    fn default() -> Self {
        Self { keep_for: ConfigDuration::days(100), name_accounts: false }
    }
}

impl UsageConfig {
    pub(super) fn check(&self) -> Result<(), StartError> {
        let keep_for = self.keep_for;
        if (ConfigDuration::days(1)..=ConfigDuration::days(3_660)).contains(&keep_for) {
            return Ok(());
        }
        Err(StartError::Config(format!(
            "[usage] keep_for ({keep_for}) must be from one day to ten years: write \"100d\""
        )))
    }
}
