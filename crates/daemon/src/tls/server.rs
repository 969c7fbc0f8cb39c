//! A server's certificate, which is renewed while it serves: authorities give them for weeks, and tunnels last for
//! hours.

use super::acme::{self, AcmeConfig};
use super::client_auth::ClientAuthorities;
use super::identity::{Identity, Report};
use super::{ALPN, HTTP2, RENEW, TlsError, provider};
use crate::drain::Shutdown;
use crate::files::DataDir;
use crate::readiness::Gate;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::version::TLS13;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A server's certificate in its configuration: two files, or an authority that gives one.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate chain (PEM), own certificate first.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// Unencrypted private key (PEM).
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Certificate by ACME instead of files.
    #[serde(default)]
    pub acme: Option<AcmeConfig>,
    /// Authorities (PEM) for mutual TLS, 1.3 only; the server can tell clients apart by their certificates.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}

impl TlsConfig {
    /// With the certificate chain and private key of two PEM files.
    #[must_use]
    pub fn of_files(certificate: PathBuf, key: PathBuf) -> Self {
        Self { certificate: Some(certificate), key: Some(key), ..Self::default() }
    }

    /// Reads the files. Of a certificate from an authority nothing need be there yet.
    ///
    /// # Errors
    /// As [`ServerTls::load`], and what is missing or too much.
    pub fn load(&self) -> Result<ServerTls, TlsError> {
        let clients = self.client_ca.as_deref().map(ClientAuthorities::load).transpose()?;
        match self {
            Self { certificate: Some(certificate), key: Some(key), acme: None, .. } => {
                ServerTls::of_files(certificate, key, clients)
            }
            Self { certificate: None, key: None, acme: Some(acme), .. } => {
                acme.check()?;
                let identity = Identity::new(acme.certificate(), acme.certificate());
                let mut tls = ServerTls::new(identity, Some(acme::ALPN), clients)?;
                if acme.certificate().exists()
                    && let Err(error) = tls.identity.read_again()
                {
                    tracing::warn!(
                        "another certificate will be ordered, because the last one cannot be used: {error}"
                    );
                }
                tls.acme = Some((Arc::new(acme.clone()), None));
                Ok(tls)
            }
            _ => Err(TlsError::Source),
        }
    }

    /// The same, and takes the folder that belongs to a certificate from an authority. Blocks on the disk.
    ///
    /// # Errors
    /// As [`TlsConfig::load`] and [`DataDir::open`].
    pub fn open(&self) -> Result<ServerTls, TlsError> {
        self.open_after(None)
    }

    /// The same while `before` serves: a folder that both have is not taken twice.
    pub(super) fn open_after(&self, before: Option<&ServerTls>) -> Result<ServerTls, TlsError> {
        let mut tls = self.load()?;
        if let Some((config, folder)) = &mut tls.acme {
            let held = before.and_then(|before| before.acme.as_ref());
            let held = held.filter(|(theirs, _)| theirs.state == config.state);
            *folder = match held.and_then(|(_, folder)| folder.clone()) {
                Some(folder) => Some(folder),
                None => Some(Arc::new(DataDir::open(&config.state)?)),
            };
        }
        Ok(tls)
    }
}

/// A server that shows a certificate.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    pub(super) identity: Arc<Identity>,
    /// `None` where anyone may connect.
    clients: Option<Arc<ClientAuthorities>>,
    /// The folder only once this server serves.
    acme: Option<(Arc<AcmeConfig>, Option<Arc<DataDir>>)>,
}

impl ServerTls {
    /// Reads the certificate chain and private key of two PEM files.
    ///
    /// # Errors
    /// Names the file: missing, without a certificate or a key in it, or a key that is not the certificate's.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::of_files(certificate, key, None)
    }

    fn of_files(
        certificate: &Path,
        key: &Path,
        clients: Option<ClientAuthorities>,
    ) -> Result<Self, TlsError> {
        let tls = Self::new(Identity::new(certificate.to_owned(), key.to_owned()), None, clients)?;
        tls.identity.read_again()?;
        Ok(tls)
    }

    fn new(
        identity: Identity,
        also: Option<&[u8]>,
        clients: Option<ClientAuthorities>,
    ) -> Result<Self, TlsError> {
        let (identity, clients) = (Arc::new(identity), clients.map(Arc::new));
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Identity>::clone(&identity);
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = match &clients {
            Some(clients) => {
                let verifier: Arc<dyn ClientCertVerifier> = Arc::<ClientAuthorities>::clone(clients);
                let builder = builder.with_protocol_versions(&[&TLS13]).map_err(TlsError::Provider)?;
                builder.with_client_cert_verifier(verifier)
            }
            None => {
                let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Provider)?;
                builder.with_no_client_auth()
            }
        };
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = [ALPN].into_iter().chain(also).map(<[u8]>::to_vec).collect();
        // A ticket links the connections of a client that uses it.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config), identity, clients, acme: None })
    }

    /// What connections are accepted with.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Whether clients have to show a certificate of [`TlsConfig::client_ca`], as at first, or may. One that is shown has to be good
    /// in both cases. Holds for handshakes to come, whichever configuration they are accepted with.
    pub fn require_client_certificates(&self, are_required: bool) {
        self.clients.iter().for_each(|clients| clients.require(are_required));
    }

    /// The same for a server that may speak HTTP/2, too.
    pub(super) fn speaking(&self, http2: bool) -> Arc<ServerConfig> {
        let mut config = self.config();
        if http2 {
            Arc::make_mut(&mut config).alpn_protocols.insert(0, HTTP2.to_vec());
        }
        config
    }

    /// What is done about a certificate that ends, or has to be.
    pub(super) const fn advice(&self) -> &'static str {
        if self.acme.is_some() { "The server orders another one while it runs" } else { RENEW }
    }

    /// Keeps the certificate good, and `gate` and `ends` (its end, in seconds since 1970) up to date, until the stop. Open
    /// connections keep the old certificate. What cannot be used changes nothing, and the log gives the reason.
    ///
    /// An authority connects to this server, so nothing is ordered before `listening`.
    pub async fn renew(
        self,
        gate: Gate,
        ends: impl Fn(u64),
        listening: impl Future<Output = ()>,
        shutdown: Shutdown,
    ) {
        let (mut report, mut reloads) = (Report::new(gate, ends), shutdown.reloads());
        let renewing = async {
            match &self.acme {
                Some((config, Some(folder))) => {
                    let authority = acme::Authority::new(Arc::clone(config), Arc::clone(folder));
                    listening.await;
                    // While it drains it takes no connections, so no name could be proved.
                    tokio::select! {
                        () = acme::keep(&self.identity, &authority, report, reloads) => {}
                        () = shutdown.draining() => {}
                    }
                }
                _ => self.identity.follow(&mut report, &mut reloads, RENEW).await,
            }
        };
        let following = async {
            if let Some(clients) = &self.clients {
                clients.follow(shutdown.reloads()).await;
            }
        };
        shutdown.until_stopped(async { tokio::join!(renewing, following) }).await;
    }
}
