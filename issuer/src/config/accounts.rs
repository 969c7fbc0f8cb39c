//! The accounts of the configuration: who may request tokens, and on which terms.

use super::invalid;
use crate::StartError;
use crate::accounts::control::Terms;
use crate::burst::Burst;
use crate::quota::Quota;
use postern_config::ConfigDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;

/// An account that may request tokens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// A name for the operator, unique. It is never shown to clients.
    pub name: String,
    /// The SHA-256 of the account's API key: `printf %s "$KEY" | sha256sum`. Make keys of random bytes
    /// (`openssl rand -hex 32`): the hash of a word or a name can be guessed.
    pub key_sha256: KeyHash,
    /// How many tokens the account gets in each period. Periods are aligned to 1970-01-01 UTC, so that "1d" ends at
    /// midnight UTC. No crash of the issuer gives tokens beyond it; one may cost the account a fiftieth of it, four tokens at
    /// least and 512 at most, beside the tokens that were being requested.
    /// Without it the account has the terms of its tier.
    #[serde(default)]
    pub quota: Option<Quota>,
    /// One of `[[tiers]]`, by its name.
    #[serde(default)]
    pub tier: Option<String>,
}

impl Account {
    /// What the file says that it has.
    pub(crate) fn terms(&self) -> Terms {
        Terms { quota: self.quota, burst: None, tier: self.tier.clone(), expires_at: None }
    }
}

/// Terms that accounts share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Its name: one word of 1 to 64 letters, digits and the characters - _ . and unique.
    pub name: String,
    /// How many tokens each of its accounts gets in each period, as in `[[accounts]]`.
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
    /// Its rate and burst, which [`check`](crate::accounts::check) has found to be there both, or neither.
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
        Err(invalid(format!(
            "[usage] keep_for ({keep_for}) must be from one day to ten years: write \"100d\""
        )))
    }
}

/// The SHA-256 of an API key: 64 hex digits in the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(redacted)")
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(self.0))
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let mut hash = [0; 32];
        hex::decode_to_slice(text.as_bytes(), &mut hash)
            .map_err(|_| de::Error::custom("it is not 64 hex digits; never write the API key itself here"))?;
        Ok(Self(hash))
    }
}

impl JsonSchema for KeyHash {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "KeyHash".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // "secret" keeps a value that was refused out of the error: it may be the API key, written in the wrong place.
        json_schema!({
            "type": "string",
            "format": "secret",
            "x-accepted": "64 hex digits, the SHA-256 of the API key",
        })
    }
}
