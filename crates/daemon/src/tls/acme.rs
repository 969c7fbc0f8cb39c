//! A certificate from an authority by ACME (RFC 8555), ordered and renewed while the server runs. The server proves a name by a
//! handshake on its own TLS port (TLS-ALPN-01, RFC 8737), so no other port has to listen.

mod authority;
mod challenge;
mod order;
mod renewal;
mod when;

#[cfg(test)]
mod tests;

pub(super) use authority::Authority;
pub(super) use challenge::{ALPN, Challenges};
pub(super) use renewal::keep;

use super::validity::{Validity, names};
use rustls_pki_types::{CertificateDer, DnsName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// File of the certificate chain and its key, in the directory [`AcmeConfig::state`].
const CERTIFICATE: &str = "certificate.pem";
/// File of the account at the authority, in the same directory.
const ACCOUNT: &str = "account.json";

/// A server whose certificate comes from an authority.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcmeConfig {
    /// Names for clients; port 443 of each must lead to this listener alone.
    pub names: Vec<String>,
    /// Consent to the authority's terms, required.
    #[serde(default)]
    pub agree_to_terms: bool,
    /// Private directory (mode 0700) of the certificate. Keep it: authorities limit orders.
    pub state: PathBuf,
    /// URL of the authority.
    #[serde(default = "lets_encrypt")]
    pub directory: String,
    /// Trusted authorities (PEM), instead of the platform's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Contact for the authority, such as "mailto:admin@gateway.example".
    #[serde(default)]
    pub contact: Option<String>,
}

fn lets_encrypt() -> String {
    "https://acme-v02.api.letsencrypt.org/directory".to_owned()
}

impl AcmeConfig {
    /// Returns the reason that no certificate can be ordered with this configuration.
    pub(super) fn fault(&self) -> Option<String> {
        let is_host = |name: &&String| {
            DnsName::try_from(name.as_str()).is_ok()
                && name.parse::<std::net::IpAddr>().is_err()
                && !name.ends_with('.')
        };
        if self.names.is_empty() {
            return Some("tls.acme.names is empty: list the names by which clients connect".to_owned());
        }
        if let Some(name) = self.names.iter().find(|name| !is_host(name)) {
            return Some(format!(
                "tls.acme.names has {name:?}, which is no host name: addresses and wildcards cannot be proved on the TLS port; \
                 give their certificate as files"
            ));
        }
        let directory = &self.directory;
        if !directory.parse::<reqwest::Url>().is_ok_and(|url| url.scheme() == "https") {
            return Some(format!(
                "tls.acme.directory is {directory:?}, which is no https:// URL: give the one that the authority names"
            ));
        }
        (!self.agree_to_terms).then(|| {
            format!(
                "tls.acme.agree_to_terms is false: read the terms of service of {directory}, then set it to true, or give a \
                 certificate as files"
            )
        })
    }

    /// Returns the validity of a certificate; `None` unless it has all of the names.
    fn fits(&self, own: &CertificateDer<'_>) -> Option<Validity> {
        let wanted: BTreeSet<_> = self.names.iter().map(|name| name.to_ascii_lowercase()).collect();
        if wanted.is_subset(&names(own)) { Validity::of(own) } else { None }
    }

    /// Returns the path of the certificate and its key.
    pub(super) fn certificate(&self) -> PathBuf {
        self.state.join(CERTIFICATE)
    }
}
