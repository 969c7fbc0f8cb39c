//! Errors of minting: sentences for the user, and whether a retry helps.

use crate::wallet::clock::Skew;
use http::StatusCode;
use postern_daemon::http::{ClientError, quoted};
use postern_token::BlindError;
use reqwest::Url;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why no tokens were minted: a message with the URL and the remedy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what happened")]
pub enum MintError {
    #[error(
        "the issuer's address \"{0}\" must be http://host:port or https://host, without a user or a query"
    )]
    Url(String),
    #[error(
        "the API key cannot be read from {} (issuer.api_key_file): {reason}; the file holds the key that the issuer's operator gave you, and \
         nothing else",
        path.display()
    )]
    KeyFile { path: PathBuf, reason: String },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the issuer {url} cannot be reached: {reason}")]
    Unreachable { url: Url, reason: String },
    #[error("the issuer {url} answered {status}{}{}", quoted(text), advice(*status))]
    Status {
        url: Url,
        status: StatusCode,
        /// The issuer's message, cut to one line.
        text: String,
        retry_after: Option<Duration>,
    },
    #[error(
        "the issuer {url} gave an answer that cannot be used: {reason}; is this the address of a Privacy Pass issuer?"
    )]
    Unusable { url: Url, reason: String },
    /// The directory sends requests to another host, which would receive the API key.
    #[error(
        "the issuer {url} wants requests for tokens sent to {elsewhere}, another host, and the API key is for the issuer alone: set \
         issuer.url (or --issuer) to that host if it is the issuer's, or leave the key out if it needs none"
    )]
    Elsewhere { url: Url, elsewhere: Url },
    /// An issuer that only the gateway's challenge names has no public address.
    #[error(
        "the issuer {url}, which only the gateway's challenge names, is at no public address, so no connection was made: a \
         gateway could find out in this way what this machine can reach. If this is your issuer, set issuer.url (or --issuer)"
    )]
    NotPublic { url: Url },
    #[error(
        "the gateway requires tokens of a key that the issuer's directory {url} does not list. Such a key could be one \
         that only some clients are shown, to distinguish them, so nothing is minted for it; does the gateway use this \
         issuer, and has it fetched its keys lately?"
    )]
    Unlisted { url: Url },
    /// The challenge's key has retired, or the challenge names none and no key is left.
    #[error(
        "the key to use is retired, by the issuer's directory {url}: the gateway has to fetch the directory again, or \
         the issuer to publish a newer key{}", clock(*skew)
    )]
    Retired { url: Url, skew: Skew },
    /// The challenge's key is published ahead of its time (RFC 9578, section 4: not before its `not-before`).
    #[error(
        "the key to use takes over in {} s, by the issuer's directory {url}: tokens are minted from then on{}",
        wait.as_secs(), clock(*skew)
    )]
    NotYet { url: Url, wait: Duration, skew: Skew },
    #[error(
        "the issuer {url} gave no signature that can be used: {source}; does it hold the key that the gateway requires?"
    )]
    Blind { url: Url, source: BlindError },
}

impl MintError {
    /// Returns `true` if a retry is pointless until an operator changes an account, a key or an address.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Unreachable { .. } => false,
            _ if self.is_of_key() => false, // a change of keys passes without an operator
            Self::Status { status, .. } => {
                status.is_client_error()
                    && !matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
            }
            _ => true,
        }
    }

    /// Returns `true` if the issuer does not sign with the challenge's key. Keys may have changed, and the gateway may require
    /// another one by now.
    #[must_use]
    pub fn is_of_key(&self) -> bool {
        match self {
            Self::Unlisted { .. } | Self::Retired { .. } | Self::NotYet { .. } => true,
            Self::Status { status, .. } => *status == StatusCode::UNPROCESSABLE_ENTITY,
            _ => false,
        }
    }

    /// Returns the issuer's `Retry-After`, or the time until the key takes over.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::NotYet { wait, .. } => Some(*wait),
            _ => None,
        }
    }
}

fn clock(skew: Skew) -> String {
    if skew.is_some() { format!(". Also, {skew}") } else { String::new() }
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            "; check the account's key (issuer.api_key or issuer.api_key_file, --api-key or POSTERN_ISSUER_API_KEY)"
        }
        StatusCode::FORBIDDEN => {
            "; the account's key is known there, and gets no tokens: only the issuer's operator can change that"
        }
        StatusCode::NOT_FOUND => "; is it a Privacy Pass issuer, and is its address right?",
        StatusCode::TOO_MANY_REQUESTS => {
            "; the account's quota is used up for now: wait for its next period, or ask the issuer's operator for more"
        }
        StatusCode::UNPROCESSABLE_ENTITY => "; does it hold the key that the gateway requires?",
        _ => "",
    }
}
