//! The operator's other gateways, to which this one is a next hop.

use postern_config::{Address, address};
use postern_daemon::tls::TlsConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

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
    /// The same as a server's TLS.
    #[must_use]
    pub fn tls(&self) -> TlsConfig {
        TlsConfig {
            client_ca: Some(self.client_ca.clone()),
            ..TlsConfig::of_files(self.certificate.clone(), self.key.clone())
        }
    }
}
