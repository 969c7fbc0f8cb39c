//! The public key of a certificate, by which a client is known over all the certificates that it is given for this key.

use super::{TlsError, certificates};
use aws_lc_rs::digest::{SHA256, digest};
use rustls::server::ParsedCertificate;
use rustls_pki_types::CertificateDer;
use std::path::Path;

/// The SHA-256 of a certificate's SubjectPublicKeyInfo (RFC 5280, section 4.1.2.7), in DER: what `openssl x509 -pubkey -noout |
/// openssl pkey -pubin -outform DER | sha256sum` prints.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKeyDigest(pub [u8; 32]);

impl std::fmt::Debug for PublicKeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PublicKeyDigest(redacted)") // it may say who a client is
    }
}

/// 64 hex digits.
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

    /// Of the certificate that a client has shown in a handshake; nothing where it has shown none.
    #[must_use]
    pub fn of_client(connection: &rustls::CommonState) -> Option<Self> {
        Self::of(connection.peer_certificates()?.first()?).ok()
    }

    /// Of the first certificate in a PEM file: in a chain, the client's own.
    ///
    /// # Errors
    /// The file cannot be read, is not PEM, or has no certificate that can be read in it.
    pub fn of_file(path: &Path) -> Result<Self, TlsError> {
        let chain = certificates(path)?;
        let own = chain.first().ok_or_else(|| TlsError::NoCertificate { path: path.to_owned() })?;
        Self::of(own).map_err(|error| TlsError::NotPem { path: path.to_owned(), reason: error.to_string() })
    }
}
