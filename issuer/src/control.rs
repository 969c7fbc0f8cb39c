//! Operators' interface to an issuer: requests, and the lines that answer them, as JSON.
//!
//! A running issuer accepts requests on a socket in `keys.directory`, which only its own user and root may use. While none runs,
//! [`ask`] takes the issuer's lock and works on the files itself. Both run the same code: `accounts::control` for accounts,
//! `keys::control` for token keys.

mod socket;

pub use crate::accounts::control::{
    AccountChange, AccountRequest, AccountView, AccountsFile, CertificateView, DeclaredAccount, Edit, KeptIn,
    KeyHash, Terms, TierTerm, UsageRow, backup,
};
pub use crate::keys::control::{Exported, Form, export, to_import};
pub use crate::keys::migrate::{MigrateTo, migrate};
use postern_daemon::exit;
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
pub(crate) use socket::Control;
pub use socket::ask;
use std::fmt::Display;
use zeroize::{Zeroize, Zeroizing};

/// An operator's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// A request about accounts.
    Account(AccountRequest),
    /// A request about token keys.
    Key(KeyRequest),
}

impl Request {
    /// Returns the command that shows the effect of a request.
    const fn look(&self) -> &'static str {
        match self {
            Self::Account(_) => "postern issuer account show",
            Self::Key(_) => "postern issuer key list",
        }
    }
}

impl From<KeyRequest> for Request {
    fn from(request: KeyRequest) -> Self {
        Self::Key(request)
    }
}

impl From<AccountRequest> for Request {
    fn from(request: AccountRequest) -> Self {
        Self::Account(request)
    }
}

/// An operator's request about token keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRequest {
    /// Lists every key that has not expired.
    List,
    /// Makes a successor that takes over outside the schedule.
    Rotate {
        /// The type; without it, each issued type.
        token_type: Option<u16>,
        /// Seconds until it takes over; without it, `publish_ahead`.
        in_seconds: Option<u64>,
    },
    /// Ends one key, or all, at once.
    Retire {
        /// The first eight digits of the id, or all; without it, every key.
        id: Option<String>,
        /// `true` if gateways are to refuse its tokens at once, not after their grace period.
        revokes: bool,
    },
    /// Imports a key from an exported file.
    Import {
        /// The file's name, which contains the key's times.
        name: String,
        /// The file's content.
        content: KeyContent,
    },
}

/// The content of a plain key file, in hex on its way to the issuer. Anyone who has it can issue tokens, so `Debug` redacts it,
/// and it is wiped when dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyContent(pub(crate) String);

impl KeyContent {
    /// Returns the decoded content; nothing if it is not hex.
    pub(crate) fn bytes(&self) -> Zeroizing<Vec<u8>> {
        hex::decode(&self.0).map(Zeroizing::new).unwrap_or_default()
    }
}

impl Drop for KeyContent {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for KeyContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyContent(redacted)")
    }
}

/// A token key, as shown to operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenKeyView {
    /// The first eight hex digits of the id.
    pub id: String,
    /// The code of its token type.
    #[serde(rename = "type")]
    pub token_type: u16,
    /// "upcoming", "newest" or "older".
    pub phase: String,
    /// The first second in which clients use the key.
    pub in_use_from: UnixSeconds,
    /// The first second in which its successor is used instead.
    pub issues_until: UnixSeconds,
    /// The first second in which its tokens are no longer valid.
    pub leaves_at: UnixSeconds,
    /// The name of its file in `keys.directory`.
    pub file: String,
}

/// One line of an answer. The last one is `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// An account.
    Account(AccountView),
    /// A new API key, which is not stored and never shown again.
    ApiKey(String),
    /// A client certificate that was added.
    Certificate(CertificateView),
    /// A token key.
    TokenKey(TokenKeyView),
    /// A problem with the keys in the HSM, as a sentence.
    Remark(String),
    /// Usage in one period.
    Usage(UsageRow),
    /// A declared account that changed.
    Applied {
        /// Account name.
        account: String,
        /// The change.
        change: AccountChange,
    },
    /// The request is complete, and on the disk.
    Done,
    /// The request was not carried out.
    Failed(Refused),
}

/// The reason a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{sentence}")]
pub struct Refused {
    /// Message for a person.
    pub sentence: String,
    /// Exit code for a program.
    pub code: u8,
}

impl Refused {
    /// Creates a usage error: the command line names a missing thing, or requests the impossible.
    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: exit::USAGE }
    }

    /// Creates the error of a request that may have been carried out; the command `look` shows whether it was.
    pub(crate) fn unsure(why: impl Display, look: &str) -> Self {
        Self::runtime(format!("{why}, and it may have done what was asked: look with `{look}`"))
    }

    pub(crate) fn runtime(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: exit::RUNTIME }
    }
}
