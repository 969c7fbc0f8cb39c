//! Who may connect: clients whose certificate one of the operator's authorities has signed (mutual TLS).

use super::identity::{LOOKS, Stamp};
use super::{TlsError, provider, roots};
use crate::drain::Reloads;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::timeout;

/// The authorities of clients' certificates, and the file they are read from.
#[derive(Debug)]
pub(super) struct ClientAuthorities {
    file: PathBuf,
    /// The state of the file when it was read last.
    read: Mutex<Option<Stamp>>,
    verifier: ArcSwap<Arc<dyn ClientCertVerifier>>,
    /// Clients without a certificate are refused.
    are_required: AtomicBool,
}

impl ClientAuthorities {
    pub(super) fn load(file: &Path) -> Result<Self, TlsError> {
        let read = Mutex::new(Stamp::of(file)); // before: what changes during the reading is read again
        let verifier = ArcSwap::from_pointee(verifier(file)?);
        Ok(Self { file: file.to_owned(), read, verifier, are_required: AtomicBool::new(true) })
    }

    pub(super) fn require(&self, are_required: bool) {
        self.are_required.store(are_required, Ordering::Relaxed);
    }

    /// Reads the file again when it changes, and on a reload. Open connections stay.
    pub(super) async fn follow(&self, mut reloads: Reloads) {
        loop {
            let is_reload = timeout(LOOKS, reloads.next()).await.is_ok();
            let stamp = Stamp::of(&self.file);
            if !is_reload && stamp == *self.read.lock() {
                continue;
            }
            *self.read.lock() = stamp;
            match verifier(&self.file) {
                Ok(verifier) => {
                    self.verifier.store(Arc::new(verifier));
                    tracing::info!("the authorities of clients' certificates were read again");
                }
                Err(error) => tracing::warn!(
                    "the new authorities of clients' certificates cannot be used, so the old ones stay: {error}"
                ),
            }
        }
    }
}

fn verifier(file: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots(file)?), provider())
        .build()
        .map_err(|_| TlsError::NoCertificate { path: file.to_owned() })
}

impl ClientCertVerifier for ClientAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        self.are_required.load(Ordering::Relaxed)
    }

    /// None: their names would say to everyone who connects whose clients are expected.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verifier.load().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.load().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.load().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.load().supported_verify_schemes()
    }
}

/// Whether a handshake failed because of the client's certificate: it showed none, or one that is not accepted.
#[must_use]
pub fn is_client_refused(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)))
}
