//! A certificate authority for one test.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The files of an authority, and of a server on 127.0.0.1 that it vouches for.
pub struct Authority {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Of a client.
    pub client: [PathBuf; 2],
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(home: &Path) -> Self {
        Self::for_server(home, "127.0.0.1")
    }

    /// The same for a server at another address, which is called localhost, too.
    pub fn for_server(home: &Path, address: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let root = params.self_signed(&ca_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec![address.to_owned(), "localhost".to_owned()]).unwrap();
        let issuer = Issuer::new(params, ca_key);
        let server = server.signed_by(&key, &issuer).unwrap();
        let client_key = KeyPair::generate().unwrap();
        let client = CertificateParams::new(vec!["agent".to_owned()])
            .unwrap()
            .signed_by(&client_key, &issuer)
            .unwrap();
        let write = |name: &str, pem: String| {
            let path = home.join(name);
            std::fs::write(&path, pem).unwrap();
            if name.ends_with(".key") {
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            }
            path
        };
        Self {
            ca: write("ca.pem", root.pem()),
            certificate: write("server.pem", server.pem()),
            key: write("server.key", key.serialize_pem()),
            client: [write("client.pem", client.pem()), write("client.key", client_key.serialize_pem())],
            issuer,
        }
    }

    /// The files of another client: a new certificate, for its key if it has one already.
    pub fn client_named(&self, name: &str) -> [PathBuf; 2] {
        let [certificate, key] = ["pem", "key"].map(|end| self.ca.with_file_name(format!("{name}.{end}")));
        if !key.exists() {
            std::fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        }
        let pair = KeyPair::from_pem(&std::fs::read_to_string(&key).unwrap()).unwrap();
        let signed =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&pair, &self.issuer).unwrap();
        std::fs::write(&certificate, signed.pem()).unwrap();
        [certificate, key]
    }

    /// Gives the server a certificate that is 90 days old and ends in `days`, for its key.
    pub fn renew(&self, days: u32) {
        let day = Duration::from_secs(86_400);
        let key = KeyPair::from_pem(&std::fs::read_to_string(&self.key).unwrap()).unwrap();
        let mut params =
            CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.not_before = (SystemTime::now() - 90 * day).into();
        params.not_after = (SystemTime::now() + days * day).into();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(&self.certificate, signed.pem()).unwrap();
    }

    /// The section `[tls]` of a daemon.
    pub fn section(&self) -> String {
        format!("[tls]\ncertificate = {:?}\nkey = {:?}\n", self.certificate, self.key)
    }

    pub fn server(&self) -> Arc<rustls::ServerConfig> {
        postern_daemon::tls::ServerTls::load(&self.certificate, &self.key).unwrap().config()
    }

    /// A client that trusts this PEM, too.
    pub fn client_trusting(&self, pem: &str) -> Arc<rustls::ClientConfig> {
        let trusted = self.ca.with_extension("both.pem");
        std::fs::write(&trusted, std::fs::read_to_string(&self.ca).unwrap() + pem).unwrap();
        postern_daemon::tls::client_config(Some(&trusted)).unwrap()
    }

    pub fn client(&self) -> Arc<rustls::ClientConfig> {
        postern_daemon::tls::client_config(Some(&self.ca)).unwrap()
    }
}
