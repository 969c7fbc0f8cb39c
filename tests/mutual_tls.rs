//! A gateway that serves only agents with a certificate of its operator's authority.

use crate::support::admin::{Metrics, metrics_when};
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::proxy::{self, Head};
use crate::support::target;
use crate::support::tls::Authority;
use std::net::SocketAddr;
use std::process::Command;
use tempfile::TempDir;

const UNANSWERED: &str = "postern_agent_tokens_total{fate=\"unanswered\",hop=\"last\"}";

struct Stage {
    home: TempDir,
    authority: Authority,
    issuer: Daemon,
    gateway: Daemon,
    echo: SocketAddr,
}

impl Stage {
    async fn start() -> Self {
        let home = TempDir::new().unwrap();
        let authority = Authority::new(home.path());
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), &authority.section())).await;
        let (tls, ca) = (authority.section(), &authority.ca);
        let config = gateway_config(
            home.path(),
            &issuer.https(),
            &format!("ca = {ca:?}"),
            "1s",
            &format!("{tls}client_ca = {ca:?}\n"),
        );
        let gateway = Daemon::ready("gateway", &config).await;
        let echo = target::echo().await;
        Self { home, authority, issuer, gateway, echo }
    }

    /// With these lines in `[gateway]`. All have one wallet.
    fn agent(&self, lines: &str) -> Daemon {
        let url = self.gateway.https();
        let config = client_config(self.home.path(), &url, &self.issuer.https(), Some(&self.authority.ca));
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replacen("[gateway]", &format!("[gateway]\n{lines}"), 1)).unwrap();
        Daemon::start("client", &config)
    }

    fn certificate(&self) -> String {
        let [certificate, key] = &self.authority.client;
        format!("certificate = {certificate:?}\nkey = {key:?}\n")
    }

    async fn connect(&self, agent: &Daemon) -> Head {
        let mut stream = proxy::dial(agent.address).await.unwrap();
        let head = proxy::connect(&mut stream, &self.echo.to_string(), None).await.unwrap();
        if head.status == 200 {
            proxy::echoes(&mut stream, b"there and back").await.unwrap();
        }
        head
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_a_certificate_is_served_and_one_without_reads_why_and_loses_no_token() {
    let stage = Stage::start().await;
    for sharing in ["", "tunnels = 1\n"] {
        let agent = stage.agent(&(stage.certificate() + sharing));
        assert_eq!(stage.connect(&agent).await.status, 200);
        let ends = Metrics::of(agent.admin)
            .await
            .value("postern_agent_certificate_ends_timestamp_seconds{hop=\"last\"}");
        assert!(ends > 0, "an operator sees when it ends");
        agent.process.terminate().assert_stopped();
    }
    let stranger = stage.agent("");
    let refused = stage.connect(&stranger).await;
    assert_eq!(refused.status, 502, "{refused:?}");
    assert!(refused.fields.contains("a certificate of its operator's authority"), "{refused:?}");
    assert!(refused.fields.contains("No token was sent"), "{refused:?}");
    assert_eq!(Metrics::of(stranger.admin).await.value(UNANSWERED), 0);
    // The agent may have the gateway's alert before it is counted.
    let is_counted = |metrics: &Metrics| metrics.requests("client_certificate") > 0;
    metrics_when(stage.gateway.admin, "the gateway counts it", is_counted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_without_tls_is_answered_in_words_at_gateway_and_issuer() {
    let stage = Stage::start().await;
    for address in [stage.gateway.address, stage.issuer.address] {
        for method in ["GET", "POST"] {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "-i", "-X", method, "-m", "20"]).arg(format!("http://{address}/"));
            let said = curl.output().unwrap();
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            assert!(said.status.success() && text.starts_with("HTTP/1.1 400 Bad Request"), "{said:?}");
            assert!(text.ends_with("This port speaks TLS: use https://\n"), "{said:?}");
        }
    }
    let mut stream = proxy::dial(stage.gateway.address).await.unwrap();
    let head: Head = proxy::connect(&mut stream, &stage.echo.to_string(), None).await.unwrap();
    assert_eq!(head.status, 400, "{head:?}");
}
