//! `[store]`: the double-spend store.

use postern_config::{ConfigDuration, Size};
use postern_spend::Fsync;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Record of spent tokens.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// "embedded" (one gateway) or "memcached" (shared by a fleet).
    pub kind: StoreKind,
    /// Directory of the embedded store, for one gateway process.
    pub path: PathBuf,
    /// Sync of the embedded store, before each answer ("always") or at an interval, whose tokens a power loss may make good
    /// again.
    #[serde(with = "fsync")]
    #[schemars(with = "String")]
    pub fsync: Fsync,
    /// Shared store, for kind = "memcached".
    pub memcached: MemcachedConfig,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            kind: StoreKind::Embedded,
            path: "postern-data/spent".into(),
            fsync: Fsync::default(),
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
    /// "host:port" or "unix:/path"; several must lead to the same records.
    pub addresses: Vec<String>,
    /// Instead of `addresses`, three lists of independent replicas; one may be lost at a time. Needs "pipelined".
    pub replicas: Vec<Vec<String>>,
    /// Connection for all callers ("pipelined") or for each command ("pooled").
    pub transport: TransportKind,
    /// Time for a command, then 503.
    pub timeout: ConfigDuration,
    /// Early refusal of replays: "beside" verification, "before" it, or "off".
    pub hint: CheckTiming,
    /// RAM for each token key to refuse replays without the store.
    pub spent_cache: Size,
    /// Pooled connections for each address and worker.
    pub pool_size: usize,
    /// TLS to the store, else plain TCP.
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

/// Transport of commands to the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// A connection carries the commands of all callers at once.
    Pipelined,
    /// A connection a command.
    Pooled,
}

/// Time of the check.
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
    /// Trusted authorities (PEM), instead of the platform's.
    pub ca: Option<PathBuf>,
    /// Name in the certificate, if not the address's host.
    pub server_name: Option<String>,
    /// Client certificate chain (PEM).
    pub certificate: Option<PathBuf>,
    /// Unencrypted private key (PEM).
    pub key: Option<PathBuf>,
}

/// "always", or an interval.
mod fsync {
    use super::{ConfigDuration, Deserialize, Fsync};
    use serde::{Deserializer, Serializer, de::Error};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fsync, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "always" {
            return Ok(Fsync::Always);
        }
        let interval = text.parse().map(|interval: ConfigDuration| Fsync::Interval(interval.get()));
        interval.map_err(|error| {
            D::Error::custom(format_args!("{error}, or \"always\" to sync before each answer"))
        })
    }

    pub(super) fn serialize<S: Serializer>(fsync: &Fsync, serializer: S) -> Result<S::Ok, S::Error> {
        match fsync {
            Fsync::Always => serializer.serialize_str("always"),
            Fsync::Interval(interval) => serializer.collect_str(&ConfigDuration(*interval)),
        }
    }
}
