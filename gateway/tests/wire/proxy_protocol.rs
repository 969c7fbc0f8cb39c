//! The PROXY protocol of load balancers: whom a connection counts for. Here the whole loopback network is the balancers'.

use crate::places::settled;
use crate::support::client::{Client, connect, connect_with};
use crate::support::target::Echo;
use crate::support::{PATIENCE, Running};
use postern_config::ConfigDuration;
use postern_daemon::proxy_protocol::Balancers;
use postern_gateway::config::Config;
use postern_testkit::clients::proxy_headers;
use postern_testkit::ports;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpStream;

/// A health check of a balancer, in either version.
const LOCAL: [&[u8]; 2] = [b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"];

/// The networks that `[listen] proxy_protocol` may name.
pub(crate) fn balancers(network: &str) -> Balancers {
    Balancers(vec![network.parse().unwrap()])
}

async fn behind_balancer(change: impl FnOnce(&mut Config)) -> Running {
    Running::start_with(|config| {
        config.listen.proxy_protocol = balancers("127.0.0.0/8");
        change(config);
    })
    .await
}

/// A connection that begins with `header`.
async fn client(gateway: &Running, header: impl AsRef<[u8]>) -> Client {
    let mut client = Client::connect(gateway.address).await;
    client.send(header).await;
    client
}

#[tokio::test]
async fn a_connection_with_a_header_is_served_however_it_arrives() {
    let (gateway, echo) = (behind_balancer(|_| {}).await, Echo::start().await);
    for header in proxy_headers(1).iter().map(Vec::as_slice).chain(LOCAL) {
        let at_once = [header, connect(echo.address).as_bytes(), b"early"].concat();
        let mut whole = client(&gateway, at_once).await;
        whole.answer().await.assert_opened();
        assert_eq!(whole.take(5).await, b"early");
        let mut dribbled = Client::connect(gateway.address).await;
        dribbled.stream.set_nodelay(true).unwrap();
        for byte in header {
            dribbled.send([*byte]).await;
            tokio::task::yield_now().await;
        }
        dribbled.send(connect(echo.address)).await;
        dribbled.answer().await.assert_opened();
    }
}

#[tokio::test]
async fn clients_behind_one_balancer_are_counted_apart() {
    let gateway = behind_balancer(|config| config.limits.source.connections = 2).await;
    for (first, second) in [(proxy_headers(1), proxy_headers(2)), (proxy_headers(3), proxy_headers(4))] {
        let held = (
            settled(client(&gateway, &first[0]).await).await,
            settled(client(&gateway, &first[1]).await).await,
        );
        let mut refused = client(&gateway, &first[0]).await;
        refused.send(connect_with("a.example:443", &[])).await;
        refused.answer().await.assert_refused(429, "http_request_denied", "from this address");
        refused.closed_silently().await;
        settled(client(&gateway, &second[0]).await).await;
        drop(held);
    }
    gateway.emptied().await;
    let [header, _] = proxy_headers(1);
    let again =
        (settled(client(&gateway, &header).await).await, settled(client(&gateway, &header).await).await);
    drop(again);
}

#[tokio::test]
async fn a_balancers_own_connections_have_no_limit_for_a_source() {
    let gateway = behind_balancer(|config| {
        config.limits.source.connections = 1;
        config.limits.source.exempt = Vec::new();
    })
    .await;
    let mut held = Vec::new();
    for header in LOCAL.into_iter().chain(LOCAL) {
        held.push(settled(client(&gateway, header).await).await);
    }
}

#[tokio::test]
async fn a_header_from_elsewhere_is_a_bad_request_and_does_not_choose_the_source() {
    let gateway = Running::start_with(|config| {
        config.listen.proxy_protocol = balancers("127.0.0.9/32");
        config.limits.source.connections = 1;
        config.limits.source.exempt = Vec::new();
    })
    .await;
    for header in proxy_headers(1) {
        let mut stranger = client(&gateway, header).await;
        stranger.send(connect_with("a.example:443", &[])).await;
        stranger.answer().await.assert_refused(400, "http_request_error", "not valid HTTP/1.1");
        drop(stranger);
        gateway.emptied().await;
    }
    let held = settled(Client::connect(gateway.address).await).await;
    for header in proxy_headers(1) {
        let mut stranger = client(&gateway, header).await;
        stranger.answer().await.assert_refused(429, "http_request_denied", "from this address");
    }
    drop(held);
}

#[tokio::test]
async fn what_is_not_a_header_is_closed_without_an_answer() {
    let gateway = behind_balancer(|_| {}).await;
    let [v1, v2] = proxy_headers(1);
    let too_long_v1 = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
    let too_long_v2 = [&v2[..14], b"\xff\xff"].concat();
    let missing = connect_with("a.example:443", &[]);
    for bytes in
        [too_long_v1.as_bytes(), &too_long_v2, missing.as_bytes(), b"PROXY TCP4 nonsense\r\n", b"\x16\x03"]
    {
        let mut client = client(&gateway, bytes).await;
        assert!(client.is_ended().await, "{}", bytes.escape_ascii());
    }
    for truncated in [&b""[..], &v1[..v1.len() - 1], &v2[..v2.len() - 1]] {
        let mut client = client(&gateway, truncated).await;
        tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
        assert!(client.is_ended().await, "{}", truncated.escape_ascii());
    }
    gateway.emptied().await;
}

#[tokio::test]
async fn a_header_that_does_not_come_in_time_is_given_up() {
    let gateway = behind_balancer(|config| config.limits.header_timeout = ConfigDuration::millis(300)).await;
    let mut silent = Client::connect(gateway.address).await;
    assert!(silent.is_ended().await);
    let mut dribbled = Client::connect(gateway.address).await;
    let (mut reading, mut writing) = dribbled.stream.split();
    let dribble = async {
        for byte in b"PROXY UNKNOWN ".iter().chain(&[b'x'; 80]) {
            if tokio::io::AsyncWriteExt::write_all(&mut writing, &[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // it is never whole: all of it takes 5 s
        }
        std::future::pending().await
    };
    let ended = async {
        let read = tokio::io::AsyncReadExt::read(&mut reading, &mut [0]).await;
        assert!(matches!(read, Ok(0) | Err(_)));
    };
    tokio::select! {
        () = ended => {}
        () = dribble => {}
        () = tokio::time::sleep(PATIENCE) => panic!("it is still open"),
    }
    gateway.emptied().await;
}

#[tokio::test]
async fn a_connection_that_waits_for_its_header_gives_way() {
    let gateway = behind_balancer(|config| {
        config.limits.connections = 1;
        config.limits.header_timeout = ConfigDuration::minutes(5); // it is not what frees the place
    })
    .await;
    let mut silent = client(&gateway, "PROXY TCP4 ").await;
    gateway.accepted(1).await;
    let [header, _] = proxy_headers(1);
    let served = settled(client(&gateway, header).await).await;
    assert!(silent.is_ended().await);
    drop(served);
}

// ---- A real balancer ----

/// haproxy before `gateway`, with a port for each version of the protocol. It ends with the test.
struct Haproxy {
    child: Child,
    ports: Vec<SocketAddr>,
    _home: TempDir,
}

impl Haproxy {
    async fn start(gateway: SocketAddr) -> Self {
        let home = TempDir::new().unwrap();
        let ports = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], ports::free()))).to_vec();
        let listen = |name: &str, port: SocketAddr, how: &str| {
            format!("listen {name}\n  bind {port}\n  server gateway {gateway} {how} check\n")
        };
        let file = home.path().join("haproxy.cfg");
        let text = format!(
            "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n{}{}",
            listen("first", ports[0], "send-proxy"),
            listen("second", ports[1], "send-proxy-v2"),
        );
        std::fs::write(&file, text).unwrap();
        let child = Self::command(&file).spawn().expect("haproxy is installed (apt-get install haproxy)");
        let started = Self { child, ports, _home: home };
        for port in &started.ports {
            let listening = async {
                while TcpStream::connect(port).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(PATIENCE, listening).await.expect("haproxy listens");
        }
        started
    }

    /// Debian installs it in a folder that only root's PATH has.
    fn command(file: &Path) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("haproxy");
        command.env("PATH", format!("{path}:/usr/sbin")).args(["-db", "-f"]).arg(file);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "needs haproxy"]
async fn a_tunnel_opens_behind_a_real_haproxy_and_its_clients_are_counted_apart() {
    let echo = Echo::start().await;
    let gateway = behind_balancer(|config| {
        config.limits.source.connections = 1;
        config.limits.source.exempt = Vec::new();
    })
    .await;
    let haproxy = Haproxy::start(gateway.address).await;
    for port in &haproxy.ports {
        let first = settled(crate::places::client_from(21, *port).await).await;
        let mut refused = crate::places::client_from(21, *port).await;
        refused.send(connect_with("a.example:443", &[])).await;
        refused.answer().await.assert_refused(429, "http_request_denied", "from this address");
        let mut other = crate::places::client_from(22, *port).await;
        other.send(connect(echo.address)).await;
        other.answer().await.assert_opened();
        other.send("through").await;
        assert_eq!(other.take(7).await, b"through");
        drop((first, refused, other));
        gateway.emptied().await;
    }
}
