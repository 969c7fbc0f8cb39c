//! Errors that prevent an issuer from starting, and the bounds of a configuration that its types cannot express.

use crate::accounts::AccountsError;
use crate::accounts::store::has_accounts;
use crate::config::{
    AuthorizerConfig, ClientCertificates, Config, Directory, Keys, OPENAPI_PATH, Pkcs11Config, Tier,
};
use crate::database::postgres::Server;
use crate::keys::KeysError;
use crate::quota::Burst;
use crate::rotation::Schedule;
use postern_config::ConfigDuration;
use postern_daemon::exit;
use postern_daemon::http::{ClientError, is_localhost};
use postern_daemon::listen::BindError;
use postern_daemon::tls::TlsError;
use postern_token::TokenTypes;
use reqwest::Url;
use std::collections::HashSet;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of tokens in a batch: a larger one would hold memory for a body of more than a quarter of a mebibyte.
const MOST_IN_A_BATCH: u32 = 1_000;
/// Maximum number of keys at once. More would be a mistake in the times: truncated ids (one byte) must all differ, and
/// every client reads all keys.
pub(crate) const MAX_LIVE_KEYS: u64 = 16;
/// Largest number of an account's requests that are signed in a row: about 30 ms of one core.
const MOST_TURNS: u32 = 100;
/// Longest name of a tier in characters.
const MOST_NAME: usize = 64;

/// An error that prevents an issuer from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value of the configuration that its type cannot reject.
    #[error("{0}")]
    Config(String),
    /// Issuance would be open to everyone.
    #[error(
        "the issuer would give tokens to everyone who reaches {address}: make an account for who may have them \
         (`postern issuer account add NAME --quota 10000/1d --config FILE`, or `account apply` where a file declares them), \
         or listen on loopback ([listen] address = \"127.0.0.1:8081\"), where no account \
         is needed"
    )]
    Open {
        /// The configured address.
        address: SocketAddr,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client of the authorizer cannot be created.
    #[error("[authorizer] {0}")]
    Authorizer(#[from] ClientError),
    /// The token keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The accounts and their usage cannot be used.
    #[error(transparent)]
    Accounts(#[from] AccountsError),
    /// The signing threads cannot be started.
    #[error("cannot start the signing threads: {0}; set fewer with [signing] threads")]
    Threads(#[source] std::io::Error),
    /// The socket cannot be bound.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The runtime shut down during the start.
    #[error("the start was interrupted: reading the keys ended early; start it again")]
    Interrupted,
}

impl StartError {
    /// Returns the exit code: [`exit::CONFIG`] if the configuration must be edited, [`exit::RUNTIME`] otherwise.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Tls(TlsError::State(_)) => exit::RUNTIME,
            Self::Keys(
                KeysError::Encrypted { .. }
                | KeysError::Undecryptable { .. }
                | KeysError::PassphraseFile { .. }
                | KeysError::Module { .. }
                | KeysError::PinFile { .. }
                | KeysError::NoHsm { .. },
            ) => exit::CONFIG,
            Self::Config(_) | Self::Open { .. } | Self::Tls(_) | Self::Authorizer(_) => exit::CONFIG,
            Self::Keys(_) | Self::Accounts(_) | Self::Threads(_) | Self::Listen(_) | Self::Interrupted => {
                exit::RUNTIME
            }
        }
    }
}

impl Config {
    /// Returns the server of the database; `None` for SQLite. Fails only if [`Config::check`] would.
    pub(crate) fn server(&self) -> Result<Option<Arc<Server>>, StartError> {
        Server::of(&self.accounts).map_err(|why| StartError::Config(format!("[accounts] database {why}")))
    }

    /// Checks what the types cannot express. Reads the accounts database if the result depends on it.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let is_for_others = !self.listen.address.ip().is_loopback();
        let knows_accounts = self.authorizer.is_some() || self.server()?.is_some();
        if is_for_others && !knows_accounts && !has_accounts(&self.keys.directory)? {
            return Err(StartError::Open { address: self.listen.address });
        }
        let asks = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if self.listen.client_certificates == ClientCertificates::Optional && !asks {
            return refused(
                "[listen] client_certificates = \"optional\" needs [tls] client_ca, a file with the authorities of those \
                 certificates: without it the listener requests no certificate. Set it, or leave client_certificates out",
            );
        }
        self.keys.check()?;
        let times = ConfigDuration::days(1)..=ConfigDuration::days(3_660);
        within("[usage] keep_for", self.usage.keep_for, times, "from one day to ten years: write \"100d\"")?;
        if self.accounts.database.is_some() && self.keys.passphrase_file.is_none() {
            return refused(
                "[accounts] database needs [keys] passphrase_file, with the same passphrase at all issuers: the token keys in the \
                 database are encrypted with it",
            );
        }
        self.authorizer.as_ref().map(AuthorizerConfig::check).transpose()?;
        self.directory.path()?;
        let batch = format!("from 1 to {MOST_IN_A_BATCH}: it is the most tokens that one request gets");
        within("[limits] batch", self.limits.batch, 1..=MOST_IN_A_BATCH, &batch)?;
        is_met("[limits] header_timeout", self.limits.header_timeout, "client", "10s")?;
        is_met("[limits] body_timeout", self.limits.body_timeout, "client", "10s")?;
        check_tiers(&self.tiers)
    }
}

impl Keys {
    fn check(&self) -> Result<(), StartError> {
        let Self { rotate_every, publish_ahead, redeem_for, .. } = self;
        self.token_types()?;
        self.pkcs11.as_ref().map(Pkcs11Config::check).transpose()?;
        let second = ConfigDuration::secs(1);
        if *rotate_every < second || *redeem_for < second {
            return refused("[keys] rotate_every and redeem_for must be one second at least");
        }
        if publish_ahead >= rotate_every {
            return refused(format!(
                "[keys] publish_ahead ({publish_ahead}) must be shorter than rotate_every ({rotate_every})"
            ));
        }
        let alive = publish_ahead.get().saturating_add(redeem_for.get());
        if alive.as_secs() / rotate_every.get().as_secs() + 2 > MAX_LIVE_KEYS {
            return refused(format!(
                "[keys] redeem_for ({redeem_for}) would keep more than {MAX_LIVE_KEYS} keys alive with a new one \
                 every {rotate_every}: make redeem_for shorter or rotate_every longer"
            ));
        }
        Ok(())
    }

    /// Returns the schedule. Fails only if [`Config::check`] would.
    pub(crate) fn schedule(&self) -> Result<Schedule, StartError> {
        Ok(Schedule {
            types: self.token_types()?,
            rotate_every: self.rotate_every.get(),
            publish_ahead: self.publish_ahead.get(),
            redeem_for: self.redeem_for.get(),
        })
    }

    fn token_types(&self) -> Result<TokenTypes, StartError> {
        TokenTypes::new(&self.types).ok_or_else(|| {
            StartError::Config(format!(
                "[keys] types = {:?} must list token types that can be issued, each once: 2 (blind RSA), 5 (ristretto255) or 1 \
                 (P-384), such as [2]",
                self.types
            ))
        })
    }
}

impl Pkcs11Config {
    fn check(&self) -> Result<(), StartError> {
        if self.token.is_empty() {
            return refused(
                "[keys.pkcs11] token is empty: write the label of the HSM's token, or its serial number",
            );
        }
        is_met("[keys.pkcs11] timeout", self.timeout, "HSM", "5s")
    }
}

impl AuthorizerConfig {
    fn check(&self) -> Result<(), StartError> {
        let wrong = |why: &str| {
            // Without the URL, which may contain a password.
            refused(format!(
                "[authorizer] url {why}: write \"https://users.example/authorize\", or \"http://127.0.0.1:9000/authorize\" for a \
                 service on this machine"
            ))
        };
        let Ok(url) = self.url.parse::<Url>() else { return wrong("is not a URL") };
        let host = url.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let is_here = is_localhost(host) || address.is_ok_and(|address| address.is_loopback());
        match url.scheme() {
            _ if host.is_empty() => return wrong("has no host"),
            _ if !url.username().is_empty() || url.password().is_some() => {
                return wrong("has a user name or password, which would not be sent");
            }
            "https" => {}
            "http" if is_here => {}
            "http" => return wrong("would send API keys over the network in the clear"),
            _ => return wrong("is neither https nor http"),
        }
        let timeouts = ConfigDuration(Duration::from_millis(10))..=ConfigDuration::secs(30);
        within("[authorizer] timeout", self.timeout, timeouts, "from 10 ms to 30 s: write \"2s\"")?;
        let times = ConfigDuration::secs(1)..=ConfigDuration::hours(1);
        within("[authorizer] cache", self.cache, times, "from one second to one hour: write \"1m\"")
    }
}

impl Directory {
    /// Returns the path of `issuer_request_uri`, at which this server takes token requests.
    pub(crate) fn path(&self) -> Result<String, StartError> {
        let wrong = |why: &str| {
            refused(format!(
                "[directory] issuer_request_uri = {:?} {why}: write a path such as \"/token-request\", or a URL such \
                 as \"https://issuer.example/token-request\"",
                self.issuer_request_uri
            ))
        };
        let Ok(uri) = self.issuer_request_uri.parse::<http::Uri>() else { return wrong("is not a URI") };
        let is_path = uri.scheme().is_none() && uri.authority().is_none();
        let is_url = matches!(uri.scheme_str(), Some("http" | "https"));
        match uri.path() {
            _ if !is_path && !is_url => wrong("is neither a path nor a URL"),
            _ if uri.query().is_some() => wrong("has a query"),
            postern_token::DIRECTORY_PATH => wrong("is the directory's own path"),
            OPENAPI_PATH => wrong("is the path of the API description"),
            // URLs contain no braces (RFC 3986), and clients encode them. In an API description they would be a parameter.
            path if path.contains(['{', '}']) => wrong("has a brace"),
            path if !path.starts_with('/') => wrong("does not begin with a slash"),
            path => Ok(path.to_owned()),
        }
    }
}

pub(crate) fn check_tiers(tiers: &[Tier]) -> Result<(), StartError> {
    let mut names = HashSet::new();
    for Tier { name, rate, burst, turns, .. } in tiers {
        let is_good = (1..=MOST_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !is_good {
            return refused(format!(
                "[[tiers]] {name:?} is no name for a tier: it is one word of 1 to {MOST_NAME} letters, digits and the characters - _ ."
            ));
        }
        if !names.insert(name) {
            return refused(format!("[[tiers]] {name:?} is there twice: give each tier its own name"));
        }
        if turns.get() > MOST_TURNS {
            return refused(format!(
                "[[tiers]] {name:?} has {turns} turns: others would wait too long, so write 1 to {MOST_TURNS}"
            ));
        }
        if Burst::of(*rate, *burst).is_none() {
            return refused(format!(
                "[[tiers]] {name:?} has one of rate and burst, which need each other: write both, such as rate = 5 and burst = \
                 50, or neither"
            ));
        }
    }
    Ok(())
}

fn refused<T>(sentence: impl Into<String>) -> Result<T, StartError> {
    Err(StartError::Config(sentence.into()))
}

/// Refuses a value outside `range`; `says` names the range in the error.
fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
    says: &str,
) -> Result<(), StartError> {
    if range.contains(&value) { Ok(()) } else { refused(format!("{key} ({value}) must be {says}")) }
}

/// Refuses a timeout of zero.
fn is_met(key: &str, timeout: ConfigDuration, who: &str, example: &str) -> Result<(), StartError> {
    match timeout.get().is_zero() {
        true => refused(format!("{key} is zero, which no {who} can meet: write \"{example}\"")),
        false => Ok(()),
    }
}
