//! The configuration of `postern issuer`.

use crate::quota::Quota;
use postern_config::{Address, ConfigDuration, address};
use postern_daemon::drain::DrainConfig;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::sources::SourceLimits;
use postern_daemon::tls::TlsConfig;
use postern_telemetry::log::LogConfig;
use postern_token::TokenType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The path of the API description.
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
    /// Where accounts, their usage, and the token keys of several issuers are.
    #[serde(default)]
    pub accounts: AccountsConfig,
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

/// An HSM for the keys of type 2, by PKCS#11. Keys that are in files when this is set serve until their end. Keys of types 5 and
/// 1 stay in files: PKCS#11 has no operation for them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pkcs11Config {
    /// Shared library of the HSM's maker; statically linked builds load none.
    pub module: PathBuf,
    /// Label or serial number; it must sign with `CKM_RSA_X_509`.
    pub token: String,
    /// File (mode 0600) with the user's PIN. If it is refused, correct it and send SIGHUP.
    pub pin_file: PathBuf,
    /// Time for a signature, then 503.
    #[serde(default = "ConfigDuration::of_secs::<5>")]
    pub timeout: ConfigDuration,
    /// Make new keys in the HSM, else in files.
    #[serde(default = "Pkcs11Config::new_keys")]
    pub new_keys: bool,
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

/// Terms that accounts share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Its name: one word of 1 to 64 letters, digits and the characters - _ . and unique.
    pub name: String,
    /// Tokens that each of its accounts gets in each period, such as "10000/1d". Periods are aligned to
    /// 1970-01-01 UTC, so that "1d" ends at midnight UTC. No crash of the issuer gives tokens beyond it; one may cost an account a
    /// fiftieth of it, four tokens at least and 512 at most, plus the tokens being requested.
    pub quota: Quota,
    /// Tokens a second that each of its accounts gets, on average, besides the quota. It needs `burst`.
    #[serde(default)]
    pub rate: Option<NonZeroU32>,
    /// Tokens that each of its accounts gets at once, after a pause. It needs `rate`.
    #[serde(default)]
    pub burst: Option<NonZeroU32>,
    /// Tokens of one of its accounts that are signed for one of another account's, from 1 to 100. It counts while both wait; places
    /// in the queue are the same for all.
    #[serde(default = "Tier::one_turn")]
    #[schemars(range(max = 100))]
    pub turns: NonZeroU32,
}

/// The service that knows API keys which are not this issuer's own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthorizerConfig {
    /// https URL, or http on this machine, that gets API keys by POST.
    pub url: String,
    /// Time for an answer, 10 ms to 30 s.
    #[serde(default = "ConfigDuration::of_secs::<2>")]
    pub timeout: ConfigDuration,
    /// Time that answers apply, 1 s to 1 h, even for withdrawn keys; SIGHUP forgets them.
    #[serde(default = "ConfigDuration::of_secs::<60>")]
    pub cache: ConfigDuration,
    /// Trusted authorities (PEM), instead of the platform's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

/// The database of accounts. Without `database` it is a file in `keys.directory`, for one issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccountsConfig {
    /// PostgreSQL (14 or newer) for any number of issuers, such as "postgres://postern@db.example/postern"; it also has their token
    /// keys, which needs `keys.passphrase_file`. TLS is verified: sslrootcert=FILE in the URL names an authority of yours, and
    /// sslmode=disable is for a server on this machine.
    pub database: Option<String>,
    /// File (mode 0600) whose first line is the password; without it that is in the environment's PGPASSWORD, if one is needed.
    pub password_file: Option<PathBuf>,
}

/// The usage of accounts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UsageConfig {
    /// Retention of the usage of past periods, from one day to ten years. Periods shorter than a day are merged into their
    /// day when it is over.
    pub keep_for: ConfigDuration,
    /// Name accounts where usage can be watched: `postern_issuer_account_tokens_total` in the metrics, and a table on the live page.
    /// Readers then see within seconds when which account requests tokens, and with a gateway's metrics may guess whose a spend
    /// is. Without it no time of an account's is finer than its period.
    pub name_accounts: bool,
}

/// Contents of the join string of `postern issuer account add --join`, besides the API key. The issuer itself uses none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JoinConfig {
    /// This issuer's URLs as agents reach it, in order of preference, such as ["https://issuer.example"]. 8 at most.
    pub issuers: Vec<String>,
    /// URLs of the gateways, in order of preference, such as ["https://proxy.example"]. 32 at most.
    pub gateways: Vec<String>,
    /// The name in the gateways' challenges (`[challenge] origin` there), where it is not the host of their URLs.
    pub origin: Option<String>,
    /// PEM file with the certificates that agents trust for the gateways, where the platform's do not do. Its certificates become a
    /// part of the join string, and nothing else of it.
    pub gateway_ca: Option<PathBuf>,
    /// The same for the issuer.
    pub issuer_ca: Option<PathBuf>,
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

impl Config {
    /// Creates the configuration that `up` runs: a loopback `address`, state in `directory`, open to anyone who reaches it.
    #[must_use]
    pub fn loopback(address: SocketAddr, directory: &Path) -> Self {
        Self {
            listen: Listen { address, ..Listen::default() },
            tls: None,
            keys: Keys::under(directory),
            signing: Signing::default(),
            tiers: Vec::new(),
            authorizer: None,
            accounts: AccountsConfig::default(),
            usage: UsageConfig::default(),
            join: JoinConfig::default(),
            directory: Directory::default(),
            limits: Limits::default(),
            drain: DrainConfig::default(),
            log: LogConfig::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_keys(keys: &Keys) -> Self {
        Self { keys: keys.clone(), ..Self::loopback(Listen::default().address, &keys.directory) }
    }
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
    /// Creates settings for keys in `directory`, with the default times.
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

impl Pkcs11Config {
    const fn new_keys() -> bool {
        true
    }
}

impl Default for Signing {
    fn default() -> Self {
        Self { threads: None, queue: 1_024 }
    }
}

impl Tier {
    const fn one_turn() -> NonZeroU32 {
        NonZeroU32::MIN
    }
}

impl Default for UsageConfig {
    fn default() -> Self {
        Self { keep_for: ConfigDuration::days(100), name_accounts: false }
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

/// Reads a file that other users may not read. The error is the end of a sentence.
pub(crate) fn read_secret(file: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let unreadable = |error| format!("cannot be read: {error}");
    let mode = std::fs::metadata(file).map_err(unreadable)?.permissions().mode() & 0o777;
    // The group's bits are ignored: those of systemd's credentials are the mask of an access list, and other mounts have a group.
    if mode & 0o007 != 0 {
        return Err(format!("is open to every user (mode {mode:04o}): run chmod 600 on it"));
    }
    std::fs::read(file).map(Zeroizing::new).map_err(unreadable)
}
