//! How an operator sees and changes accounts: the requests, and the views that answer them. `desk` carries changes out, `apply`
//! those that a file declares, and `views` has what is seen.

mod apply;
mod backup;
mod certificates;
mod desk;
mod views;

pub use super::certificates::CertificateView;
use super::records::KeyView;
pub use super::records::Terms;
use super::store::Store;
pub use super::tiers::TierTerm;
pub use super::usage::UsageRow;
use super::{Accounts, AccountsError, Configured};
use crate::Burst;
use crate::Config;
pub(crate) use crate::control::{Line, Refused};
use crate::quota::Quota;
use crate::share::{Share, Shares};
pub use apply::{AccountChange, AccountsFile, DeclaredAccount, KeyHash};
pub use backup::backup;
use desk::Answer;
pub(crate) use desk::Desk;
use postern_daemon::files::DataDir;
use postern_daemon::http::is_invisible;
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// What an operator asks about accounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountRequest {
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
    /// Makes the accounts what a file declares.
    Apply {
        /// What it declares.
        accounts: Vec<DeclaredAccount>,
        /// Remove those that an earlier file declared, and this one does not.
        prune: bool,
    },
    /// Usage by account and period.
    Usage {
        /// Of this account alone.
        account: Option<String>,
        /// Of periods that end after this moment.
        since: UnixSeconds,
    },
}

impl AccountRequest {
    /// Whether it changes accounts, which a follower does not.
    const fn is_change(&self) -> bool {
        !matches!(self, Self::List | Self::Show { .. } | Self::Usage { .. })
    }
}

/// The refusal of a change at an issuer that follows another one.
pub(crate) fn not_here(copies: &Path) -> Refused {
    Refused::runtime(format!(
        "this issuer follows the first one of its group and has what that one has: run this command at the first issuer, whose files are \
         copied to {} ([group] follow). It counts here once the next copy has come",
        copies.display()
    ))
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
    /// What this issuer gives of it, where it is in a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub here: Option<Here>,
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

/// What an issuer of a group gives of an account's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Here {
    /// Its share, in the present period.
    pub share: Share,
    /// That share of the quota, in whole tokens.
    pub quota: Quota,
    /// The same in the next period, if that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Quota>,
}

impl Here {
    fn of(shares: &Shares, quota: Quota, now: UnixSeconds) -> Self {
        let share = shares.of_period(quota.window(now));
        let next = quota.shared(shares.configured());
        let present = quota.shared(share);
        Self { share, quota: present, next: (next != present).then_some(next) }
    }
}

/// Where an account is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptIn {
    /// In the database.
    Database,
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
        && !name.chars().any(is_invisible)
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
            here: None,
            keys,
            certificates: Vec::new(),
            usage: Vec::new(),
        }
    }
}

impl From<AccountsError> for Refused {
    fn from(error: AccountsError) -> Self {
        Self::runtime(error.to_string())
    }
}

/// Answers on the files of an issuer that does not run; the lock says so.
pub(crate) fn answer(
    lock: &DataDir,
    config: &Config,
    request: AccountRequest,
    answer: Answer<'_>,
) -> Result<io::Result<()>, AccountsError> {
    let (store, configured) = (Store::open(lock.path())?, Configured::of(config));
    let desk = Desk { store: &store, configured: &configured, running: None, now: UnixSeconds::now() };
    Ok(desk.answer(request, answer))
}

impl Accounts {
    /// Answers while the issuer runs.
    pub(crate) fn answer(&self, request: AccountRequest, answer: Answer<'_>) -> io::Result<()> {
        let configured = self.configured.load_full();
        let now = UnixSeconds::now();
        Desk { store: &self.store, configured: &configured, running: Some(self), now }.answer(request, answer)
    }
}
