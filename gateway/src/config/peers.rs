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
    /// The address that they connect to, by the `urls` of an `[[egress.next_hops]]` of theirs.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// PEM file with the certificate chain that they are shown, this gateway's own first. It and the key are read again when they
    /// change, and on SIGHUP.
    pub certificate: PathBuf,
    /// PEM file with the certificate's private key, unencrypted.
    pub key: PathBuf,
    /// PEM file with the authority of their certificates. Whoever holds a certificate of it opens tunnels without a token, so it
    /// is an authority of yours, for nothing else: neither a public one nor that of `tls.client_ca`, which the start refuses. Read again as the
    /// certificate is.
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
