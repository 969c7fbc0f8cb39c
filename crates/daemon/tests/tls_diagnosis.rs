//! The errors for a server whose certificate is not accepted: which fault it has, and what to do.

use postern_daemon::http::{ClientOptions, client, no_answer};
use postern_daemon::tls::{ServerTls, client_config, diagnose};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

struct Authority {
    home: TempDir,
    params: CertificateParams,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = Self { home: TempDir::new().unwrap(), params, key: KeyPair::generate().unwrap() };
        std::fs::write(authority.ca(), authority.params.self_signed(&authority.key).unwrap().pem()).unwrap();
        authority
    }

    fn ca(&self) -> PathBuf {
        self.home.path().join("ca.pem")
    }

    /// A server on `address` for localhost, but for what `change` does.
    async fn server(&self, change: impl FnOnce(&mut CertificateParams)) -> SocketAddr {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        self.serve(&certificate.pem(), &key).await
    }

    async fn serve(&self, certificate: &str, key: &KeyPair) -> SocketAddr {
        let path = |name: &str, text: &str| {
            let path = self.home.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let tls = ServerTls::load(&path("cert.pem", certificate), &path("key.pem", &key.serialize_pem()));
        let acceptor = TlsAcceptor::from(tls.unwrap().config());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let _ = acceptor.accept(stream).await; // the client has an opinion
            }
        });
        address
    }
}

/// The error for a server, from both TLS clients, which must agree.
async fn said(ca: &Path, server: SocketAddr) -> String {
    let http = client(&ClientOptions { ca_file: Some(ca.to_owned()), ..ClientOptions::default() }).unwrap();
    let refused = http.get(format!("https://localhost:{}/", server.port())).send().await.unwrap_err();
    let by_http = no_answer(&refused, "issuer.ca");

    let connector = TlsConnector::from(client_config(Some(ca)).unwrap());
    let stream = TcpStream::connect(server).await.unwrap();
    let refused = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap_err();
    assert_eq!(diagnose(&refused, "issuer.ca").as_ref(), Some(&by_http), "{refused:?}");
    by_http
}

#[track_caller]
fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    assert!(!said.contains("is it running"), "{said:?}");
}

#[tokio::test]
async fn each_fault_of_a_certificate_is_named_with_what_to_do() {
    let (ours, other) = (Authority::new(), Authority::new());

    let good = ours.server(|_| {}).await;
    assert_says(
        &said(&other.ca(), good).await,
        &["authority that is not trusted", "set issuer.ca to a PEM file"],
    );

    let another = ours.server(|params| {
        *params = CertificateParams::new(vec!["elsewhere.example".to_owned()]).unwrap();
    });
    let another = said(&ours.ca(), another.await).await;
    assert_says(&another, &["not for \"localhost\" but for", "elsewhere.example", "subjectAltName"]);

    let expired = ours.server(|params| params.not_after = date_time_ymd(2000, 1, 1));
    assert_says(
        &said(&ours.ca(), expired.await).await,
        &["expired", "days ago by this machine's clock", "new one"],
    );

    let early = ours.server(|params| params.not_before = date_time_ymd(3000, 1, 1));
    assert_says(&said(&ours.ca(), early.await).await, &["becomes valid in", "set the clock"]);

    let purpose =
        ours.server(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    assert_says(&said(&ours.ca(), purpose.await).await, &["not made for servers", "serverAuth"]);
}

#[tokio::test]
async fn a_certificate_of_an_authority_as_a_servers_leads_to_the_recipe() {
    // `openssl req -x509` makes a self-signed certificate that is marked as an authority's.
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let authority = Authority::new();
    let server = authority.serve(&certificate, &key).await;
    std::fs::write(authority.ca(), &certificate).unwrap();
    let said = said(&authority.ca(), server).await;
    assert_says(&said, &["the certificate of an authority (CA:TRUE", "docs/start.md", "set issuer.ca"]);

    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/start.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    assert!(guide.contains("\n## A gateway with TLS\n"), "the recipe that is named is there");
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_told_apart_from_one_that_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        }
    });
    let authority = Authority::new();
    assert_says(
        &said(&authority.ca(), plain).await,
        &["does not speak TLS", "write http:// in place of https://"],
    );

    let away = postern_testkit::ports::closed();
    let http = client(&ClientOptions::default()).unwrap();
    let refused = http.get(format!("https://localhost:{}/", away.port())).send().await.unwrap_err();
    let said = no_answer(&refused, "issuer.ca");
    assert!(said.ends_with("is it running, and is this its address?"), "{said:?}");
}

/// A client of TLS 1.3 has often sent its request, or is about to, when the alert comes; then the alert is lost.
#[tokio::test]
async fn a_server_that_ends_connections_after_the_handshake_may_want_a_certificate() {
    let authority = Authority::new();
    let server = authority.server(|_| {}).await;
    let trusting = ClientOptions { ca_file: Some(authority.ca()), ..ClientOptions::default() };
    let http = client(&trusting).unwrap();
    let refused = http.get(format!("https://localhost:{}/", server.port())).send().await.unwrap_err();
    let said = no_answer(&refused, "issuer.ca");
    assert_says(
        &said,
        &["ended the connection without an answer", "`certificate` and `key` next to issuer.ca"],
    );
    assert!(!said.contains("localhost"), "callers name the address: {said:?}");
}

/// `openssl x509 -req` of version 1 and 2 makes such a certificate without an extension file.
#[test]
fn a_certificate_of_version_1_is_refused_at_the_start_by_what_it_is() {
    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBIzCBywIUeXtACCXmcOkaXA+OhOVB6AugINgwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNjIxMTcyM1oYDzIxMjYxMTAyMjExNzIz
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AARI4lOTQKYAuQyKpsBeoW1LM9/7sMqDjkUR1lE3OPDulteI+ZYqPxfHVRa+Y01+
PoUrRU+BL5USHJdmTXM2s5DtMAoGCCqGSM49BAMCA0cAMEQCIAR3OBwOrfOV7IyG
gOj4Akfetgt+CVs9j+77atKZlNs4AiAaZILppaBnriUuCDHM8wKTNqWNEnQigrVT
ew0Vm5Hbvw==
-----END CERTIFICATE-----
";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgs0QpPTzQ0pQZ31io
ZN4bcoOwDGPyrm/4splCiwSOoFWhRANCAARI4lOTQKYAuQyKpsBeoW1LM9/7sMqD
jkUR1lE3OPDulteI+ZYqPxfHVRa+Y01+PoUrRU+BL5USHJdmTXM2s5Dt
-----END PRIVATE KEY-----
";
    let home = TempDir::new().unwrap();
    let [certificate, key] = [("cert.pem", CERTIFICATE), ("key.pem", KEY)].map(|(name, text)| {
        let path = home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let said = ServerTls::load(&certificate, &key).err().unwrap().to_string();
    assert_says(&said, &["cert.pem is of X.509 version 1", "have one of version 3 made"]);
    assert!(!said.contains("the key that this certificate was made for"), "{said}");
}
