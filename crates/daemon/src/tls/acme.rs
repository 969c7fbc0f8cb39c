//! A certificate from an authority by ACME (RFC 8555), ordered and renewed while the server runs. The server proves a name by a
//! handshake on its own TLS port (TLS-ALPN-01, RFC 8737), so no other port has to listen.

mod order;
mod renewal;

#[cfg(test)]
mod tests;

pub(super) use order::Authority;
pub(super) use renewal::keep;

use super::validity::{Validity, names};
use crate::tls::provider;
use parking_lot::RwLock;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, DnsName, PrivateKeyDer, PrivatePkcs8KeyDer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

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

/// ALPN protocol that only authorities offer (RFC 8737, section 6.2).
pub(crate) const ALPN: &[u8] = b"acme-tls/1";

/// Certificates for the authority's validation, by name, while an order is open. Each contains the digest of a key authorization,
/// which proves that the name is this server's (RFC 8737, section 3).
#[derive(Debug, Default)]
pub(crate) struct Challenges(RwLock<HashMap<String, Arc<CertifiedKey>>>);

impl Challenges {
    /// `true` if a handshake is an authority's validation of a name: it offers no other protocol.
    pub(crate) fn is_validation(hello: &ClientHello<'_>) -> bool {
        hello.alpn().is_some_and(|mut offered| offered.next() == Some(ALPN) && offered.next().is_none())
    }

    /// Returns the certificate for the name under validation.
    pub(crate) fn answer(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().get(&hello.server_name()?.to_ascii_lowercase()).cloned()
    }

    /// Presents the digest (32 bytes) of a key authorization to handshakes for `name`.
    pub(super) fn show(&self, name: &str, digest: &[u8]) -> Result<(), Box<dyn Error>> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let own = KeyPair::generate()?;
        let certificate = params.self_signed(&own)?.der().clone();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));
        // Not `from_der`, which refuses the ACME extension.
        let certified = CertifiedKey::new(vec![certificate], provider().key_provider.load_private_key(key)?);
        self.0.write().insert(name.to_ascii_lowercase(), Arc::new(certified));
        Ok(())
    }

    pub(super) fn forget(&self) {
        self.0.write().clear();
    }
}
