//! The gateway's configuration file. `docs/reference/configuration.md` is generated from these types.

mod egress;
mod hop_url;
mod next_hop;
mod pattern;
mod peers;
mod resolver;
mod shadow;
mod store;

pub use egress::{Action, Egress, Lever, Ports, Rule};
pub use hop_url::{HopKind, HopUrl, HopUrlError};
pub use next_hop::{Balance, NextHop, NextHopError};
pub(crate) use next_hop::{DIRECT, HopTls};
pub use pattern::{Hosts, Pattern, PatternError};
pub use peers::Peers;
pub use resolver::{NameServer, NameServerError, ResolverConfig, ResolverConfigError, ResolverKind};
pub use store::{CheckTiming, Fsync, MemcachedConfig, StoreConfig, StoreKind, StoreTls, TransportKind};

use postern_config::{Address, ConfigDuration, Secret, Size, address};
use postern_daemon::drain::DrainConfig;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::sources::SourceLimits;
use postern_daemon::tls::TlsConfig;
use postern_telemetry::log::LogFormat;
use postern_telemetry::traces::TracingConfig;
use postern_token::{TokenType, TokenTypes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// A gateway.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the gateway and its admin page listen.
    #[serde(default)]
    pub listen: Listen,
    /// TLS towards clients. Without this section clients speak plain HTTP to the gateway.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// A second listener, for the operator's other gateways: they open tunnels without tokens, for they took one already. Without
    /// this section there is none.
    #[serde(default)]
    pub peers: Option<Peers>,
    /// Whose tokens are accepted.
    pub issuer: Issuer,
    /// The challenge that tokens must answer. A fleet of gateways shares it.
    pub challenge: ChallengeConfig,
    /// The double-spend store.
    #[serde(default)]
    pub store: StoreConfig,
    /// Where tunnels may go.
    #[serde(default)]
    pub egress: Egress,
    /// Deadlines and bounds.
    #[serde(default)]
    pub limits: Limits,
    /// What happens on SIGTERM.
    #[serde(default)]
    pub drain: DrainConfig<30>,
    /// How it logs.
    #[serde(default)]
    pub log: Log,
    /// Where traces go.
    #[serde(default)]
    pub tracing: TracingConfig,
}

/// Where the gateway and its admin page listen.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// The address that clients connect to.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// The address of the live page, `/metrics`, `/livez` and `/readyz`. Never reachable by clients.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub admin: SocketAddr,
    /// How many threads serve connections, each with a runtime and a listening socket of its own. 0 means one a core.
    pub workers: usize,
    /// How long a gateway that starts waits for its keys and its store before it takes clients. After it, it takes them
    /// all the same, answers 503, and logs what is missing. "0s" does not wait.
    pub patience: ConfigDuration,
    /// Also speak HTTP/2, on which many tunnels share a connection: over TLS with clients that offer it (ALPN), without TLS
    /// with those that begin with its preface.
    pub http2: bool,
    /// Refuse HTTP/1.1 requests without a Host field, as RFC 9112, section 3.2, requires. False lets old clients in.
    pub require_host: bool,
    /// Networks of load balancers that send a PROXY header (version 1 or 2). A connection from there must begin with one, and
    /// counts for the client that it names, in `limits.source` and in the access log. Whoever is in these networks chooses
    /// that client, so list only the balancers. A PROXY header from elsewhere is a bad request.
    #[schemars(with = "Vec<String>")]
    pub proxy_protocol: Balancers,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            address: ([0, 0, 0, 0], 8080).into(),
            admin: ([127, 0, 0, 1], 9090).into(),
            workers: 0,
            patience: ConfigDuration::secs(10),
            http2: true,
            require_host: true,
            proxy_protocol: Balancers::default(),
        }
    }
}

/// Whose tokens are accepted: exactly one of `directory` and `keys` is given.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Issuer {
    /// URL of the issuer's key directory.
    pub directory: Option<String>,
    /// A file with the directory's JSON, read at start and on SIGHUP, for an issuer that cannot be reached.
    pub keys: Option<PathBuf>,
    /// PEM file with the certificates to trust for the directory's URL instead of the platform's.
    pub ca: Option<PathBuf>,
    /// The token types that are accepted, in order of preference: the challenge offers each that there is a key of, and clients
    /// take the first that they can mint. Type 2 (blind RSA) is verified with the published key; 5 (ristretto255) and 1 (P-384)
    /// with the issuer's secret, so only where one operator runs both, and `secrets` is set. A forged token of type 1 costs this
    /// gateway about a millisecond of CPU, of the others some ten microseconds.
    #[schemars(extend("x-accepted" = "a list of 2, 5 and 1, each once at most"))]
    pub types: Vec<u16>,
    /// A directory with copies of the issuer's key files for types 5 and 1 (`*.type5` and `*.type1` in its `[keys] directory`,
    /// mode 0600). It is read with each fetch of the directory, so a copy of a new key is taken up when it is there: copy it
    /// while the key is published ahead.
    pub secrets: Option<PathBuf>,
    /// A private file for the directory's keys, so that a gateway can start while the issuer is away. Without it they
    /// are kept in `issuer-keys.json` beside the directory of an embedded store, and with a shared store not at all.
    pub saved: Option<PathBuf>,
    /// How often to fetch the directory, at least. It is fetched earlier after its `max-age`, when a known key comes
    /// into use or retires, and after a token of an unknown key.
    pub poll: ConfigDuration,
    /// How long tokens of a key stay good if the directory has no `not-after` for it: counted from its `not-before`, or
    /// from when the gateway first saw it.
    pub key_lifetime: ConfigDuration,
    /// How long tokens of a key stay good after the directory stopped listing it, unless it revokes the key.
    pub removed_grace: ConfigDuration,
}

impl Default for Issuer {
    fn default() -> Self {
        Self {
            directory: None,
            keys: None,
            ca: None,
            types: vec![TokenType::BlindRsa2048.code()],
            secrets: None,
            saved: None,
            poll: ConfigDuration::minutes(5),
            key_lifetime: ConfigDuration::days(90),
            removed_grace: ConfigDuration::hours(1),
        }
    }
}

impl Issuer {
    /// The types that are accepted; nothing where the list is not one.
    pub(crate) fn token_types(&self) -> Option<TokenTypes> {
        TokenTypes::new(&self.types)
    }
}

/// The challenge that tokens must answer.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChallengeConfig {
    /// The issuer's name.
    pub issuer_name: String,
    /// The gateway's name, as agents have it in their `url` (or as their `origin`); the same for every gateway of a
    /// fleet, so that tokens are good at any of them. Several are joined by commas: another list is another challenge,
    /// for which old tokens are no good.
    pub origin: String,
    /// For how long a client may keep the challenge: ten minutes at most, for its mark follows the memory that records tokens.
    #[serde(default = "default_max_age")]
    pub max_age: ConfigDuration,
    /// Write the challenge without quotation marks, for clients of 2023 that refuse them.
    #[serde(default)]
    pub bare: bool,
}

fn default_max_age() -> ConfigDuration {
    ConfigDuration::minutes(10)
}

/// Deadlines and bounds.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Client connections at once, tunnels included. For one more the oldest gives way that has neither a tunnel nor a
    /// request in progress; where there is none, it is answered 503. The limit is lower where the process may not open enough
    /// files, two for each connection and some beside; the log says so.
    pub connections: usize,
    /// Tunnels and requests at once on one HTTP/2 connection. Each is counted as one of `connections`, too. What a client sends
    /// ahead of a slow target takes up to 1 MiB for each.
    pub streams: NonZeroU32,
    /// How long a client may take for the TLS handshake, for a request's header, and for reading on in an answer.
    pub header_timeout: ConfigDuration,
    /// The largest request header, at least 8 KiB. A larger one is answered 431.
    pub header_size: Size,
    /// How long resolving and connecting to the target may take together.
    pub dial_timeout: ConfigDuration,
    /// A tunnel without traffic for this long is closed.
    pub idle_timeout: ConfigDuration,
    /// A tunnel that is open for this long is reset, whatever it carries. Without it tunnels last while bytes move.
    pub tunnel_lifetime: Option<ConfigDuration>,
    /// The most bytes a second in each direction of a tunnel, after a second's worth at once; at least 1 KiB. Without it
    /// tunnels are as fast as both sides.
    pub tunnel_rate: Option<Size>,
    /// A secret of at least 16 characters, the same at every gateway of a fleet, by which they share `limits.source.refusals`
    /// through the memcached of `[store]`: a source that all of them together have refused more often in a minute than one
    /// may (`refusals` * 60 + `refusals_burst`) is answered 429 for the rest of the minute, by each gateway that refuses a
    /// request of it. Approximate, as within a second or two; while the memcached is away each gateway has its own limits.
    /// The memcached learns counts under keyed digests, and no address. Without a secret limits are not shared.
    pub shared_secret: Option<Secret>,
    /// What one source may hold before it has presented a token.
    pub source: SourceLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            streams: const { NonZeroU32::new(256).unwrap() },
            header_timeout: ConfigDuration::secs(10),
            header_size: Size::kib(16),
            dial_timeout: ConfigDuration::secs(10),
            idle_timeout: ConfigDuration::minutes(10),
            tunnel_lifetime: None,
            tunnel_rate: None,
            shared_secret: None,
            source: SourceLimits::default(),
        }
    }
}

/// How the gateway logs, to standard error.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// "text" for people, "json" for machines.
    pub format: LogFormat,
    /// A line for each request: "off", "anonymous" (what happened, how long it took, how much went through) or "full"
    /// (also the client's address and the target: the log then records who went where).
    pub access: AccessLog,
}

/// What the access log holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessLog {
    /// Nothing.
    #[default]
    Off,
    /// What happened, and nothing about who or where.
    Anonymous,
    /// Who and where, too.
    Full,
}
