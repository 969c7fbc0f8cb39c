//! Certificates from an authority: a real Pebble, to which the gateway proves its name on its own TLS port.

use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::pebble::Pebble;
use crate::support::tls::Authority;
use crate::support::{PATIENCE, admin, eventually, proxy, target};
use postern_testkit::ports;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const DAY: Duration = Duration::from_secs(86_400);
/// Without advice it is renewed after 40 s at the earliest, and on advice after 15, a quarter.
const LIFE: Duration = Duration::from_secs(60);

/// An issuer, and the configuration of a gateway that gets its certificate from the authority at `directory`.
struct Stage {
    home: TempDir,
    authority: Authority,
    issuer: Daemon,
}

impl Stage {
    async fn new() -> Self {
        let home = TempDir::new().unwrap();
        let authority = Authority::new(home.path());
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), &authority.section())).await;
        Self { home, authority, issuer }
    }

    fn state(&self) -> PathBuf {
        self.home.path().join("certificate")
    }

    fn gateway(&self, port: u16, directory: &str) -> PathBuf {
        let (state, ca) = (self.state(), &self.authority.ca);
        let acme = format!(
            "[tls.acme]\nnames = [\"localhost\"]\nagree_to_terms = true\nstate = {state:?}\n\
             directory = {directory:?}\nca = {ca:?}\ncontact = \"mailto:admin@gateway.example\"\n"
        );
        let trusted = format!("ca = {ca:?}");
        let config = gateway_config(self.home.path(), &self.issuer.https(), &trusted, "1s", &acme);
        let text = std::fs::read_to_string(&config).unwrap();
        let text = text.replacen("address = \"127.0.0.1:0\"", &format!("address = \"127.0.0.1:{port}\""), 1);
        std::fs::write(&config, text).unwrap();
        config
    }

    /// The gateway's own certificate on the disk, as PEM.
    fn certificate(&self) -> Option<String> {
        let file = std::fs::read_to_string(self.state().join("certificate.pem")).ok()?;
        let chain = &file[file.find("-----BEGIN CERTIFICATE")?..];
        Some(chain.split_inclusive("-----END CERTIFICATE-----\n").next()?.to_owned())
    }

    /// An agent that trusts what Pebble gives.
    async fn agent(&self, pebble: &Pebble, port: u16) -> Daemon {
        let trusted = self.home.path().join("trusted.pem");
        let own = std::fs::read_to_string(&self.authority.ca).unwrap();
        std::fs::write(&trusted, own + &pebble.root().await).unwrap();
        let url = format!("https://localhost:{port}");
        let config = client_config(self.home.path(), &url, &self.issuer.https(), Some(&trusted));
        Daemon::ready("client", &config).await
    }
}

async fn tunnel(agent: &Daemon) -> BufReader<TcpStream> {
    let mut stream = proxy::dial(agent.address).await.unwrap();
    let echo = target::echo().await.to_string();
    let head = proxy::connect(&mut stream, &echo, None).await.unwrap();
    assert_eq!(head.status, 200, "{head:?}");
    proxy::echoes(&mut stream, b"there and back").await.unwrap();
    stream
}

async fn readiness(daemon: &Daemon) -> (u16, String) {
    admin::get(daemon.admin, "/readyz").await.unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Pebble: POSTERN_PEBBLE names the binary"]
async fn a_certificate_is_ordered_kept_and_renewed_when_the_authority_wants_it() {
    let stage = Stage::new().await;
    let port = ports::free();
    let config = stage.gateway(port, &format!("https://localhost:{}/dir", ports::free()));
    let gateway = Daemon::start("gateway", &config);
    let said = eventually("the gateway says why it has no certificate", || async {
        let (status, text) = readiness(&gateway).await;
        (status == 503 && text.contains("failed")).then_some(text)
    })
    .await;
    assert!(said.contains("certificate: there is no certificate, so no client can connect"), "{said}");
    assert!(said.contains("The next is in") && said.contains("SIGHUP"), "{said}");
    gateway.process.terminate();

    let pebble = Pebble::start(stage.home.path(), &stage.authority, port, LIFE).await;
    let gateway = Daemon::ready("gateway", &stage.gateway(port, &pebble.directory())).await;
    let agent = stage.agent(&pebble, port).await;
    let mut open = tunnel(&agent).await;
    assert_eq!(mode(&stage.state()), 0o700);
    for file in ["account.json", "certificate.pem"] {
        assert_eq!(mode(&stage.state().join(file)), 0o600, "{file}");
    }

    let first = stage.certificate().unwrap();
    gateway.process.signal("HUP"); // nothing is wrong, so nothing is ordered
    proxy::echoes(&mut open, b"still").await.unwrap();
    assert_eq!(stage.certificate().unwrap(), first);
    pebble.wants_renewed(&first).await;
    gateway.process.signal("HUP");
    let second = eventually("it is renewed", || async {
        stage.certificate().filter(|certificate| *certificate != first)
    })
    .await;
    proxy::echoes(&mut open, b"as before").await.unwrap();
    tunnel(&agent).await;
    drop(open); // a drain would wait for it
    let ended = gateway.process.terminate();
    assert!(ended.stderr.contains("is postponed by"), "{}", ended.stderr);

    drop(pebble); // a restart needs no authority
    let gateway = Daemon::ready("gateway", &config).await;
    tunnel(&agent).await;
    assert_eq!(stage.certificate().unwrap(), second);
    let ended = gateway.process.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Pebble: POSTERN_PEBBLE names the binary"]
async fn a_short_lived_certificate_is_renewed_in_time_again_and_again() {
    let stage = Stage::new().await;
    let port = ports::free();
    let pebble = Pebble::start(stage.home.path(), &stage.authority, port, Duration::from_secs(20)).await;
    let gateway = Daemon::ready("gateway", &stage.gateway(port, &pebble.directory())).await;
    let agent = stage.agent(&pebble, port).await;
    let mut seen = vec![stage.certificate().unwrap()];
    let watching = async {
        while seen.len() < 3 {
            let (status, text) = readiness(&gateway).await;
            assert_eq!(status, 200, "{text}");
            seen.extend(stage.certificate().filter(|certificate| seen.last() != Some(certificate)));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(2 * PATIENCE, watching).await.expect("it is renewed");
    tunnel(&agent).await;
}

/// The authority's own look shows none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Pebble: POSTERN_PEBBLE names the binary"]
async fn a_name_is_proved_where_clients_need_a_certificate() {
    let stage = Stage::new().await;
    let port = ports::free();
    let pebble = Pebble::start(stage.home.path(), &stage.authority, port, 90 * DAY).await;
    let config = stage.gateway(port, &pebble.directory());
    let text = std::fs::read_to_string(&config).unwrap();
    let tls = format!("[tls]\nclient_ca = {:?}\n[tls.acme]", stage.authority.ca);
    std::fs::write(&config, text.replacen("[tls.acme]", &tls, 1)).unwrap();
    let _gateway = Daemon::ready("gateway", &config).await;
    let stranger = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let connector = TlsConnector::from(stage.authority.client_trusting(&pebble.root().await));
    let mut stream = connector.connect("localhost".try_into().unwrap(), stranger).await.unwrap();
    let refused = stream.read(&mut [0]).await.unwrap_err().to_string();
    assert!(refused.contains("CertificateRequired"), "{refused}");
}

/// The authority looks at a port where another server is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Pebble: POSTERN_PEBBLE names the binary"]
async fn a_name_that_leads_elsewhere_is_named() {
    let stage = Stage::new().await;
    let elsewhere = stage.issuer.address.port();
    let pebble = Pebble::start(stage.home.path(), &stage.authority, elsewhere, 90 * DAY).await;
    let gateway = Daemon::start("gateway", &stage.gateway(ports::free(), &pebble.directory()));
    let said = eventually("the gateway says what is wrong", || async {
        let (_, text) = readiness(&gateway).await;
        text.contains("could not see that localhost is this server").then_some(text)
    })
    .await;
    assert!(said.contains("must lead to this server's TLS listener"), "{said}");
}
