//! Proxies by other authors, as next hops: microsocks, tinyproxy, and nghttpx in front of that one.

use super::client::{Client, connect};
use super::{PATIENCE, Running};
use postern_gateway::config::Egress;
use postern_testkit::ports;
use postern_testkit::signal::signal_group;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::fmt::Display;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The user name and the password that microsocks and tinyproxy demand.
pub(crate) const CREDENTIALS: &str = "user = \"u\"\npassword = \"p-w\"";

/// A proxy process; killed when it is dropped.
pub(crate) struct Proxy {
    process: Child,
    pub(crate) port: u16,
    pub(crate) url: String,
    _home: TempDir,
}

impl Proxy {
    /// Starts a proxy that demands [`CREDENTIALS`].
    pub(crate) fn socks() -> Self {
        Self::start("socks5", "microsocks", |port, _| {
            ["-i", "127.0.0.1", "-p", port, "-u", "u", "-P", "p-w"].map(str::to_owned).to_vec()
        })
    }

    /// Starts a proxy that demands [`CREDENTIALS`].
    pub(crate) fn http() -> Self {
        Self::tinyproxy("BasicAuth u p-w\n")
    }

    /// One for everyone.
    pub(crate) fn open_http() -> Self {
        Self::tinyproxy("")
    }

    fn tinyproxy(demand: &str) -> Self {
        Self::start("http", "tinyproxy", |port, home| {
            let file = home.path().join("tinyproxy.conf");
            let config = format!("Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\n{demand}Timeout 600\n");
            std::fs::write(&file, config).unwrap();
            vec!["-d".to_owned(), "-c".to_owned(), file.display().to_string()]
        })
    }

    /// TLS and HTTP/2, for clients with a certificate of `authority` alone; passes tunnels on to `backend`.
    pub(crate) fn https(authority: &Authority, backend: &Self) -> Self {
        let [certificate, key] = authority.signed(ExtendedKeyUsagePurpose::ServerAuth);
        let ca = authority.ca.display().to_string();
        let mut proxy = Self::start("https", "nghttpx", |port, home| {
            let (frontend, backend) =
                (format!("-f127.0.0.1,{port}"), format!("-b127.0.0.1,{}", backend.port));
            let conf = format!("--conf={}", home.path().join("none").display()); // not the system's
            let verify = ["--verify-client".to_owned(), format!("--verify-client-cacert={ca}")];
            let server = [key.display().to_string(), certificate.display().to_string()];
            // Otherwise the ninth tunnel to a host waits for the end of another one.
            let many = "--backend-connections-per-host=1000".to_owned();
            // Its default is 64 KiB for all tunnels of a connection: one that stalls would stop the others.
            let window = "--frontend-http2-connection-window-size=2147483647".to_owned();
            let options =
                ["--http2-proxy".to_owned(), conf, frontend, backend, many, window, "-n1".to_owned()];
            options.into_iter().chain(verify).chain(server).collect()
        });
        proxy.url = format!("https://localhost:{}", proxy.port);
        proxy
    }

    fn start(scheme: &str, program: &str, arguments: impl FnOnce(&str, &TempDir) -> Vec<String>) -> Self {
        let (port, home) = (ports::free(), TempDir::new().unwrap());
        let arguments = arguments(&port.to_string(), &home);
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let process = command.spawn();
        let process = process.unwrap_or_else(|error| panic!("{program}: {error}; scripts/test installs it"));
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < PATIENCE, "{program} does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { process, port, url: format!("{scheme}://127.0.0.1:{port}"), _home: home }
    }

    /// Connections to its port that are open, by their client's end.
    pub(crate) fn connections(&self) -> usize {
        ports::connections(self.port)
    }

    /// Freezes it, or lets it go on: all of its processes.
    pub(crate) fn signal(&self, name: &str) {
        signal_group(self.process.id(), name);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.signal("KILL");
        let _ = self.process.wait();
    }
}

/// An authority, whose certificates are for localhost.
pub(crate) struct Authority {
    home: TempDir,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) ca: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let home = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = home.path().join("ca.pem");
        std::fs::write(&ca, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { home, issuer: Issuer::new(params, key), ca }
    }

    /// The files of a certificate that is made for this, and of its key.
    pub(crate) fn signed(&self, purpose: ExtendedKeyUsagePurpose) -> [PathBuf; 2] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        // OpenSSL takes a certificate whose subject is its issuer's for one that was signed by itself.
        params.distinguished_name.push(DnType::CommonName, "localhost");
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let folder = TempDir::new_in(self.home.path()).unwrap().keep();
        let files = ["certificate.pem", "key.pem"].map(|name| folder.join(name));
        std::fs::write(&files[0], signed.pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }

    /// The keys of a next hop of this authority, which is shown a certificate of it.
    pub(crate) fn keys(&self) -> String {
        let [certificate, key] = self.signed(ExtendedKeyUsagePurpose::ClientAuth);
        let line = |name: &str, path: &Path| format!("{name} = \"{}\"\n", path.display());
        line("ca", &self.ca) + &line("certificate", &certificate) + &line("key", &key)
    }
}

/// `[egress]` from its text.
pub(crate) fn egress(text: &str) -> Egress {
    postern_config::parse("egress.toml", text, []).unwrap()
}

/// Everything goes through this proxy.
pub(crate) fn all_via(url: &str, credentials: &str) -> Egress {
    egress(&format!(
        "ports = \"any\"\n[[next_hops]]\nname = \"a\"\nurls = [\"{url}\"]\n{credentials}\n\
         [[rules]]\nallow = [\"127.0.0.0/8\", \"*\"]\nvia = \"a\"\n"
    ))
}

/// All tunnels go through one of these.
pub(crate) fn all_through(urls: &[&str], keys: &str) -> Egress {
    let urls: Vec<String> = urls.iter().map(|url| format!("\"{url}\"")).collect();
    egress(&format!(
        "ports = \"any\"\nprivate = true\nvia = \"exit\"\n\
         [[next_hops]]\nname = \"exit\"\nurls = [{}]\ncheck_every = \"1s\"\n{keys}",
        urls.join(", ")
    ))
}

/// A tunnel through a gateway, for a fresh token.
pub(crate) async fn tunnel(gateway: &Running, target: impl Display) -> Client {
    let mut client = Client::connect(gateway.address).await;
    client.send(connect(target)).await;
    client.head().await.assert_opened();
    client
}

/// Asserts that these bytes come back.
pub(crate) async fn echoes(client: &mut Client, bytes: &[u8]) {
    client.send(bytes).await;
    assert_eq!(client.take(bytes.len()).await, bytes);
}
