//! Proof that a name is this server's: a handshake with a certificate that contains the digest of the key authorization (RFC
//! 8737, section 3).

use crate::tls::provider;
use parking_lot::RwLock;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

/// ALPN protocol that only authorities offer (RFC 8737, section 6.2).
pub(crate) const ALPN: &[u8] = b"acme-tls/1";

/// Certificates for the authority's validation, by name, while an order is open.
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
