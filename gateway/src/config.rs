//! The gateway's configuration file. `docs/reference/configuration.md` is generated from these types.

mod egress;
mod next_hop;
mod pattern;
mod resolver;
mod store;

pub use egress::{Action, Egress, Lever, Ports, PortsWord, Rule, UdpTemplate};
pub use next_hop::{Balance, HopKind, HopUrl, NextHop};
pub(crate) use next_hop::{DIRECT, HopTls};
pub use pattern::{Hosts, Pattern};
pub use resolver::{NameServer, ResolverConfig, ResolverKind};
pub use store::{CheckTiming, MemcachedConfig, StoreConfig, StoreKind, StoreTls, TransportKind};

use postern_config::{Address, ConfigDuration, Secret, Size, address};
use postern_daemon::drain::DrainConfig;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::sources::SourceLimits;
use postern_daemon::tls::TlsConfig;
use postern_telemetry::log::LogFormat;
use postern_telemetry::traces::TracingConfig;
use postern_token::TokenType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// hyper's minimum read buffer.
const LEAST_HEADER_SIZE: Size = Size::kib(8);
/// Minimum tunnel rate, per second. A slower tunnel is of no practical use.
const LEAST_TUNNEL_RATE: Size = Size::kib(1);
/// Minimum characters of the secret. A reader of the shared memory could guess a shorter one, and with it clients' addresses.
const LEAST_SECRET: usize = 16;

/// A gateway.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Client and admin listeners.
    #[serde(default)]
    pub listen: Listen,
    /// TLS towards clients, else plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Listener through which your other gateways open tunnels without tokens.
    pub peers: Option<Peers>,
    /// Issuer of accepted tokens: set `directory` or `keys`.
    pub issuer: Issuer,
    /// Challenge that tokens answer, the same in a whole fleet. Another `issuer_name` or `origin` voids all tokens.
    pub challenge: ChallengeConfig,
    /// Record of spent tokens.
    #[serde(default)]
    pub store: StoreConfig,
    /// Targets of tunnels: the first matching rule decides; without one, `ports`, `private` and `own` do.
    #[serde(default)]
    pub egress: Egress,
    /// Timeouts and bounds.
    #[serde(default)]
    pub limits: Limits,
    /// Shutdown on SIGTERM.
    #[serde(default)]
    pub drain: DrainConfig<30>,
    /// Logs, to standard error.
    #[serde(default)]
    pub log: Log,
    /// Traces, to an OTLP collector.
    #[serde(default)]
    pub tracing: TracingConfig,
}

impl Config {
    /// Checks what the types cannot express.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Limits { header_size, tunnel_rate, ref shared_secret, .. } = self.limits;
        if header_size.0 < LEAST_HEADER_SIZE.0 {
            return Err(format!(
                "limits.header_size = \"{header_size:?}\" is too small for a token's header: write at least \"8KiB\""
            ));
        }
        if let Some(rate) = tunnel_rate.filter(|rate| rate.0 < LEAST_TUNNEL_RATE.0) {
            return Err(format!(
                "limits.tunnel_rate = \"{rate:?}\" a second is too slow for any use: write at least \"1KiB\", or leave it out"
            ));
        }
        match shared_secret {
            Some(_) if self.store.kind != StoreKind::Memcached => Err(
                "limits.shared_secret needs store.kind = \"memcached\": the gateways of a fleet share limits through its \
                 memcached; leave the secret out where there is one gateway"
                    .to_owned(),
            ),
            Some(secret) if secret.expose().chars().count() < LEAST_SECRET => Err(format!(
                "limits.shared_secret is too short: anyone who reads the shared memory could guess it and find clients' \
                 addresses; write at least {LEAST_SECRET} characters, such as the output of \"openssl rand -hex 32\""
            )),
            _ => self.egress.check(),
        }
    }
}

/// Client and admin listeners.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Listener for clients.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// Live page, `/metrics`, `/livez` and `/readyz`. Never expose them to clients.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub admin: SocketAddr,
    /// Threads that serve connections; 0 means one per core.
    pub workers: usize,
    /// Longest wait for keys and store at the start; then clients get 503.
    pub patience: ConfigDuration,
    /// Accept HTTP/2, with or without TLS.
    pub http2: bool,
    /// Refuse HTTP/1.1 requests without Host; false admits old clients.
    pub require_host: bool,
    /// Networks of balancers, which must send PROXY headers (version 1 or 2) and can claim any client address.
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

/// A listener for the operator's other gateways, over TLS 1.3 with certificates of both sides.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// Address in the `urls` of their next hops.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// Certificate chain (PEM), own certificate first.
    pub certificate: PathBuf,
    /// Unencrypted private key (PEM).
    pub key: PathBuf,
    /// Authority (PEM) for your gateways alone: its certificates replace tokens.
    pub client_ca: PathBuf,
}

impl Peers {
    /// Returns the listener's settings in the form of a server's TLS.
    #[must_use]
    pub fn tls(&self) -> TlsConfig {
        TlsConfig {
            client_ca: Some(self.client_ca.clone()),
            ..TlsConfig::of_files(self.certificate.clone(), self.key.clone())
        }
    }
}

/// Issuer of accepted tokens: exactly one of `directory` and `keys` is given.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Issuer {
    /// URL of the key directory.
    pub directory: Option<String>,
    /// File with the directory's JSON instead; SIGHUP rereads it.
    pub keys: Option<PathBuf>,
    /// Trusted authorities (PEM), instead of the platform's.
    pub ca: Option<PathBuf>,
    /// Accepted token types, preferred first; 5 and 1 need `secrets`.
    #[schemars(extend("x-accepted" = "a list of 2, 5 and 1, each once at most"))]
    pub types: Vec<u16>,
    /// Directory with copies of the issuer's `*.type5` and `*.type1` files, mode 0600.
    pub secrets: Option<PathBuf>,
    /// File of fetched keys, for starts while the issuer is away. With an embedded store by default `issuer-keys.json` next to
    /// it.
    pub saved: Option<PathBuf>,
    /// Longest time between fetches of the directory.
    pub poll: ConfigDuration,
    /// Life of a key without `not-after`, from its `not-before` or first sight.
    pub key_lifetime: ConfigDuration,
    /// Time that tokens stay good after the directory drops their key, unless it is revoked.
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

/// Challenge that tokens answer.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChallengeConfig {
    /// The issuer's name.
    pub issuer_name: String,
    /// The gateway's name, as in `url` or `origin` of agents; commas join several.
    pub origin: String,
    /// Time that clients may keep the challenge, 10 minutes at most.
    #[serde(default = "ConfigDuration::of_secs::<600>")]
    pub max_age: ConfigDuration,
}

/// Timeouts and bounds.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections and HTTP/2 streams; beyond, the oldest idle one gives way, else 503. Scarce file descriptors lower it.
    pub connections: usize,
    /// Tunnels and requests on one HTTP/2 connection.
    pub streams: NonZeroU32,
    /// Time for a TLS handshake, a request's header, and a pause in reading an answer.
    pub header_timeout: ConfigDuration,
    /// Largest request header, at least 8 KiB.
    pub header_size: Size,
    /// Time to resolve and connect to a target.
    pub dial_timeout: ConfigDuration,
    /// Time without traffic after which a tunnel is closed.
    pub idle_timeout: ConfigDuration,
    /// Time without a datagram after which UDP is closed.
    pub udp_idle_timeout: ConfigDuration,
    /// Age at which even a busy tunnel is reset.
    pub tunnel_lifetime: Option<ConfigDuration>,
    /// Bytes a second in each direction of a tunnel, at least 1 KiB. Each datagram counts 66 bytes more than it has, as on a link;
    /// where a next hop sends it, only its capsule counts.
    pub tunnel_rate: Option<Size>,
    /// Secret of 16 characters or more by which a fleet shares `limits.source.refusals` through memcached.
    pub shared_secret: Option<Secret>,
    /// Limits for one source, an IPv4 address or IPv6 network.
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
            udp_idle_timeout: ConfigDuration::minutes(2),
            tunnel_lifetime: None,
            tunnel_rate: None,
            shared_secret: None,
            source: SourceLimits::default(),
        }
    }
}

/// Logs, to standard error.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Format of lines.
    pub format: LogFormat,
    /// Line per request: "anonymous" has outcome, time and bytes, "full" also client address and target.
    pub access: AccessLog,
}

/// Content of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessLog {
    /// Nothing.
    #[default]
    Off,
    /// Outcomes, without clients and targets.
    Anonymous,
    /// Clients and targets, too.
    Full,
}
