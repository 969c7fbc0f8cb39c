//! The configuration of `postern issuer`.

mod accounts;
mod authorizer;
mod group;
mod pkcs11;

pub use accounts::{Tier, UsageConfig};
pub use authorizer::AuthorizerConfig;
pub use group::GroupConfig;
pub use pkcs11::Pkcs11Config;

use crate::StartError;
use crate::accounts::has_accounts;
use crate::join::JoinConfig;
use crate::rotation::Schedule;
use postern_config::{Address, ConfigDuration, address};
use postern_daemon::drain::DrainConfig;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::sources::SourceLimits;
use postern_daemon::tls::TlsConfig;
use postern_telemetry::log::LogConfig;
use postern_token::{TokenType, TokenTypes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the description of the interface is served.
pub(crate) const OPENAPI_PATH: &str = "/openapi.json";

/// An issuer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Client and admin listeners.
    #[serde(default)]
    pub listen: Listen,
    /// TLS towards clients, else plain HTTP.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Token keys. Changed times apply to the next key.
    pub keys: Keys,
    /// Signing threads.
    #[serde(default)]
    pub signing: Signing,
    /// Terms of accounts that name the tier and have no quota.
    #[serde(default)]
    pub tiers: Vec<Tier>,
    /// Service of yours that decides on other API keys.
    #[serde(default)]
    pub authorizer: Option<AuthorizerConfig>,
    /// Several issuers with the same keys and accounts.
    #[serde(default)]
    pub group: Option<GroupConfig>,
    /// Usage of accounts.
    #[serde(default)]
    pub usage: UsageConfig,
    /// Contents of join strings.
    #[serde(default)]
    pub join: JoinConfig,
    /// Published key directory.
    #[serde(default)]
    pub directory: Directory,
    /// Limits on clients.
    #[serde(default)]
    pub limits: Limits,
    /// Shutdown on SIGTERM.
    #[serde(default)]
    pub drain: DrainConfig<10>,
    /// Logs, to standard error.
    #[serde(default)]
    pub log: LogConfig,
}

/// Client and admin listeners.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// Listener for clients; beyond loopback it needs accounts or an authorizer.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// Live page, `/metrics`, `/livez` and `/readyz`. Never expose them to clients.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub admin: SocketAddr,
    /// Accept HTTP/2, with or without TLS.
    pub http2: bool,
    /// Networks of balancers, which must send PROXY headers (version 1 or 2) and can claim any client address.
    #[schemars(with = "Vec<String>")]
    pub proxy_protocol: Balancers,
    /// "optional" also admits clients without a certificate of `tls.client_ca`, such as gateways and accounts with API keys.
    pub client_certificates: ClientCertificates,
}

/// Client certificates in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientCertificates {
    /// A good certificate, or there is no connection.
    #[default]
    Required,
    /// A good certificate, or none.
    Optional,
}

/// The token keys. The times of a key are fixed when it is made: a change applies to the next key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Directory (mode 0700) of keys and accounts, for one issuer. Back it up.
    pub directory: PathBuf,
    /// File (mode 0600) whose first line, 16 bytes or more, encrypts key files; earlier passphrases follow.
    #[serde(default)]
    pub passphrase_file: Option<PathBuf>,
    /// Issued token types, preferred first; 5 and 1 need their secret keys at gateways.
    #[serde(default = "Keys::types")]
    #[schemars(extend("x-accepted" = "a list of 2, 5 and 1, each once at most"))]
    pub types: Vec<u16>,
    /// Time that a key issues tokens.
    #[serde(default = "Keys::rotate_every")]
    pub rotate_every: ConfigDuration,
    /// Time that a key is published before use, shorter than `rotate_every`.
    #[serde(default = "Keys::publish_ahead")]
    pub publish_ahead: ConfigDuration,
    /// Time that tokens stay good after their key was replaced.
    #[serde(default = "Keys::redeem_for")]
    pub redeem_for: ConfigDuration,
    /// HSM for keys of type 2.
    #[serde(default)]
    pub pkcs11: Option<Pkcs11Config>,
}

/// The CPU pool that signs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Signing {
    /// Number of threads, by default one per core.
    pub threads: Option<NonZeroUsize>,
    /// Signatures that wait; more get 503, or 206 for part of a batch.
    #[schemars(range(max = 65_536))]
    pub queue: usize,
}

/// The published key directory.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Directory {
    /// Path for token requests, or a URL if clients use another host name.
    pub issuer_request_uri: String,
    /// Time that copies may be kept.
    pub max_age: ConfigDuration,
}

/// Limits on clients.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Time for a TLS handshake, a request's header, and a pause in reading an answer.
    pub header_timeout: ConfigDuration,
    /// Time for a request body.
    pub body_timeout: ConfigDuration,
    /// Connections and HTTP/2 requests; beyond, the oldest without a whole request gives way, else new ones wait. Scarce file
    /// descriptors lower it.
    pub connections: NonZeroUsize,
    /// Tokens in one request.
    #[schemars(range(min = 1, max = 1_000))]
    pub batch: u32,
    /// Limits for one source, an IPv4 address or IPv6 network.
    pub source: SourceLimits,
}

impl Default for Listen {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            address: loopback(8081),
            admin: loopback(9091),
            http2: true,
            proxy_protocol: Balancers::default(),
            client_certificates: ClientCertificates::default(),
        }
    }
}

impl Listen {
    pub(crate) fn requires_certificates(&self) -> bool {
        self.client_certificates == ClientCertificates::Required
    }
}

impl Keys {
    /// Keys under `directory`, with the default times.
    #[must_use]
    pub fn under(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            passphrase_file: None,
            rotate_every: Self::rotate_every(),
            publish_ahead: Self::publish_ahead(),
            redeem_for: Self::redeem_for(),
            types: Self::types(),
            pkcs11: None,
        }
    }

    fn types() -> Vec<u16> {
        vec![TokenType::BlindRsa2048.code()]
    }

    fn rotate_every() -> ConfigDuration {
        ConfigDuration::days(30)
    }

    fn publish_ahead() -> ConfigDuration {
        ConfigDuration::days(1)
    }

    fn redeem_for() -> ConfigDuration {
        ConfigDuration::days(7)
    }
}

impl Default for Signing {
    fn default() -> Self {
        Self { threads: None, queue: 1_024 }
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self { issuer_request_uri: "/token-request".to_owned(), max_age: ConfigDuration::hours(1) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let connections = const { NonZeroUsize::new(1_024).expect("1,024 is not zero") };
        Self {
            header_timeout: ConfigDuration::secs(10),
            body_timeout: ConfigDuration::secs(10),
            connections,
            batch: 100,
            source: SourceLimits::default(),
        }
    }
}

/// A batch larger than this would hold memory for a body of more than a quarter of a mebibyte.
const MOST_IN_A_BATCH: u32 = 1_000;
/// More keys than this at once would be a mistake in the times: their truncated ids (one byte) must all differ, and
/// every client reads all of them.
pub(crate) const MAX_LIVE_KEYS: u64 = 16;

impl Config {
    /// An issuer on a loopback `address` with its state in `directory`, open to anyone who reaches it: what `up` runs.
    #[must_use]
    pub fn loopback(address: SocketAddr, directory: &Path) -> Self {
        Self {
            listen: Listen { address, ..Listen::default() },
            tls: None,
            keys: Keys::under(directory),
            signing: Signing::default(),
            tiers: Vec::new(),
            authorizer: None,
            group: None,
            usage: UsageConfig::default(),
            join: JoinConfig::default(),
            directory: Directory::default(),
            limits: Limits::default(),
            drain: DrainConfig::default(),
            log: LogConfig::default(),
        }
    }

    /// Where the copies are of the issuer that this one follows, if it follows one.
    pub(crate) fn follows(&self) -> Option<&Path> {
        self.group.as_ref()?.follow.as_deref()
    }

    /// Checks what the types cannot express, except the tiers. Reads the database where it decides.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let is_for_others = !self.listen.address.ip().is_loopback();
        let knows_accounts = self.authorizer.is_some() || self.follows().is_some();
        if is_for_others && !knows_accounts && !has_accounts(&self.keys.directory)? {
            return Err(StartError::Open { address: self.listen.address });
        }
        let asks = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if self.listen.client_certificates == ClientCertificates::Optional && !asks {
            return Err(StartError::Config(
                "[listen] client_certificates = \"optional\" needs [tls] client_ca, a file with the authorities of those \
                 certificates: without it the listener requests no certificate. Set it, or leave client_certificates out"
                    .to_owned(),
            ));
        }
        self.keys.check()?;
        self.usage.check()?;
        self.group.as_ref().map(|group| group.check(&self.keys.directory)).transpose()?;
        self.authorizer.as_ref().map(AuthorizerConfig::check).transpose()?;
        self.directory.path()?;
        if !(1..=MOST_IN_A_BATCH).contains(&self.limits.batch) {
            return Err(StartError::Config(format!(
                "[limits] batch ({}) must be from 1 to {MOST_IN_A_BATCH}: it is the most tokens that one request gets",
                self.limits.batch
            )));
        }
        let whole = [
            ("[limits] header_timeout", self.limits.header_timeout),
            ("[limits] body_timeout", self.limits.body_timeout),
        ];
        match whole.iter().find(|(_, span)| span.get().is_zero()) {
            Some((name, _)) => {
                Err(StartError::Config(format!("{name} is zero, which no client can meet: write \"10s\"")))
            }
            None => Ok(()),
        }
    }
}

impl Keys {
    fn check(&self) -> Result<(), StartError> {
        let Self { rotate_every, publish_ahead, redeem_for, .. } = self;
        self.token_types()?;
        self.pkcs11.as_ref().map(Pkcs11Config::check).transpose()?;
        let second = ConfigDuration::secs(1);
        if *rotate_every < second || *redeem_for < second {
            return Err(StartError::Config(
                "[keys] rotate_every and redeem_for must be one second at least".to_owned(),
            ));
        }
        if publish_ahead >= rotate_every {
            return Err(StartError::Config(format!(
                "[keys] publish_ahead ({publish_ahead}) must be shorter than rotate_every ({rotate_every})"
            )));
        }
        let alive = publish_ahead.get().saturating_add(redeem_for.get());
        if alive.as_secs() / rotate_every.get().as_secs() + 2 > MAX_LIVE_KEYS {
            return Err(StartError::Config(format!(
                "[keys] redeem_for ({redeem_for}) would keep more than {MAX_LIVE_KEYS} keys alive with a new one \
                 every {rotate_every}: make redeem_for shorter or rotate_every longer"
            )));
        }
        Ok(())
    }

    /// What [`Config::check`] has let pass.
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

impl Directory {
    /// The path of `issuer_request_uri`: where this server takes requests.
    pub(crate) fn path(&self) -> Result<String, StartError> {
        let refused = |why: &str| {
            StartError::Config(format!(
                "[directory] issuer_request_uri = {:?} {why}: write a path such as \"/token-request\", or a URL such \
                 as \"https://issuer.example/token-request\"",
                self.issuer_request_uri
            ))
        };
        let uri: http::Uri = self.issuer_request_uri.parse().map_err(|_| refused("is not a URI"))?;
        let is_path = uri.scheme().is_none() && uri.authority().is_none();
        let is_url = matches!(uri.scheme_str(), Some("http" | "https"));
        match uri.path() {
            _ if !is_path && !is_url => Err(refused("is neither a path nor a URL")),
            _ if uri.query().is_some() => Err(refused("has a query")),
            postern_token::DIRECTORY_PATH => Err(refused("is the directory's own path")),
            OPENAPI_PATH => Err(refused("is the path of the API description")),
            // URLs have none (RFC 3986), and clients encode them. In an API description they would be a parameter.
            path if path.contains(['{', '}']) => Err(refused("has a brace")),
            path if !path.starts_with('/') => Err(refused("does not begin with a slash")),
            path => Ok(path.to_owned()),
        }
    }

    pub(crate) fn max_age(&self) -> Duration {
        self.max_age.get()
    }
}
