//! Client authentication by certificates that one of the operator's authorities has signed (mutual TLS), and the public key of a
//! certificate, which identifies a client across all certificates issued for this key.

use super::identity::{LOOKS, Stamp};
use super::{TlsError, certificates, provider, roots};
use crate::drain::Reloads;
use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::timeout;

#[derive(Debug)]
pub(super) struct ClientAuthorities {
    file: PathBuf,
    /// State of the file when it was last read and usable.
    read: Mutex<Option<Stamp>>,
    verifier: ArcSwap<Arc<dyn ClientCertVerifier>>,
    are_required: AtomicBool,
}

impl ClientAuthorities {
    pub(super) fn load(file: &Path) -> Result<Self, TlsError> {
        let read = Mutex::new(Stamp::of(file)); // taken before the read, so that a change during it is noticed
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
            match verifier(&self.file) {
                Ok(verifier) => {
                    *self.read.lock() = stamp;
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
        .map_err(|_| TlsError::no_certificate(file))
}

impl ClientCertVerifier for ClientAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        self.are_required.load(Ordering::Relaxed)
    }

    /// Returns none: the names of the authorities would reveal to everyone who connects whose clients are expected.
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

/// `true` if a handshake failed because of the client's certificate, which is missing or not accepted.
pub fn is_client_refused(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)))
}

/// SHA-256 of a certificate's SubjectPublicKeyInfo (RFC 5280, section 4.1.2.7), in DER: the output of `openssl x509 -pubkey
/// -noout | openssl pkey -pubin -outform DER | sha256sum`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKeyDigest(pub [u8; 32]);

impl std::fmt::Debug for PublicKeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PublicKeyDigest(redacted)") // it may identify a client
    }
}

/// Formats 64 hex digits.
impl std::fmt::Display for PublicKeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl PublicKeyDigest {
    fn of(certificate: &CertificateDer<'_>) -> Result<Self, rustls::Error> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, &key).as_ref()); // SHA-256 always gives 32 bytes
        Ok(Self(hash))
    }

    /// Returns the digest of the certificate that a client has presented in a handshake; `None` if it has presented none.
    pub fn of_client(connection: &rustls::CommonState) -> Option<Self> {
        Self::of(connection.peer_certificates()?.first()?).ok()
    }

    /// Returns the digest of the first certificate in a PEM file, in a chain the client's own.
    pub fn of_file(path: &Path) -> Result<Self, TlsError> {
        let chain = certificates(path)?;
        let own = chain.first().ok_or_else(|| TlsError::no_certificate(path))?;
        Self::of(own).map_err(|source| TlsError::unfit(path, &source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Shutdown;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use std::fs::OpenOptions;
    use std::time::SystemTime;

    /// A file that looks unchanged from outside may have become usable, as when its disk was full for a moment.
    #[tokio::test(start_paused = true)]
    async fn an_unusable_file_is_tried_again_without_a_change() {
        let home = tempfile::tempdir().unwrap();
        let (file, then) = (home.path().join("ca.pem"), SystemTime::UNIX_EPOCH);
        let write = |text: &str| {
            std::fs::write(&file, text).unwrap();
            OpenOptions::new().write(true).open(&file).unwrap().set_modified(then).unwrap();
        };
        let authority = || {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let second = authority() + "a comment";
        write(&authority());
        let authorities = ClientAuthorities::load(&file).unwrap();
        let first = authorities.verifier.load_full();
        let shutdown = Shutdown::new();
        let following = timeout(LOOKS + LOOKS / 2, authorities.follow(shutdown.reloads()));
        write(&second.replace("BEGIN", "BEGUN"));
        let _ = following.await;
        assert!(Arc::ptr_eq(&first, &authorities.verifier.load_full()));
        write(&second);
        let _ = timeout(LOOKS + LOOKS / 2, authorities.follow(shutdown.reloads())).await;
        assert!(!Arc::ptr_eq(&first, &authorities.verifier.load_full()));
    }
}
