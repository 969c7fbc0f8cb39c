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
    /// is spent on all three, and two decide, so each of them may be lost, one after another. Needs transport = "pipelined".
    pub replicas: Vec<Vec<String>>,
    /// How commands travel: "pipelined" (a connection carries those of all callers at once) or "pooled" (a connection
    /// a command).
    pub transport: TransportKind,
    /// How long a command may take, as long again may it wait for a connection of the pool, and connecting may take two and a
    /// half times as long. What takes longer is answered 503, and its connection is closed.
    pub timeout: ConfigDuration,
    /// When the token is looked up: "beside" the verification of the signature, "before" it, or "off" (the spend alone,
    /// one command a check).
    pub hint: CheckTiming,
    /// RAM for the cache of spent keys, for each token key: replays of them are refused without a store command. "0B"
    /// for none.
    pub spent_cache: Size,
    /// Pooled: connections to each address, for each worker. By Little's law: checks a second and worker, times their latency,
    /// and three standard deviations more.
    pub pool_size: usize,
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
            hint: CheckTiming::Beside,
            spent_cache: Size::mib(16),
            pool_size: 16,
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
