//! A server's certificate, which is renewed while it serves: authorities give them for weeks, and tunnels last for
//! hours.

use super::validity::{Validity, Verdict};
use super::{ALPN, HTTP2, TlsError, identity, provider};
use crate::drain::Shutdown;
use crate::readiness::Gate;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// How often to look whether a certificate still is good.
const LOOKS: Duration = Duration::from_secs(60);

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
    shown: ArcSwap<Shown>,
}

#[derive(Debug)]
struct Shown {
    key: Arc<CertifiedKey>,
    validity: Option<Validity>,
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
            shown: ArcSwap::from_pointee(read(certificate, key)?),
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

    /// The same for a server that may speak HTTP/2, too.
    #[must_use]
    pub fn speaking(&self, http2: bool) -> Arc<ServerConfig> {
        let mut config = self.config();
        if http2 {
            Arc::make_mut(&mut config).alpn_protocols.insert(0, HTTP2.to_vec());
        }
        config
    }

    /// What an operator should know of the certificate now; `None` where all is well.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        match self.verdict() {
            Verdict::Good => None,
            Verdict::EndsSoon(text) | Verdict::Refused(text) => Some(text),
        }
    }

    fn verdict(&self) -> Verdict {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let file = self.identity.certificate.display().to_string();
        self.identity.shown.load().validity.map_or(Verdict::Good, |validity| validity.verdict(&file, now))
    }

    /// Reads the files again on each reload request, and keeps `gate` and `ends` (the certificate's end, in seconds since 1970) up
    /// to date, until the stop. Open connections keep the old certificate. Files that cannot be used change nothing, and the log
    /// gives the reason.
    pub async fn renew(self, gate: Gate, ends: impl Fn(u64), shutdown: Shutdown) {
        let mut reloads = shutdown.reloads();
        let mut logged = Verdict::Good;
        let renewing = async {
            loop {
                self.report(&gate, &mut logged);
                ends(self.identity.shown.load().validity.map_or(0, |validity| validity.until));
                if timeout(LOOKS, reloads.next()).await.is_err() {
                    continue; // the clock went on
                }
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
        shown.store(Arc::new(read(certificate, key)?));
        Ok(())
    }

    /// Sets the gate, and logs a verdict of another kind than the last one that was logged.
    fn report(&self, gate: &Gate, logged: &mut Verdict) {
        let verdict = self.verdict();
        let is_new = discriminant(&verdict) != discriminant(logged);
        match &verdict {
            Verdict::Good if is_new => tracing::info!("the certificate is good again"),
            Verdict::EndsSoon(text) if is_new => tracing::warn!("degraded: certificate: {text}"),
            Verdict::Refused(text) if is_new => tracing::error!("not ready: certificate: {text}"),
            _ => {}
        }
        match &verdict {
            Verdict::Good => gate.set_ready(),
            Verdict::EndsSoon(text) => gate.set_degraded(text),
            Verdict::Refused(text) => gate.set_not_ready(text),
        }
        *logged = verdict;
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shown.load().key))
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Shown, TlsError> {
    let (chain, key_der) = identity(certificate, key)?;
    let validity = chain.first().and_then(Validity::of);
    let certified = CertifiedKey::from_der(chain, key_der, &provider()).map_err(|source| {
        TlsError::Refused { certificate: certificate.to_owned(), key: key.to_owned(), source }
    })?;
    Ok(Shown { key: Arc::new(certified), validity })
}
