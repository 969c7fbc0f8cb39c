//! How an operator sees and changes accounts: requests, and the lines that answer them, as JSON.
//!
//! A running issuer takes them on a socket in `keys.directory`, which its own user and root alone may use. While none runs, [`ask`]
//! takes the issuer's lock and works on the database itself. Both run the same code (`desk`).

mod backup;
mod certificates;
mod desk;
mod socket;

pub use super::certificates::CertificateView;
use super::records::KeyView;
pub use super::records::Terms;
pub use super::tiers::TierTerm;
pub use super::usage::UsageRow;
use crate::Burst;
use crate::quota::Quota;
pub use backup::backup;
pub(crate) use desk::Desk;
use postern_daemon::exit;
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
pub(crate) use socket::Control;
pub use socket::ask;

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// A new account. Without certificates it gets its first key.
    Add {
        /// Its name.
        name: String,
        /// What it may have.
        terms: Terms,
        /// The SHA-256 of the public keys of its clients' certificates, in hex.
        #[serde(default)]
        certificates: Vec<String>,
    },
    /// One more client's certificate.
    AddCertificate {
        /// The account's name.
        name: String,
        /// The SHA-256 of its public key, in hex.
        public_key_sha256: String,
    },
    /// An end of one certificate, at once.
    RemoveCertificate {
        /// The account's name.
        name: String,
        /// The certificate's number.
        certificate: i64,
    },
    /// Every account.
    List,
    /// One account, with its keys and its usage.
    Show {
        /// Its name.
        name: String,
    },
    /// Whether the account gets tokens.
    SetEnabled {
        /// Its name.
        name: String,
        /// Whether it does.
        enabled: bool,
    },
    /// A new key, and an end of the others.
    RotateKey {
        /// The account's name.
        name: String,
        /// For how long the others stay good; without it they are left as they are.
        grace_seconds: Option<u64>,
    },
    /// An end of one key, at once.
    RetireKey {
        /// The account's name.
        name: String,
        /// The key's number.
        key: i64,
    },
    /// Other terms.
    Change {
        /// The account's name.
        name: String,
        /// Another quota, or that of the tier.
        #[serde(default)]
        quota: Edit<Quota>,
        /// Another rate, or none.
        #[serde(default)]
        burst: Edit<Burst>,
        /// Another tier, or none.
        #[serde(default)]
        tier: Edit<String>,
        /// Another end, or none.
        #[serde(default)]
        expires_at: Edit<UnixSeconds>,
    },
    /// The account's end. Its usage is kept as long as that of others.
    Remove {
        /// Its name.
        name: String,
    },
    /// Takes the accounts of the configuration file into the database.
    Import,
    /// Usage by account and period.
    Usage {
        /// Of this account alone.
        account: Option<String>,
        /// Of periods that end after this moment.
        since: UnixSeconds,
    },
}

/// A change of a value that there need not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit<T> {
    /// As it is.
    #[default]
    Keep,
    /// None from now on.
    Clear,
    /// This from now on.
    Set(T),
}

/// One line of an answer. The last one is `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// An account.
    Account(AccountView),
    /// A new key. It is not kept, and never shown again.
    ApiKey(String),
    /// A client's certificate that was added.
    Certificate(CertificateView),
    /// Usage in one period.
    Usage(UsageRow),
    /// How many accounts were imported, and how many the database already had.
    Imported {
        /// New ones.
        imported: u64,
        /// Those that were there.
        known: u64,
    },
    /// It is done, and on the disk.
    Done,
    /// It is not done.
    Failed(Refused),
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{sentence}")]
pub struct Refused {
    /// For a person.
    pub sentence: String,
    /// What a program should exit with.
    pub code: u8,
}

/// An account as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// Its name.
    pub name: String,
    /// Where it is kept.
    pub kept_in: KeptIn,
    /// Whether it gets tokens.
    pub enabled: bool,
    /// What it may have, by itself or by its tier; nothing of an account that was removed. Without a quota the configuration
    /// does not have its tier.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Which of its terms are its tier's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of_tier: Vec<TierTerm>,
    /// Its keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyView>,
    /// The certificates of its clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<CertificateView>,
    /// Its usage, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<UsageRow>,
}

/// Where an account is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptIn {
    /// In the database.
    Database,
    /// In the configuration file.
    Configuration,
    /// Nowhere any more: its usage is left.
    Removed,
    /// Where the authorizer knows it, or nowhere any more: here is its usage.
    Elsewhere,
}

const MOST_NAME: usize = 128;

/// Names are shown on terminals and in spreadsheets, which both take some first characters for commands.
pub(crate) fn is_account_name(name: &str) -> bool {
    name.chars().count() <= MOST_NAME
        && name.chars().next().is_some_and(char::is_alphanumeric)
        && !name.chars().any(char::is_control)
}

impl AccountView {
    fn bare(name: String, kept_in: KeptIn, enabled: bool) -> Self {
        let (of_tier, keys) = (Vec::new(), Vec::new());
        Self {
            name,
            kept_in,
            enabled,
            terms: None,
            of_tier,
            keys,
            certificates: Vec::new(),
            usage: Vec::new(),
        }
    }
}

impl Refused {
    pub(crate) fn runtime(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: exit::RUNTIME }
    }
}

impl From<super::AccountsError> for Refused {
    fn from(error: super::AccountsError) -> Self {
        Self::runtime(error.to_string())
    }
}
