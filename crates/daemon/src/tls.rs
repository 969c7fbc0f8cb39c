//! TLS by rustls, with certificates from files or an authority. The aws-lc provider is always named; the process default is never
//! used.

mod acme;
mod client_auth;
mod diagnosis;
mod examine;
mod handshake;
mod identity;
mod own;
mod self_signed;
mod server;
mod validity;

pub use acme::AcmeConfig;
pub use client_auth::{PublicKeyDigest, is_client_refused};
use diagnosis::RECIPE;
pub use diagnosis::diagnose;
pub use examine::{begin_shown, begin_shown_at};
pub use handshake::{Accepted, Bounded, accept};
pub use own::{OwnCertificate, client_config_showing};
pub use rustls::{ClientConfig, ServerConfig};
pub use self_signed::{SelfSigned, self_signed};
pub use server::{ListenerTls, Renewed, ServerTls, TlsConfig, keep_signed};
pub use tokio_rustls::server::TlsStream;

use crate::files::DataDirError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{
    ConfigBuilder, DEFAULT_VERSIONS, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const RENEW: &str = "Renew it: the files are read again within a minute, and on a reload (SIGHUP)";
/// ALPN protocol that is always offered.
const ALPN: &[u8] = b"http/1.1";
/// ALPN protocol that is offered in addition where HTTP/2 is enabled.
const HTTP2: &[u8] = b"h2";

/// Builds a client that trusts the certificates of one PEM file, or without a file those of the platform. Each connection makes a
/// whole handshake: a resumed session would link connections, and so an agent's tunnels (RFC 8446, appendix C.4).
///
/// A platform without trusted certificates is no error here, because a client that only uses `http://` needs none: each TLS
/// handshake then fails with that reason.
pub fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = trusting(ca_file, DEFAULT_VERSIONS)?.with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Adds HTTP/2 to the protocols that a client offers.
pub fn offering_http2(mut config: Arc<ClientConfig>) -> Arc<ClientConfig> {
    Arc::make_mut(&mut config).alpn_protocols.insert(0, HTTP2.to_vec());
    config
}

/// `true` if the two ends of a connection have agreed on HTTP/2.
pub fn is_http2(connection: &rustls::CommonState) -> bool {
    connection.alpn_protocol() == Some(HTTP2)
}

/// Builds a client of a server that does not speak HTTP; `own` are the PEM files of the client's certificate chain and key, if
/// the server requires one.
pub fn store_client_config(
    ca_file: Option<&Path>,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let trusting = trusting(ca_file, DEFAULT_VERSIONS)?;
    let Some((certificate, key)) = own else { return Ok(Arc::new(trusting.with_no_client_auth())) };
    let (chain, key_der) = identity(certificate, key)?;
    let config = trusting.with_client_auth_cert(chain, key_der);
    config.map(Arc::new).map_err(|source| TlsError::unfit_pair(certificate, key, &source))
}

fn trusting(
    ca_file: Option<&Path>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let verifier = match ca_file {
        Some(path) => trust_file(path)?,
        None => trust_platform(),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(TlsError::provider)?
        .dangerous() // required to pass the verifier as a value; each verifier below verifies in full, or refuses
        .with_custom_certificate_verifier(verifier);
    Ok(builder)
}

fn identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::Unusable(format!(
            "there is no private key in {}: a PEM block such as \"-----BEGIN PRIVATE KEY-----\", unencrypted, is expected",
            key.display()
        )),
        error => TlsError::from_pem(key, error),
    })?;
    Ok((chain, key))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn trust_file(path: &Path) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let roots = Arc::new(roots(path)?);
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(|_| TlsError::no_certificate(path))?;
    Ok(verifier)
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| {
            TlsError::Unusable(format!(
                "a certificate in {} cannot be trusted as an authority's: {source}; give the certificate of the authority that \
                 signed the other end's",
                path.display()
            ))
        })?;
    }
    Ok(roots)
}

fn trust_platform() -> Arc<dyn ServerCertVerifier> {
    match rustls_platform_verifier::Verifier::new(provider()) {
        Ok(verifier) => Arc::new(verifier),
        Err(reason) => Arc::new(TrustNobody { reason: reason.to_string() }),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| TlsError::from_pem(path, error))?;
    if chain.is_empty() {
        return Err(TlsError::no_certificate(path));
    }
    Ok(chain)
}

/// Verifier for a platform without trusted certificates: refuses every server with the reason.
#[derive(Debug)]
struct TrustNobody {
    reason: String,
}

impl TrustNobody {
    fn refusal(&self) -> rustls::Error {
        rustls::Error::General(format!(
            "this machine has no trusted certificates ({}): install the package ca-certificates, or name a file \
             of trusted certificates (a setting that ends in \"ca\")",
            self.reason
        ))
    }
}

impl ServerCertVerifier for TrustNobody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Err(self.refusal())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(self.refusal())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(self.refusal())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Error in a TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}; check the path, and that this user may read the file", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The directory of a certificate from an authority is unusable, which is no fault of the configuration.
    #[error("tls.acme.state: {0}")]
    State(#[from] DataDirError),
    /// A file or a setting is unusable: the sentence for the operator.
    #[error("{0}")]
    Unusable(String),
}

impl TlsError {
    fn from_pem(path: &Path, error: pem::Error) -> Self {
        match error {
            pem::Error::Io(source) => Self::Unreadable { path: path.to_owned(), source },
            pem::Error::NoItemsFound => Self::no_certificate(path),
            error => Self::Unusable(format!(
                "{} is not a PEM file: {error}; export it as PEM (text with -----BEGIN …)",
                path.display()
            )),
        }
    }

    fn no_certificate(path: &Path) -> Self {
        Self::Unusable(format!(
            "there is no certificate in {}: a PEM block \"-----BEGIN CERTIFICATE-----\" is expected",
            path.display()
        ))
    }

    /// Creates the error for a file whose certificate cannot be used.
    fn unfit(certificate: &Path, source: &rustls::Error) -> Self {
        let certificate = certificate.display();
        Self::Unusable(if diagnosis::is_version_1(source) {
            format!(
                "the certificate in {certificate} is of X.509 version 1, which has no subjectAltName; have one of version 3 made \
                 ({RECIPE}, docs/operate/accounts.md those for a client)"
            )
        } else {
            format!("the certificate in {certificate} cannot be used: {source}; have another one made")
        })
    }

    /// Creates the error for a key that is of an unknown kind, or is not the certificate's.
    fn unfit_pair(certificate: &Path, key: &Path, source: &rustls::Error) -> Self {
        if diagnosis::is_version_1(source) {
            return Self::unfit(certificate, source);
        }
        Self::Unusable(format!(
            "the certificate in {} and the private key in {} cannot be used together: {source}; give the key that this \
             certificate was made for",
            certificate.display(),
            key.display()
        ))
    }

    fn provider(source: rustls::Error) -> Self {
        Self::Unusable(format!("cannot set up TLS: {source}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_certificates_refuses_and_says_why() {
        let nobody = TrustNobody { reason: "none found".to_owned() };
        let server = ServerName::try_from("issuer.example").unwrap();
        let refused =
            nobody.verify_server_cert(&CertificateDer::from(vec![]), &[], &server, &[], UnixTime::now());
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("this machine has no trusted certificates (none found): install"), "{said}");
        assert!(!nobody.supported_verify_schemes().is_empty());
    }
}
