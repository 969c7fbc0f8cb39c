//! The double-spend store's part of the configuration.

use postern_config::{ConfigDuration, Size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The double-spend store.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Which store: "embedded" (one gateway, files of its own) or "memcached" (a fleet shares it).
    pub kind: StoreKind,
    /// The directory of the embedded store. One gateway process has it to itself.
    pub path: PathBuf,
    /// When spent records reach the disk: "always" (before each answer) or an interval such as "1s". A killed process
    /// loses nothing either way; see docs/how-it-works/spend-contract.md for what a power loss costs.
    pub fsync: Fsync,
    /// The store that a fleet shares. Used with kind = "memcached" only.
    pub memcached: MemcachedConfig,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            kind: StoreKind::Embedded,
            path: "postern-data/spent".into(),
            fsync: Fsync::Interval(ConfigDuration::secs(1)),
            memcached: MemcachedConfig::default(),
        }
    }
}

/// The kinds of double-spend store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// Files of this process.
    Embedded,
    /// memcached servers, directly or through mcrouter or twemproxy.
    Memcached,
}

/// The store that a fleet shares: memcached servers, directly or through mcrouter or twemproxy.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemcachedConfig {
    /// Where it listens: "host:port" (an IPv6 address in brackets) or "unix:/path". Several addresses must lead to the
    /// same records, such as two mcrouters with one configuration; two plain memcached servers hold different records
    /// and are refused.
    pub addresses: Vec<String>,
    /// In place of `addresses`, three lists of them, each to a set of records of its own on other machines: a quorum. A token
    /// is spent on all three, and two decide, so each of them may be lost, one after another. Needs challenge.bind =
    /// "offer" and transport = "pipelined".
    pub replicas: Vec<Vec<String>>,
    /// How commands travel: "pipelined" (a connection carries those of all callers at once) or "pooled" (a connection
    /// a command).
    pub transport: TransportKind,
    /// How long a command may take. What takes longer is answered 503, and its connection is closed.
    pub timeout: ConfigDuration,
    /// How long connecting may take, and then proving that the connection leads to the same records as the others.
    pub connect_timeout: ConfigDuration,
    /// When the token is looked up: "beside" the verification of the signature, "before" it, or "off" (the spend alone,
    /// one command a check).
    pub hint: CheckTiming,
    /// What to do when the store has lost records, so that spent tokens may be spent again: "warn" (continue, and
    /// report it in log, metrics and readiness), "refuse" (503 for tokens of the key), or "rotate" (treat the key as
    /// retired, so that clients come back with tokens of another as soon as the issuer publishes one).
    pub on_loss: LossPolicy,
    /// How often the canaries are read and the endpoints proven.
    pub canary_interval: ConfigDuration,
    /// After a write without a reply, read the record and admit if this attempt wrote it. Only where every record has
    /// one copy, never behind a quorum.
    pub ask_whose: bool,
    /// RAM for the cache of spent keys, for each token key: replays of them are refused without a store command. "0B"
    /// for none.
    pub spent_cache: Size,
    /// Pipelined: connections to each address, for each worker.
    pub connections: usize,
    /// Pipelined: commands without an answer on one connection. Further requests are answered 503 immediately.
    pub queue: usize,
    /// Pooled: checks a second that are expected of this gateway, from which the pool's size follows.
    pub checks_per_second: u32,
    /// Pooled: how long a command is expected to take, from which the pool's size follows.
    pub latency: ConfigDuration,
    /// Pooled: connections to each address, for each worker. 0 derives the number by Little's law.
    pub pool_size: usize,
    /// Pooled: how long a command may wait for a connection.
    pub checkout_timeout: ConfigDuration,
    /// Pooled: send a `get` on a connection before each use. Costs a round trip.
    pub check_on_checkout: bool,
    /// Pooled: how often idle connections are proven again.
    pub idle_probe: ConfigDuration,
    /// Pooled: how long a connection lasts before it is replaced.
    pub max_lifetime: ConfigDuration,
    /// TLS to the store. Without this section the connections are plain.
    pub tls: Option<StoreTls>,
}

impl Default for MemcachedConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            replicas: Vec::new(),
            transport: TransportKind::Pipelined,
            timeout: ConfigDuration::millis(100),
            connect_timeout: ConfigDuration::millis(250),
            hint: CheckTiming::Beside,
            on_loss: LossPolicy::Warn,
            canary_interval: ConfigDuration::secs(1),
            ask_whose: false,
            spent_cache: Size::mib(16),
            connections: 1,
            queue: 4096,
            checks_per_second: 5000,
            latency: ConfigDuration::millis(1),
            pool_size: 0,
            checkout_timeout: ConfigDuration::millis(10),
            check_on_checkout: false,
            idle_probe: ConfigDuration::secs(5),
            max_lifetime: ConfigDuration::minutes(10),
            tls: None,
        }
    }
}

/// How commands travel to the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// A connection carries the commands of all callers at once.
    Pipelined,
    /// A connection a command.
    Pooled,
}

/// When the check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckTiming {
    /// Before the signature is verified: a replay costs no cryptography, an honest token a round trip more.
    Before,
    /// While the signature is verified.
    Beside,
    /// Never: the spend alone decides.
    Off,
}

/// What to do when the store has lost records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LossPolicy {
    /// Continue, and report it in log, metrics and readiness.
    Warn,
    /// Answer tokens of the key 503.
    Refuse,
    /// Treat the key as retired.
    Rotate,
}

/// TLS to the shared store.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreTls {
    /// PEM file with the certificates to trust instead of the platform's.
    pub ca: Option<PathBuf>,
    /// The name that the store's certificate must be for, where it is not the address's host.
    pub server_name: Option<String>,
    /// PEM file with the gateway's own certificate chain, if the store requires one.
    pub certificate: Option<PathBuf>,
    /// PEM file with its private key.
    pub key: Option<PathBuf>,
}

/// When spent records reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before each answer.
    Always,
    /// At this interval.
    Interval(ConfigDuration),
}

impl<'de> Deserialize<'de> for Fsync {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "always" => Ok(Self::Always),
            interval => interval.parse().map(Self::Interval).map_err(|error| {
                serde::de::Error::custom(format_args!("{error}, or \"always\" to sync before each answer"))
            }),
        }
    }
}

impl Serialize for Fsync {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Always => serializer.serialize_str("always"),
            Self::Interval(span) => span.serialize(serializer),
        }
    }
}

impl JsonSchema for Fsync {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Fsync".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}
