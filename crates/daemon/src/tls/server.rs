//! A server's certificate, renewed while the server runs: authorities issue certificates for weeks, and tunnels last for hours.

use super::acme::{self, AcmeConfig};
use super::client_auth::ClientAuthorities;
use super::identity::{Identity, Report, unfit_for_servers};
use super::{ALPN, HTTP2, RENEW, TlsError, provider};
use crate::drain::Shutdown;
use crate::files::DataDir;
use crate::readiness::{Gate, Readiness};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{DEFAULT_VERSIONS, ServerConfig, SupportedProtocolVersion};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::AbortHandle;

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
    /// Authorities (PEM) for mutual TLS, 1.3 only; the certificates let the server distinguish clients.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}

impl TlsConfig {
    /// Configures the certificate chain and private key of two PEM files.
    pub fn of_files(certificate: PathBuf, key: PathBuf) -> Self {
        Self { certificate: Some(certificate), key: Some(key), ..Self::default() }
    }

    /// Reads the files. The files of a certificate from an authority need not exist yet.
    pub fn load(&self) -> Result<ServerTls, TlsError> {
        let clients = self.client_ca.as_deref().map(ClientAuthorities::load).transpose()?;
        match self {
            Self { certificate: Some(certificate), key: Some(key), acme: None, .. } => {
                let tls = ServerTls::new(Identity::new(certificate.clone(), key.clone()), None, clients)?;
                tls.identity.read_again()?;
                Ok(tls)
            }
            Self { certificate: None, key: None, acme: Some(acme), .. } => {
                if let Some(fault) = acme.fault() {
                    return Err(TlsError::Unusable(fault));
                }
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
            _ => Err(TlsError::Unusable(
                "[tls] takes its certificate from two files, tls.certificate and tls.key, or from an authority, [tls.acme]: set \
                 both files, or that section alone"
                    .to_owned(),
            )),
        }
    }

    /// Reads the files as [`TlsConfig::load`] does, and locks the directory of a certificate from an authority. Blocks on the
    /// disk.
    pub fn open(&self) -> Result<ServerTls, TlsError> {
        self.open_after(None)
    }

    /// Opens as [`TlsConfig::open`] does while `before` serves: a directory that both have is not locked twice.
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

/// TLS configurations of a listener.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// Configuration with the enabled versions of HTTP.
    pub serving: Arc<ServerConfig>,
    /// Configuration with HTTP/1.1 alone: a rejected client gets an answer without a request, for which HTTP/2 has no form.
    pub refusing: Arc<ServerConfig>,
}

impl ListenerTls {
    /// Creates the configurations for this certificate, with HTTP/2 if it is enabled.
    pub fn new(tls: &ServerTls, http2: bool) -> Self {
        Self { serving: tls.speaking(http2), refusing: tls.config() }
    }
}

/// TLS of a server with a certificate.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    pub(super) identity: Arc<Identity>,
    /// `None` if any client may connect.
    clients: Option<Arc<ClientAuthorities>>,
    /// The authority's configuration, and its directory once this server serves.
    acme: Option<(Arc<AcmeConfig>, Option<Arc<DataDir>>)>,
}

impl ServerTls {
    /// Reads the certificate chain and private key of two PEM files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        TlsConfig::of_files(certificate.to_owned(), key.to_owned()).load()
    }

    fn new(
        identity: Identity,
        also: Option<&[u8]>,
        clients: Option<ClientAuthorities>,
    ) -> Result<Self, TlsError> {
        let (identity, clients) = (Arc::new(identity), clients.map(Arc::new));
        let versions: &[&SupportedProtocolVersion] =
            if clients.is_some() { &[&TLS13] } else { DEFAULT_VERSIONS };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .map_err(TlsError::provider)?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::<ClientAuthorities>::clone(clients)),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::<Identity>::clone(&identity));
        config.alpn_protocols = [ALPN].into_iter().chain(also).map(<[u8]>::to_vec).collect();
        // A ticket links the connections of a client that uses it.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config), identity, clients, acme: None })
    }

    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Sets whether clients must present a certificate of [`TlsConfig::client_ca`] (initially they must), or may. A presented
    /// certificate must be valid in both cases. Applies to future handshakes, whichever configuration accepts them.
    pub fn require_client_certificates(&self, are_required: bool) {
        self.clients.iter().for_each(|clients| clients.require(are_required));
    }

    /// Returns the configuration for accepting connections, with HTTP/2 in addition if `http2`.
    fn speaking(&self, http2: bool) -> Arc<ServerConfig> {
        let mut config = self.config();
        if http2 {
            Arc::make_mut(&mut config).alpn_protocols.insert(0, HTTP2.to_vec());
        }
        config
    }

    pub(super) const fn advice(&self) -> &'static str {
        if self.acme.is_some() { "The server orders another one while it runs" } else { RENEW }
    }

    /// Keeps the certificate valid, and `gate` and `ends` (its end, in Unix seconds) up to date, until the stop. Open connections
    /// keep the old certificate. Unusable files change nothing, and readiness and the log give the reason.
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
                    // A draining server accepts no connections, so no name could be proved.
                    tokio::select! {
                        () = acme::keep(&self.identity, &authority, report, reloads) => {}
                        () = shutdown.draining() => {}
                    }
                }
                _ => self.identity.follow(&mut report, &mut reloads, RENEW, unfit_for_servers).await,
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

/// The certificate of a server across the reloads of its configuration, and the task that renews it.
#[derive(Debug)]
pub struct Renewed {
    name: &'static str,
    tls: Option<ServerTls>,
    renewal: Option<AbortHandle>,
    gate: Option<Gate>,
    readiness: Readiness,
    shutdown: Shutdown,
    ends: fn(u64),
    listening: watch::Receiver<bool>,
}

impl Renewed {
    /// Creates the state with the certificate of the start, if there is one; `name` is its name in readiness. `ends` is called
    /// with its end in Unix seconds, or with 0 if there is none any more. Nothing is ordered from an authority before
    /// `listening`.
    pub fn new(
        name: &'static str,
        tls: Option<ServerTls>,
        readiness: &Readiness,
        shutdown: &Shutdown,
        ends: fn(u64),
        listening: watch::Receiver<bool>,
    ) -> Self {
        let gate = tls.is_some().then(|| readiness.gate(name));
        let (readiness, shutdown) = (readiness.clone(), shutdown.clone());
        Self { name, tls, renewal: None, gate, readiness, shutdown, ends, listening }
    }

    pub fn current(&self) -> Option<&ServerTls> {
        self.tls.as_ref()
    }

    /// Opens the certificate of another configuration, and leaves the one in use alone. Blocks on the disk.
    pub fn open(&self, config: Option<&TlsConfig>) -> Result<Option<ServerTls>, TlsError> {
        config.map(|config| config.open_after(self.tls.as_ref())).transpose()
    }

    /// Replaces the certificate, and renews the new one from now on, until the stop.
    pub fn replace(&mut self, tls: Option<ServerTls>) {
        self.tls = tls;
        self.start();
    }

    /// Begins the renewal, and ends the previous one.
    pub fn start(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        let Some(tls) = self.tls.clone() else {
            (self.ends)(0);
            self.gate.iter().for_each(Gate::set_ready);
            return;
        };
        let gate = self.gate.get_or_insert_with(|| self.readiness.gate(self.name)).clone();
        let mut listening = self.listening.clone();
        let listening = async move { drop(listening.wait_for(|is_listening| *is_listening).await) };
        let renewal = tokio::spawn(tls.renew(gate, self.ends, listening, self.shutdown.clone()));
        self.renewal = Some(renewal.abort_handle());
    }
}

/// Puts the self-signed certificate of the start into a configuration that was read again.
pub fn keep_signed(tls: &mut Option<TlsConfig>, signed: Option<&TlsConfig>) -> Result<(), TlsError> {
    match (signed, &tls) {
        (Some(_), Some(_)) => Err(TlsError::Unusable(
            "--self-signed made a certificate, and the file has one in [tls]: choose one, and start again without the other"
                .to_owned(),
        )),
        (Some(signed), None) => {
            *tls = Some(signed.clone());
            Ok(())
        }
        (None, _) => Ok(()),
    }
}
