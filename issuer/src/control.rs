//! How an operator sees and changes an issuer: requests, and the lines that answer them, as JSON.
//!
//! A running issuer takes them on a socket in `keys.directory`, which its own user and root alone may use. While none runs, [`ask`]
//! takes the issuer's lock and works on the files itself. Both run the same code: of accounts in `accounts::control`, of token keys in
//! `keys::control`.

mod socket;

pub use crate::accounts::control::{
    AccountChange, AccountRequest, AccountView, AccountsFile, CertificateView, DeclaredAccount, Edit, Here,
    KeptIn, KeyHash, Terms, TierTerm, UsageRow, backup,
};
pub use crate::keys::control::{Exported, Form, KeyContent, KeyRequest, TokenKeyView, export, to_import};
use postern_daemon::exit;
use serde::{Deserialize, Serialize};
pub(crate) use socket::Control;
pub use socket::ask;

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Of accounts.
    Account(AccountRequest),
    /// Of token keys.
    Key(KeyRequest),
}

impl Request {
    /// What shows whether a request was carried out.
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
    /// A token key.
    TokenKey(TokenKeyView),
    /// What is odd about the keys in the HSM, a sentence.
    Remark(String),
    /// Usage in one period.
    Usage(UsageRow),
    /// A declared account that was not as it was declared.
    Applied {
        /// Its name.
        account: String,
        /// What became of it.
        change: AccountChange,
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

impl Refused {
    /// The command line names what is not there, or asks for what cannot be.
    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: exit::USAGE }
    }

    pub(crate) fn runtime(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: exit::RUNTIME }
    }
}
