//! The agent's HTTP/2 connections: several tunnels on one, and no token lost where a connection is.

use crate::support::admin::Metrics;
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::relay::Relay;
use crate::support::tls::Authority;
use crate::support::{PATIENCE, proxy, target};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// An issuer, a gateway over TLS, a relay in front of it that counts connections, and an agent.
struct Stage {
    home: TempDir,
    authority: Authority,
    issuer: Daemon,
    gateway: Daemon,
    relay: Relay,
    agent: Daemon,
    echo: SocketAddr,
}

impl Stage {
    /// With these lines in `[listen]` of the gateway, and in `[gateway]` of the agent.
    async fn start(gateway_listen: &str, agent_gateway: &str) -> Self {
        Self::with(gateway_listen, "", agent_gateway).await
    }

    /// The same, with another section of the gateway.
    async fn with(gateway_listen: &str, gateway_section: &str, agent_gateway: &str) -> Self {
        let home = TempDir::new().unwrap();
        let authority = Authority::new(home.path());
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), &authority.section())).await;
        let ca = format!("ca = {:?}", authority.ca);
        let config = gateway_config(
            home.path(),
            &issuer.https(),
            &ca,
            "1s",
            &(gateway_section.to_owned() + &authority.section()),
        );
        add(&config, "[listen]", gateway_listen);
        let gateway = Daemon::ready("gateway", &config).await;
        let relay = Relay::to(&[gateway.address.port()]);
        let url = format!("https://{}", relay.address());
        let config = client_config(home.path(), &url, &issuer.https(), Some(&authority.ca));
        add(&config, "[gateway]", agent_gateway);
        let agent = Daemon::ready("client", &config).await;
        let echo = target::echo().await;
        Self { home, authority, issuer, gateway, relay, agent, echo }
    }

    async fn tunnel_to(&self, target: SocketAddr) -> BufReader<TcpStream> {
        let mut stream = proxy::dial(self.agent.address).await.unwrap();
        let head = proxy::connect(&mut stream, &target.to_string(), None).await.unwrap();
        assert_eq!(head.status, 200, "{head:?}");
        stream
    }

    async fn tunnel(&self) -> BufReader<TcpStream> {
        let mut stream = self.tunnel_to(self.echo).await;
        proxy::echoes(&mut stream, b"there and back").await.unwrap();
        stream
    }

    async fn tunnels(&self, count: usize) -> Vec<BufReader<TcpStream>> {
        let mut tunnels = Vec::new();
        for _ in 0..count {
            tunnels.push(self.tunnel().await);
        }
        tunnels
    }

    /// As many tokens have left the wallet as tunnels were opened.
    async fn lost_nothing(&self) {
        let (agent, gateway) = (Metrics::of(self.agent.admin).await, Metrics::of(self.gateway.admin).await);
        assert_eq!(agent.value("postern_agent_tokens_total{fate=\"unanswered\",hop=\"last\"}"), 0);
        assert_eq!(agent.agent_requests("opened"), gateway.requests("opened"));
    }
}

fn add(config: &Path, section: &str, lines: &str) {
    let text = std::fs::read_to_string(config).unwrap();
    assert!(text.contains(section), "{text}");
    std::fs::write(config, text.replacen(section, &format!("{section}\n{lines}"), 1)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_share_a_connection_and_each_costs_one_token() {
    let stage = Stage::start("", "").await;
    let mut carrying = JoinSet::new();
    for mut tunnel in stage.tunnels(20).await {
        carrying.spawn(async move {
            let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n >> 3) as u8).collect();
            proxy::echoes(&mut tunnel, &bytes).await.map(|()| tunnel)
        });
    }
    let tunnels: Vec<_> = carrying.join_all().await.into_iter().map(Result::unwrap).collect();
    assert_eq!(stage.relay.came(), 1);
    let mut socks = proxy::dial(stage.agent.address).await.unwrap();
    assert_eq!(proxy::socks(&mut socks, "127.0.0.1", stage.echo.port()).await.unwrap(), 0);
    proxy::echoes(&mut socks, b"by SOCKS5, too").await.unwrap();
    assert_eq!(stage.relay.came(), 1);
    assert_eq!(Metrics::of(stage.gateway.admin).await.requests("opened"), 21);
    stage.lost_nothing().await;
    drop((tunnels, socks));
    for daemon in [stage.agent, stage.gateway, stage.issuer] {
        daemon.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_carries_no_more_tunnels_than_it_may_for_no_longer_than_it_may() {
    let stage = Stage::start("", "tunnels = 2\nconnection_lifetime = \"8s\"").await;
    let before = stage.relay.came(); // a probe may have come, and its connection takes tunnels
    let mut tunnels = stage.tunnels(5).await;
    let came = stage.relay.came();
    assert!((3..=4).contains(&came), "{came} connections for five tunnels, {before} before");
    tunnels.truncate(1);
    sleep(Duration::from_secs(8)).await;
    tunnels.extend(stage.tunnels(1).await);
    assert_eq!(stage.relay.came(), came + 1, "the others are too old");
    for tunnel in &mut tunnels {
        proxy::echoes(tunnel, b"and they still carry bytes").await.unwrap();
    }
    stage.lost_nothing().await;
}

/// The agent knows the gateway's limit of tunnels before it sends the first token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_at_a_gateway_that_allows_few_tunnels_on_a_connection_costs_no_token() {
    let stage = Stage::with("", "[limits]\nstreams = 2\n", "").await;
    let opening: JoinSet<_> = (0..8)
        .map(|_| {
            let (agent, echo) = (stage.agent.address, stage.echo);
            async move {
                let mut stream = proxy::dial(agent).await.unwrap();
                (proxy::connect(&mut stream, &echo.to_string(), None).await.unwrap().status, stream)
            }
        })
        .collect();
    let opened = opening.join_all().await;
    assert!(opened.iter().all(|(status, _)| *status == 200), "{:?}", opened.iter().map(|(status, _)| status));
    stage.lost_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_http2_each_tunnel_has_its_own_connection() {
    for (gateway, agent) in [("http2 = false", ""), ("", "tunnels = 1")] {
        let stage = Stage::start(gateway, agent).await;
        let before = stage.relay.came();
        let _tunnels = stage.tunnels(3).await;
        assert_eq!(stage.relay.came() - before, 3);
        stage.lost_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_is_replaced_and_costs_no_token() {
    let stage = Stage::start("", "").await;
    let mut tunnels = stage.tunnels(3).await;
    let came = stage.relay.came();
    stage.relay.cut();
    for tunnel in &mut tunnels {
        let read = timeout(PATIENCE, tunnel.read(&mut [0])).await.unwrap();
        assert!(!matches!(read, Ok(1..)), "{read:?}");
    }
    let _tunnels = stage.tunnels(3).await;
    assert_eq!(stage.relay.came(), came + 1);
    stage.lost_nothing().await;
}

/// The path is gone, and neither end closes: the gateway's machine lost its power, or a NAT its table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_silent_is_replaced_and_costs_no_token() {
    let stage = Stage::start("", "").await;
    let _lost = stage.tunnel().await;
    let came = stage.relay.came();
    stage.relay.hold_replies(Duration::from_secs(3600));
    sleep(Duration::from_millis(1500)).await;
    let opening = stage.tunnel_to(stage.echo);
    let thawing = async {
        while stage.relay.came() == came {
            sleep(Duration::from_millis(20)).await;
        }
        stage.relay.hold_replies(Duration::ZERO);
    };
    let (mut tunnel, ()) = timeout(PATIENCE, async { tokio::join!(opening, thawing) }).await.unwrap();
    proxy::echoes(&mut tunnel, b"on another connection").await.unwrap();
    stage.lost_nothing().await;
}

/// The same a moment after a sign of life, so that a token is on its way: it is burnt, and another one opens the tunnel at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_on_a_connection_that_has_just_died_moves_to_another_within_seconds() {
    let stage = Stage::start("", "").await;
    let _lost = stage.tunnel().await;
    let came = stage.relay.came();
    stage.relay.hold_replies(Duration::from_secs(3600));
    let began = Instant::now();
    let opening = async {
        let open = || stage.tunnel_to(stage.echo);
        tokio::join!(open(), open(), open())
    };
    let thawing = async {
        while stage.relay.came() == came {
            sleep(Duration::from_millis(20)).await;
        }
        stage.relay.hold_replies(Duration::ZERO);
    };
    let (tunnels, ()) = timeout(PATIENCE, async { tokio::join!(opening, thawing) }).await.unwrap();
    let mut tunnels: [_; 3] = tunnels.into();
    assert!(began.elapsed() < Duration::from_secs(15), "after {:?}", began.elapsed());
    for tunnel in &mut tunnels {
        proxy::echoes(tunnel, b"on another connection").await.unwrap();
    }
    let agent = Metrics::of(stage.agent.admin).await;
    assert_eq!(agent.value("postern_agent_tokens_total{fate=\"unanswered\",hop=\"last\"}"), 3);
    assert_eq!(agent.agent_requests("opened"), 4);
    // None was sent twice: each that came was new to the gateway.
    assert_eq!(Metrics::of(stage.gateway.admin).await.requests("already_spent"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_does_not_read_stops_no_other() {
    let stage = Stage::start("", "").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flood = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move { while stream.write_all(&[7; 1 << 16]).await.is_ok() {} });
        }
    });
    let mut stalled = Vec::new();
    for _ in 0..10 {
        stalled.push(stage.tunnel_to(flood).await);
    }
    sleep(Duration::from_millis(500)).await;
    let mut other = stage.tunnel().await;
    proxy::echoes(&mut other, &vec![1; 1 << 20]).await.unwrap();
    assert_eq!(stage.relay.came(), 1);
    let mut read = vec![0; 8 << 20];
    timeout(PATIENCE, stalled[0].read_exact(&mut read)).await.unwrap().unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
}

/// The gateway announces that it goes away: open tunnels continue, and new ones wait for the next gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_replaced_costs_no_token() {
    let Stage { home, authority, issuer, gateway, relay, agent, echo } = Stage::start("", "").await;
    let stage = Stage { home, authority, issuer, gateway, relay, agent, echo };
    let mut tunnel = stage.tunnel().await;
    stage.gateway.process.signal("TERM");
    sleep(Duration::from_millis(300)).await;
    proxy::echoes(&mut tunnel, b"runs on").await.unwrap();
    let mut refused = proxy::dial(stage.agent.address).await.unwrap();
    let head = proxy::connect(&mut refused, &stage.echo.to_string(), None).await.unwrap();
    assert!(matches!(head.status, 502 | 503), "{head:?}");
    let agent = Metrics::of(stage.agent.admin).await;
    assert_eq!(agent.value("postern_agent_tokens_total{fate=\"unanswered\",hop=\"last\"}"), 0);
    drop((tunnel, refused));
    assert!(stage.home.path().exists() && stage.authority.ca.exists());
}
