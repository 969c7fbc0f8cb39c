//! The configuration of `postern issuer`.

mod accounts;
mod authorizer;
mod group;
mod pkcs11;

pub use accounts::{Account, KeyHash, Tier, UsageConfig};
pub use authorizer::AuthorizerConfig;
pub use group::GroupConfig;
pub use pkcs11::Pkcs11Config;

use crate::StartError;
use crate::accounts::has_accounts;
use crate::directory::Imprint;
use crate::join::JoinConfig;
use crate::openapi::OPENAPI_PATH;
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

/// The configuration of an issuer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the issuer listens.
    #[serde(default)]
    pub listen: Listen,
    /// Serve HTTPS with this certificate. Without this section the issuer speaks plain HTTP.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// The token keys.
    pub keys: Keys,
    /// The CPU pool that signs.
    #[serde(default)]
    pub signing: Signing,
    /// Accounts that may request tokens, beside those that `postern issuer account add` makes in the database: a handful. Without
    /// any account in either the issuer listens on loopback only, and issues tokens to any local client. An account that was
    /// imported (`postern issuer account import`) is what the database says, and can be removed here.
    #[serde(default)]
    pub accounts: Vec<Account>,
    /// Terms that many accounts share. An account with the name of one as its `tier`, and no quota of its own, has what is said
    /// here; another quota here counts for all of them from the reload on.
    #[serde(default)]
    pub tiers: Vec<Tier>,
    /// A service of the operator's that says whose an API key is when it is not of one of these accounts. With it tokens are for
    /// accounts alone.
    #[serde(default)]
    pub authorizer: Option<AuthorizerConfig>,
    /// Several issuers with the same token keys and accounts, this one among them. Without this section it is alone.
    #[serde(default)]
    pub group: Option<GroupConfig>,
    /// The usage of accounts.
    #[serde(default)]
    pub usage: UsageConfig,
    /// What agents need to know, for the join strings of `postern issuer account add --join`.
    #[serde(default)]
    pub join: JoinConfig,
    /// The published key directory.
    #[serde(default)]
    pub directory: Directory,
    /// Limits on clients.
    #[serde(default)]
    pub limits: Limits,
    /// How the issuer stops.
    #[serde(default)]
    pub drain: DrainConfig<10>,
    /// The log.
    #[serde(default)]
    pub log: LogConfig,
}

/// Where the issuer listens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// The public address. An address that is not loopback requires at least one account.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// The admin address, for the live page, `/metrics`, `/livez` and `/readyz`. Never expose it to clients.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub admin: SocketAddr,
    /// Also speak HTTP/2, on which many requests share a connection: over TLS with clients that offer it (ALPN), without TLS
    /// with those that begin with its preface.
    pub http2: bool,
    /// Networks of load balancers that send a PROXY header (version 1 or 2). A connection from there must begin with one, and
    /// counts for the client that it names, in `limits.source`. Whoever is in these networks chooses that client, so list
    /// only the balancers. A PROXY header from elsewhere is a bad request.
    #[schemars(with = "Vec<String>")]
    pub proxy_protocol: Balancers,
    /// Whether clients have to show a certificate of `tls.client_ca` to be let in, or may do so. An account is known by its API key or
    /// by a certificate (`postern issuer account add-certificate`), so where some have the one and some the other, or where gateways
    /// without a certificate fetch the keys, it has to be "optional".
    pub client_certificates: ClientCertificates,
}

/// What clients show in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientCertificates {
    /// A good certificate, or there is no connection.
    #[default]
    Required,
    /// A good certificate, or none.
    Optional,
}

/// The token keys. The times of a key are fixed when it is made: a change here is for the next key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// A directory (mode 0700, made when missing) for the key files, the database of accounts and its secret, and the socket
    /// of `postern issuer account` and `postern issuer key`. One issuer at a time may use it. Back it up: tokens of a lost key are worthless.
    pub directory: PathBuf,
    /// A file whose first line is the passphrase that the key files are encrypted with (mode 0600), 16 bytes or more: a start encrypts
    /// those that are plain. Further lines are earlier passphrases, of which a start takes the files to the first. Without it key
    /// files are plain, and an encrypted one is refused. Copies for gateways (`postern issuer key export --plain`) are plain.
    #[serde(default)]
    pub passphrase_file: Option<PathBuf>,
    /// The token types that are issued, in order of preference: 2 (blind RSA: gateways verify with the published key), 5
    /// (ristretto255) and 1 (P-384). Tokens of 5 and 1 are verified with the issuer's secret key, so only by gateways that have a
    /// copy of its file. A type that is removed here gets no new key, and those it has serve until their end.
    #[serde(default = "Keys::types")]
    #[schemars(extend("x-accepted" = "a list of 2, 5 and 1, each once at most"))]
    pub types: Vec<u16>,
    /// How long a key issues tokens before its successor takes over.
    #[serde(default = "Keys::rotate_every")]
    pub rotate_every: ConfigDuration,
    /// How long a successor is made and published before it takes over. Shorter than `rotate_every`.
    #[serde(default = "Keys::publish_ahead")]
    pub publish_ahead: ConfigDuration,
    /// How long tokens stay valid after their key's successor took over. A week later the key's file is removed.
    #[serde(default = "Keys::redeem_for")]
    pub redeem_for: ConfigDuration,
    /// Keep the keys of type 2 in an HSM.
    #[serde(default)]
    pub pkcs11: Option<Pkcs11Config>,
}

/// The CPU pool that signs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Signing {
    /// The number of signing threads. By default one for each core.
    pub threads: Option<NonZeroUsize>,
    /// The most requests that wait for a thread; each token of a batch of type 2 is one, and an amortized batch is one. Accounts
    /// take turns. Further requests are answered 503, those of the account with the most waiting first; of a batch, those that
    /// found a place are served (206).
    #[schemars(range(max = 65_536))]
    pub queue: usize,
}

/// The published key directory.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Directory {
    /// Where clients send token requests: a path, or the whole URL when clients reach the issuer by another name than
    /// the directory's. Its path is the one served.
    pub issuer_request_uri: String,
    /// How long clients and gateways may keep a copy. It is shortened if the keys change sooner.
    pub max_age: ConfigDuration,
}

/// Limits on clients.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The time limit of a TLS handshake, a request's header, the wait for the next request, and a pause in reading an
    /// answer. After it the connection is closed.
    pub header_timeout: ConfigDuration,
    /// The time limit of a request body. After it the answer is 408.
    pub body_timeout: ConfigDuration,
    /// The most open connections; a request of HTTP/2 counts as one, beside its connection. For one more the oldest gives way that has not brought a whole request; while every
    /// request is being answered, further connections wait in the kernel's backlog. The limit is lower where the process may
    /// not open enough files; the log says so.
    pub connections: NonZeroUsize,
    /// The most tokens that one request gets, in a batch (draft-ietf-privacypass-batched-tokens). The key directory says it, so
    /// that clients do not ask for more.
    #[schemars(range(min = 1, max = 1_000))]
    pub batch: u32,
    /// What one source may hold.
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
            accounts: Vec::new(),
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

    /// What the directory says beside the keys.
    pub(crate) fn imprint(&self) -> Imprint {
        Imprint { request_uri: self.directory.issuer_request_uri.clone(), batch_limit: self.limits.batch }
    }

    /// Checks what the types cannot express, except the accounts. Reads the database where it decides.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let is_for_others = !self.listen.address.ip().is_loopback();
        let knows_accounts =
            !self.accounts.is_empty() || self.authorizer.is_some() || self.follows().is_some();
        if is_for_others && !knows_accounts && !has_accounts(&self.keys.directory)? {
            return Err(StartError::Open { address: self.listen.address });
        }
        let asks = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if self.listen.client_certificates == ClientCertificates::Optional && !asks {
            return Err(invalid(
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
            return Err(invalid(format!(
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
                Err(invalid(format!("{name} is zero, which no client can meet: write \"10s\"")))
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
            return Err(invalid("[keys] rotate_every and redeem_for must be one second at least".to_owned()));
        }
        if publish_ahead >= rotate_every {
            return Err(invalid(format!(
                "[keys] publish_ahead ({publish_ahead}) must be shorter than rotate_every ({rotate_every})"
            )));
        }
        let alive = publish_ahead.get().saturating_add(redeem_for.get());
        if alive.as_secs() / rotate_every.get().as_secs() + 2 > MAX_LIVE_KEYS {
            return Err(invalid(format!(
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
            invalid(format!(
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
            invalid(format!(
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

pub(crate) fn invalid(sentence: String) -> StartError {
    StartError::Config(sentence)
}
