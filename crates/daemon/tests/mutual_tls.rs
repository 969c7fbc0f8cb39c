//! Servers that serve only clients with a certificate of their operator's authority.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in #[test] functions, not in the functions they call

use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Readiness;
use postern_daemon::tls::{
    ClientConfig, OwnCertificate, ServerConfig, TlsConfig, client_config, client_config_showing, diagnose,
    is_client_refused,
};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tempfile::TempDir;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConnection, Error, RootCertStore, ServerConnection, SupportedProtocolVersion,
};

/// Number of certificates signed, each with its own files.
static SIGNED: AtomicU32 = AtomicU32::new(0);

/// An authority, and what it has signed: a server's certificate for localhost and a client's.
struct Authority {
    home: TempDir,
    issuer: Issuer<'static, KeyPair>,
    ca: PathBuf,
}

impl Authority {
    fn new() -> Self {
        let home = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = home.path().join("ca.pem");
        std::fs::write(&ca, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { home, issuer: Issuer::new(params, key), ca }
    }

    /// The files of a certificate that is made for this, and of its key.
    fn signed(&self, purpose: ExtendedKeyUsagePurpose) -> [PathBuf; 2] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let number = SIGNED.fetch_add(1, Relaxed);
        let files = ["pem", "key"].map(|end| self.home.path().join(format!("{number}.{end}")));
        std::fs::write(&files[0], signed.pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }

    /// A client that trusts this authority and shows a certificate that `other` has signed.
    fn client_of(&self, other: &Self) -> Arc<ClientConfig> {
        let [certificate, key] = other.signed(ExtendedKeyUsagePurpose::ClientAuth);
        let own = OwnCertificate::load(certificate, key).unwrap();
        client_config_showing(Some(&self.ca), Some(&own)).unwrap()
    }

    /// Serves clients of the authority in this file alone.
    fn serving(&self, client_ca: &Path) -> TlsConfig {
        let [certificate, key] = self.signed(ExtendedKeyUsagePurpose::ServerAuth);
        TlsConfig { client_ca: Some(client_ca.to_owned()), ..TlsConfig::of_files(certificate, key) }
    }
}

/// Returns the errors of the server and of the client.
fn shake_hands(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<(), (Option<Error>, Error)> {
    let mut client = ClientConnection::new(Arc::clone(client), "localhost".try_into().unwrap()).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let (mut flight, mut refused) = (Vec::new(), None);
    while client.wants_write() || server.wants_write() {
        flight.clear();
        while client.wants_write() {
            client.write_tls(&mut flight).unwrap();
        }
        server.read_tls(&mut flight.as_slice()).unwrap();
        refused = server.process_new_packets().err().or(refused);
        flight.clear();
        while server.wants_write() {
            server.write_tls(&mut flight).unwrap();
        }
        client.read_tls(&mut flight.as_slice()).unwrap();
        client.process_new_packets().map_err(|error| (refused.clone(), error))?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking() && refused.is_none());
    Ok(())
}

#[test]
fn clients_with_a_certificate_of_the_authority_are_served_and_no_others() {
    let (own, other) = (Authority::new(), Authority::new());
    let server = own.serving(&own.ca).load().unwrap().config();
    shake_hands(&own.client_of(&own), &server).unwrap();
    for stranger in [client_config(Some(&own.ca)).unwrap(), own.client_of(&other)] {
        let (refused, said) = shake_hands(&stranger, &server).unwrap_err();
        assert!(is_client_refused(&io::Error::other(refused.unwrap())));
        let said = diagnose(&io::Error::other(said), "gateway.ca").unwrap();
        assert!(
            said.starts_with("the server accepts only clients with a certificate of its operator's"),
            "{said}"
        );
    }
    // A client shows no certificate to a server that requires none.
    let [certificate, key] = own.signed(ExtendedKeyUsagePurpose::ServerAuth);
    shake_hands(&own.client_of(&other), &TlsConfig::of_files(certificate, key).load().unwrap().config())
        .unwrap();
}

/// Before TLS 1.3 everyone on the way reads it.
#[test]
fn a_clients_certificate_is_never_sent_in_the_clear() {
    let own = Authority::new();
    let server = own.serving(&own.ca).load().unwrap().config();
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(&own.ca).unwrap();
    roots.add(rustls_pki_types::pem::PemObject::from_pem_slice(&pem).unwrap()).unwrap();
    let speaking = |version: &'static SupportedProtocolVersion| {
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        Arc::new(builder.with_root_certificates(roots.clone()).with_no_client_auth())
    };
    let (refused, _) = shake_hands(&speaking(&TLS12), &server).unwrap_err();
    assert!(matches!(refused, Some(Error::PeerIncompatible(_))), "{refused:?}");
    let (refused, _) = shake_hands(&speaking(&TLS13), &server).unwrap_err();
    assert_eq!(refused, Some(Error::NoCertificatesPresented));
}

#[tokio::test(start_paused = true)]
async fn authorities_and_certificates_that_change_are_read_again_within_a_minute() {
    let (own, next) = (Authority::new(), Authority::new());
    let tls = own.serving(&own.ca).load().unwrap();
    let [certificate, key] = own.signed(ExtendedKeyUsagePurpose::ClientAuth);
    let shown = OwnCertificate::load(certificate.clone(), key.clone()).unwrap();
    let client = client_config_showing(Some(&own.ca), Some(&shown)).unwrap();
    let (readiness, shutdown) = (Readiness::new(), Shutdown::new());
    let gate = || readiness.gate("certificate");
    let renewing = [
        tokio::spawn(tls.clone().renew(gate(), |_| {}, ready(()), shutdown.clone())),
        tokio::spawn(shown.renew(gate(), |end| assert!(end > 0), shutdown.clone())),
    ];
    let minute = || tokio::time::sleep(Duration::from_secs(61));
    let is_served = || shake_hands(&client, &tls.config()).is_ok();
    minute().await;
    assert!(is_served());
    std::fs::write(&own.ca, "no certificate").unwrap();
    minute().await;
    assert!(is_served(), "what cannot be used changes nothing");
    std::fs::copy(&next.ca, &own.ca).unwrap();
    minute().await;
    assert!(!is_served(), "the authority of before is out");
    let [new_certificate, new_key] = next.signed(ExtendedKeyUsagePurpose::ClientAuth);
    std::fs::copy(new_certificate, &certificate).unwrap();
    std::fs::copy(new_key, &key).unwrap();
    minute().await;
    assert!(is_served());
    shutdown.stop();
    for renewing in renewing {
        renewing.await.unwrap();
    }
}
