//! The certificate that a client shows to a server that requires one (mutual TLS).

use super::identity::{Identity, Report};
use super::validity::Verdict;
use super::{ALPN, RENEW, TlsError, trusting};
use crate::drain::Shutdown;
use crate::readiness::Gate;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A client's own certificate, and the files it is read from.
#[derive(Clone, Debug)]
pub struct OwnCertificate(Arc<Identity>);

impl OwnCertificate {
    /// Reads the certificate chain and private key of two PEM files.
    ///
    /// # Errors
    /// As [`ServerTls::load`](super::ServerTls::load).
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let identity = Identity::new(certificate, key);
        identity.read_again()?;
        Ok(Self(Arc::new(identity)))
    }

    /// Why no server accepts it now, and what to do: it has ended, or does not hold yet.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        match self.0.verdict(RENEW) {
            Verdict::Refused(text) => Some(text),
            Verdict::Good | Verdict::EndsSoon(_) => None,
        }
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.0
    }

    /// Reads the files again if they have changed; where they cannot be used, the certificate before stays.
    pub fn read_if_changed(&self) {
        if self.0.has_changed() {
            self.0.follow_change();
        }
    }

    /// Reads the files again when they change, and keeps `gate` and `ends` (its end, in seconds since 1970) up to date, until
    /// the stop.
    pub async fn renew(self, gate: Gate, ends: impl Fn(u64), shutdown: Shutdown) {
        let (mut report, mut reloads) = (Report::new(gate, ends), shutdown.reloads());
        let following = self.0.follow(&mut report, &mut reloads, RENEW);
        shutdown.until_stopped(following).await;
    }
}

/// As [`client_config`](super::client_config), for a client that shows a certificate where a server requires one. TLS 1.3 only:
/// before it, everyone on the way reads a client's certificate.
///
/// # Errors
/// As [`client_config`](super::client_config).
pub fn client_config_showing(
    ca_file: Option<&Path>,
    own: &OwnCertificate,
) -> Result<Arc<ClientConfig>, TlsError> {
    let own: Arc<dyn ResolvesClientCert> = Arc::<Identity>::clone(&own.0);
    let mut config = trusting(ca_file, &[&TLS13])?.with_client_cert_resolver(own);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.shown_key()
    }

    fn has_certs(&self) -> bool {
        true
    }
}
