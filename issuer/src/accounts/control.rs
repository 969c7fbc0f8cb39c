//! Operators' view of accounts: requests, a file that declares accounts, and the views in answers. `desk` executes requests,
//! `apply` a file's declarations, and `views` shows accounts.

mod apply;
mod backup;
pub(super) mod desk;
mod views;

use super::api_key::sha256;
pub use super::configured::TierTerm;
use super::records::KeyView;
pub use super::records::{CertificateView, Terms};
pub use super::usage::UsageRow;
pub(crate) use crate::control::{Line, Refused};
use crate::quota::{Burst, Quota};
pub use backup::backup;
pub(crate) use desk::{answer, open_store};
use postern_config::text_value;
use postern_daemon::http::is_invisible;
use postern_token::UnixSeconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// An operator's request about accounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountRequest {
    /// A new account, with a first key unless it has certificates.
    Add {
        /// Account name.
        name: String,
        /// Terms of the account.
        terms: Terms,
        /// SHA-256 of the public keys of the account's client certificates, in hex.
        #[serde(default)]
        certificates: Vec<String>,
    },
    /// Another client certificate for an account.
    AddCertificate {
        /// Account name.
        name: String,
        /// SHA-256 of the certificate's public key, in hex.
        public_key_sha256: String,
    },
    /// Immediate removal of one certificate.
    RemoveCertificate {
        /// Account name.
        name: String,
        /// Identifier of the certificate.
        certificate: i64,
    },
    /// All accounts.
    List,
    /// One account, with its keys and usage.
    Show {
        /// Account name.
        name: String,
    },
    /// Enabling or disabling an account.
    SetEnabled {
        /// Account name.
        name: String,
        /// `true` if the account gets tokens.
        enabled: bool,
    },
    /// A new key, and optionally the retirement of the others.
    RotateKey {
        /// Account name.
        name: String,
        /// Seconds until the other keys retire; `None` leaves them as they are.
        grace_seconds: Option<u64>,
    },
    /// Immediate retirement of one key.
    RetireKey {
        /// Account name.
        name: String,
        /// Identifier of the key.
        key: i64,
    },
    /// Changed terms of an account.
    Change {
        /// Account name.
        name: String,
        /// Change of the quota; without a quota, that of the tier applies.
        #[serde(default)]
        quota: Edit<Quota>,
        /// Change of the rate and burst.
        #[serde(default)]
        burst: Edit<Burst>,
        /// Change of the tier.
        #[serde(default)]
        tier: Edit<String>,
        /// Change of the expiry.
        #[serde(default)]
        expires_at: Edit<UnixSeconds>,
    },
    /// Removal of an account. Its usage is kept as long as that of others.
    Remove {
        /// Account name.
        name: String,
    },
    /// Adding and changing the accounts that a file declares.
    Apply {
        /// Declared accounts.
        accounts: Vec<DeclaredAccount>,
        /// `true` to remove accounts that an earlier file declared and this one does not.
        prune: bool,
    },
    /// Usage by account and period.
    Usage {
        /// Account name; `None` for all accounts.
        account: Option<String>,
        /// Only periods that end after this time.
        since: UnixSeconds,
    },
}

/// A change of an optional value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit<T> {
    /// The value stays.
    #[default]
    Keep,
    /// The value is removed.
    Clear,
    /// A new value.
    Set(T),
}

/// A file of accounts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountsFile {
    /// The accounts.
    #[serde(default)]
    pub accounts: Vec<DeclaredAccount>,
}

/// An account as a file declares it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeclaredAccount {
    /// A name for the operator, unique. It is never shown to clients.
    pub name: String,
    /// The SHA-256 of the account's API key. Keys made by `postern issuer account` stay valid.
    #[serde(default)]
    pub key_sha256: Option<KeyHash>,
    /// Tokens that the account gets in each period. Without it the account has the terms of its tier.
    #[serde(default)]
    pub quota: Option<Quota>,
    /// Tokens a second, on average, besides the quota. It needs `burst`.
    #[serde(default)]
    pub rate: Option<NonZeroU32>,
    /// Tokens at once, after a pause. It needs `rate`.
    #[serde(default)]
    pub burst: Option<NonZeroU32>,
    /// One of `[[tiers]]`, by its name.
    #[serde(default)]
    pub tier: Option<String>,
    /// The first day (UTC) without tokens, such as "2027-01-31".
    #[serde(default)]
    pub expires: Option<String>,
    /// The SHA-256 of the public keys of its clients' certificates, in hex. Without it those it has stay.
    #[serde(default)]
    pub certificates: Option<Vec<String>>,
}

/// Effect of a declaration on an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountChange {
    /// The account is new.
    Added,
    /// These values of the account changed, by their names in the file.
    Changed(Vec<String>),
    /// The account is no longer declared, and was removed.
    Removed,
}

/// SHA-256 of an API key: 64 hex digits in the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Returns `true` for the hash of an empty key, and for one repeated byte.
    pub(super) fn is_of_no_key(self) -> bool {
        self.0.iter().all(|byte| *byte == self.0[0]) || self.0 == sha256(b"")
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(redacted)")
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for KeyHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut hash = [0; 32];
        hex::decode_to_slice(text, &mut hash)
            .map_err(|_| "it is not 64 hex digits; never write the API key itself here")?;
        Ok(Self(hash))
    }
}

// "secret" keeps a refused value out of the error: it may be the API key itself, written in the wrong place.
text_value!(KeyHash, "64 hex digits, the SHA-256 of the API key", "format": "secret");

/// An account as shown to operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// Account name.
    pub name: String,
    /// Place where the account is kept.
    pub kept_in: KeptIn,
    /// `true` if the account gets tokens.
    pub enabled: bool,
    /// Effective terms, its own or its tier's; `None` if the account is not in the database. Without a quota, the configuration
    /// lacks its tier.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Terms that come from the tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of_tier: Vec<TierTerm>,
    /// API keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyView>,
    /// Client certificates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<CertificateView>,
    /// Usage, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<UsageRow>,
}

/// Place where an account is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptIn {
    /// The issuer's database.
    Database,
    /// Nowhere any more: only the usage is left.
    Removed,
    /// The authorizer, or nowhere any more: only the usage is known here.
    Elsewhere,
}

const MOST_NAME: usize = 128;

/// Returns `true` for a valid account name. Terminals and spreadsheets show names, and both interpret some first characters as
/// commands.
pub(crate) fn is_account_name(name: &str) -> bool {
    name.chars().count() <= MOST_NAME
        && name.chars().next().is_some_and(char::is_alphanumeric)
        && !name.chars().any(is_invisible)
}

impl AccountView {
    fn bare(name: String, kept_in: KeptIn, enabled: bool) -> Self {
        let (of_tier, keys, certificates, usage) = Default::default();
        Self { name, kept_in, enabled, terms: None, of_tier, keys, certificates, usage }
    }
}
