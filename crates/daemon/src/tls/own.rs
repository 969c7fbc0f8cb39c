//! The certificate that a client presents to a server that requires one (mutual TLS).

use super::identity::{Identity, Report, sentence};
use super::{ALPN, RENEW, TlsError, client_config, trusting};
use crate::drain::Shutdown;
use crate::examination::Verdict;
use crate::readiness::Gate;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A client's own certificate, and its files.
#[derive(Clone, Debug)]
pub struct OwnCertificate(pub(super) Arc<Identity>);

impl OwnCertificate {
    /// Reads the certificate chain and private key of two PEM files.
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let identity = Identity::new(certificate, key);
        identity.read_again()?;
        Ok(Self(Arc::new(identity)))
    }

    /// Returns the reason that no server accepts the certificate now, because it is expired or not yet valid, and advice.
    pub fn refused(&self) -> Option<String> {
        let finding = self.0.verdict(RENEW);
        (finding.verdict == Verdict::Bad).then(|| sentence(finding))
    }

    /// Reads the files again if they have changed. If they are unusable, the previous certificate stays.
    pub fn read_if_changed(&self) {
        if self.0.has_changed() {
            self.0.follow_change();
        }
    }

    /// Reads the files again when they change, and keeps `gate` and `ends` (the certificate's end, in Unix seconds) up to date,
    /// until the stop.
    pub async fn renew(self, gate: Gate, ends: impl Fn(u64), shutdown: Shutdown) {
        let (mut report, mut reloads) = (Report::new(gate, ends), shutdown.reloads());
        let following = self.0.follow(&mut report, &mut reloads, RENEW, |_| None);
        shutdown.until_stopped(following).await;
    }
}

/// Builds a client as [`client_config`] does, which presents its `own` certificate if a server requires one. With one, TLS 1.3
/// only: earlier versions reveal a client's certificate to everyone on the path.
pub fn client_config_showing(
    ca_file: Option<&Path>,
    own: Option<&OwnCertificate>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let Some(own) = own else { return client_config(ca_file) };
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
