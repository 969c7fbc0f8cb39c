//! A server's certificate, which is renewed while it serves: authorities give them for weeks, and tunnels last for
//! hours.

use super::{ALPN, TlsError, identity, provider};
use crate::drain::Shutdown;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A server's certificate in its configuration.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file with the certificate chain, the server's own first. It and the key are read again on SIGHUP.
    pub certificate: PathBuf,
    /// PEM file with the certificate's private key, unencrypted.
    pub key: PathBuf,
}

impl TlsConfig {
    /// Reads the files.
    ///
    /// # Errors
    /// As [`ServerTls::load`].
    pub fn load(&self) -> Result<ServerTls, TlsError> {
        ServerTls::load(&self.certificate, &self.key)
    }
}

/// A server with the certificate chain and private key of two PEM files.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    identity: Arc<Identity>,
}

/// The certificate shown to clients, and the files it was read from.
#[derive(Debug)]
struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    shown: ArcSwap<CertifiedKey>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the file: missing, without a certificate or a key in it, or a key that is not the certificate's.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let identity = Arc::new(Identity {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            shown: ArcSwap::new(read(certificate, key)?),
        });
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Identity>::clone(&identity);
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Provider)?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A ticket links the connections of a client that uses it.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config), identity })
    }

    /// What connections are accepted with.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Reads the files again on each reload request, until the stop. Open connections keep the old certificate. Files
    /// that cannot be used change nothing, and the log gives the reason.
    pub async fn renew(self, shutdown: Shutdown) {
        let mut reloads = shutdown.reloads();
        let renewing = async {
            loop {
                reloads.next().await;
                match self.read_again() {
                    Ok(()) => tracing::info!(
                        certificate = %self.identity.certificate.display(),
                        "the certificate was read again and is used for new connections"
                    ),
                    Err(error) => tracing::warn!(
                        "the new certificate or key cannot be used, so the old ones stay: {error}"
                    ),
                }
            }
        };
        shutdown.until_stopped(renewing).await;
    }

    fn read_again(&self) -> Result<(), TlsError> {
        let Identity { certificate, key, shown } = &*self.identity;
        shown.store(read(certificate, key)?);
        Ok(())
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown.load_full())
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let (chain, key_der) = identity(certificate, key)?;
    let certified = CertifiedKey::from_der(chain, key_der, &provider()).map_err(|source| {
        TlsError::Refused { certificate: certificate.to_owned(), key: key.to_owned(), source }
    })?;
    Ok(Arc::new(certified))
}
