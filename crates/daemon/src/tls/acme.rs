//! A certificate from an authority that speaks ACME (RFC 8555), ordered and renewed while the server runs. It proves that it has
//! a name by a handshake on its own TLS port (TLS-ALPN-01, RFC 8737), so nothing else has to listen.

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

use super::identity::Shown;
use super::validity::{Validity, names};
use rustls_pki_types::DnsName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The certificate chain and its key, in the folder of [`AcmeConfig::state`].
const CERTIFICATE: &str = "certificate.pem";
/// The account at the authority, in the same folder.
const ACCOUNT: &str = "account.json";

/// A server whose certificate comes from an authority.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcmeConfig {
    /// The names of the certificate: those by which clients connect. The authority looks for each at port 443, which must lead to
    /// this server's TLS listener, and to no other server.
    pub names: Vec<String>,
    /// Whether you agree to the authority's terms of service; without it nothing is ordered.
    #[serde(default)]
    pub agree_to_terms: bool,
    /// Folder for the account and the certificate, which only this server may use (mode 0700). Keep it: authorities limit how
    /// often they give the same certificate.
    pub state: PathBuf,
    /// The authority's directory.
    #[serde(default = "lets_encrypt")]
    pub directory: String,
    /// PEM certificates to trust for the authority's directory instead of the platform's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Where the authority may write to, such as "mailto:admin@gateway.example".
    #[serde(default)]
    pub contact: Option<String>,
}

fn lets_encrypt() -> String {
    "https://acme-v02.api.letsencrypt.org/directory".to_owned()
}

/// Why a certificate cannot be ordered with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum AcmeConfigError {
    /// There is no name.
    #[error("tls.acme.names is empty: list the names by which clients connect")]
    NoNames,
    /// A name that no certificate can be had for in this way.
    #[error(
        "tls.acme.names has {0:?}, which is no host name: addresses and wildcards cannot be proved on the TLS port; \
         give their certificate as files"
    )]
    Name(String),
    /// Not a place to ask.
    #[error("tls.acme.directory is {0:?}, which is no https:// URL: give the one that the authority names")]
    Directory(String),
    /// The terms of service.
    #[error(
        "tls.acme.agree_to_terms is false: read the terms of service of {0}, then set it to true, or give a certificate as files"
    )]
    Terms(String),
}

impl AcmeConfig {
    pub(super) fn check(&self) -> Result<(), AcmeConfigError> {
        if self.names.is_empty() {
            return Err(AcmeConfigError::NoNames);
        }
        let is_host = |name: &&String| {
            DnsName::try_from(name.as_str()).is_ok()
                && name.parse::<std::net::IpAddr>().is_err()
                && !name.ends_with('.')
        };
        if let Some(name) = self.names.iter().find(|name| !is_host(name)) {
            return Err(AcmeConfigError::Name(name.clone()));
        }
        if !self.directory.parse::<reqwest::Url>().is_ok_and(|url| url.scheme() == "https") {
            return Err(AcmeConfigError::Directory(self.directory.clone()));
        }
        if !self.agree_to_terms {
            return Err(AcmeConfigError::Terms(self.directory.clone()));
        }
        Ok(())
    }

    /// How long a certificate is valid, if it has all of the names.
    fn fits(&self, shown: &Shown) -> Option<Validity> {
        let wanted: BTreeSet<_> = self.names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let own = shown.own()?;
        if wanted.is_subset(&names(own)) { Validity::of(own) } else { None }
    }

    /// Where the certificate and its key are kept.
    pub(super) fn certificate(&self) -> PathBuf {
        self.state.join(CERTIFICATE)
    }
}
