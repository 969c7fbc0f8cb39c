//! The same over TLS, with a certificate from files.

use crate::proxy_protocol::balancers;
use crate::support::client::{Client, NO_TOKEN, connect, connect_with, find};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running};
use postern_config::ConfigDuration;
use postern_daemon::tls::{TlsConfig, client_config};
use postern_gateway::config::Config;
use postern_testkit::clients::{flood_until_cut, proxy_headers};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate for `proxy.example`, signed by itself.
pub(crate) fn certificate(home: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["proxy.example".to_owned()]).unwrap();
    let (certificate, key) = (home.join("certificate.pem"), home.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

pub(crate) struct Front {
    gateway: Running,
    connector: TlsConnector,
    _home: TempDir,
}

impl Front {
    async fn start(limit: usize, header_timeout: ConfigDuration) -> Self {
        Self::start_with(|config| {
            config.limits.connections = limit;
            config.limits.header_timeout = header_timeout;
        })
        .await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let home = TempDir::new().unwrap();
        let (certificate, key) = certificate(home.path());
        let connector = TlsConnector::from(Arc::clone(&client_config(Some(&certificate)).unwrap()));
        let gateway = Running::start_with(|config| {
            config.tls = Some(TlsConfig::of_files(certificate, key));
            change(config);
        })
        .await;
        Self { gateway, connector, _home: home }
    }

    async fn connect(&self) -> Client<TlsStream<TcpStream>> {
        self.connect_after(b"").await
    }

    /// A stream of a client that offers these protocols.
    pub(crate) async fn speaking(&self, protocols: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut config = self.connector.config().clone();
        Arc::make_mut(&mut config).alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(self.gateway.address).await.unwrap();
        TlsConnector::from(config).connect("proxy.example".try_into().unwrap(), stream).await.unwrap()
    }

    /// Sends `header` before the handshake.
    async fn connect_after(&self, header: &[u8]) -> Client<TlsStream<TcpStream>> {
        let mut stream = TcpStream::connect(self.gateway.address).await.unwrap();
        stream.write_all(header).await.unwrap();
        let name = "proxy.example".try_into().unwrap();
        Client::over(self.connector.connect(name, stream).await.unwrap())
    }
}

/// Clients that also offer HTTP/2 get refusals before any request in HTTP/1.1: HTTP/2 has no form for them.
#[tokio::test]
async fn who_is_turned_away_reads_why_whatever_it_offers() {
    let turned_away = async |front: &Front, status, details| {
        let stream = front.speaking(&[b"h2", b"http/1.1"]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
        let answer = Client::over(stream).answer().await;
        answer.assert_refused(status, "http_request_denied", details);
        assert!(!answer.value("retry-after").is_empty());
    };
    let full = Front::start(1, ConfigDuration::secs(10)).await;
    let echo = Echo::start().await;
    let mut tunnel = full.connect().await;
    tunnel.send(connect_with(echo.address, &[&ISSUER.authorization()])).await;
    tunnel.head().await.assert_opened();
    turned_away(&full, 503, "too many").await;

    let limited = Front::start_with(|config| {
        config.limits.source.exempt = Vec::new();
        config.limits.source.refusals = 1;
        config.limits.source.refusals_burst = 1;
    })
    .await;
    let mut refused = limited.connect().await;
    refused.send("nonsense\r\n\r\n").await;
    assert_eq!(refused.answer().await.status, 400);
    turned_away(&limited, 429, "too many").await;
}

#[tokio::test]
async fn challenge_tunnel_replay_and_half_close_over_tls() {
    let (front, echo) = (Front::start(100, ConfigDuration::secs(10)).await, Echo::start().await);
    let request = connect_with(echo.address, &[&ISSUER.authorization()]);
    let mut client = front.connect().await;
    client.send(NO_TOKEN).await;
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client.send(format!("{request}early ")).await;
    client.answer().await.assert_opened();
    let sent = vec![7; 3 << 20];
    let (mut reader, mut writer) = tokio::io::split(client.stream);
    let writing = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap(); // close_notify: the other direction stays open
    };
    let mut got = client.unread;
    let (_, read) = tokio::join!(writing, reader.read_to_end(&mut got));
    read.unwrap(); // and ends with a close_notify, not with a cut
    assert!(got == [b"early ", &sent[..]].concat());

    let mut client = front.connect().await;
    client.send(request).await;
    client.answer().await.assert_refused(407, "http_request_denied", "token already spent");
}

#[tokio::test]
async fn errors_over_tls_are_readable() {
    let front = Front::start(100, ConfigDuration::secs(10)).await;
    let mut client = front.connect().await;
    client.send("nonsense\r\n\r\n").await;
    client.answer().await.assert_refused(400, "http_request_error", "not valid HTTP/1.1");
    client.closed_silently().await;
    let mut client = front.connect().await;
    client
        .send(
            connect("a.example:443").replace("\r\n\r\n", &format!("\r\nX: {}\r\n\r\n", "x".repeat(1 << 20))),
        )
        .await;
    client.answer().await.assert_refused(431, "http_request_error", "too large");
}

#[tokio::test]
async fn too_many_connections_are_refused_with_an_answer_over_tls() {
    let (front, echo) = (Front::start(1, ConfigDuration::secs(10)).await, Echo::start().await);
    let mut first = front.connect().await;
    first.send(connect(echo.address)).await;
    first.answer().await.assert_opened();
    let mut second = front.connect().await;
    second.answer().await.assert_refused(503, "http_request_denied", "too many connections");
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_given_up() {
    let front = Front::start(100, ConfigDuration::millis(200)).await;
    let mut silent = Client::connect(front.gateway.address).await;
    silent.closed_silently().await;
    let mut slow = Client::connect(front.gateway.address).await;
    slow.send(b"\x16\x03\x01").await;
    slow.closed_silently().await;
    front.gateway.emptied().await;
}

#[tokio::test]
async fn plain_http_on_the_tls_port_reads_that_it_speaks_tls() {
    let front = Front::start(100, ConfigDuration::secs(10)).await;
    let mut client = Client::connect(front.gateway.address).await;
    client.send(connect("a.example:443")).await;
    let got = String::from_utf8(client.rest().await).unwrap();
    assert!(
        got.starts_with("HTTP/1.1 400 ") && got.ends_with("This port speaks TLS: use https://\n"),
        "{got}"
    );
}

#[tokio::test]
async fn a_client_that_never_reads_its_answers_is_cut_off() {
    let front = Front::start(100, ConfigDuration::millis(500)).await;
    let client = front.connect().await;
    flood_until_cut(client.stream, NO_TOKEN).await;
    front.gateway.emptied().await;
}

#[tokio::test]
async fn a_proxy_header_comes_before_the_handshake() {
    let echo = Echo::start().await;
    let front = Front::start_with(|config| {
        config.listen.proxy_protocol = balancers("127.0.0.0/8");
        config.limits.source.connections = 1;
    })
    .await;
    let mut held = Vec::new();
    for (version, client) in [(0, 1), (1, 3)] {
        let [header, other] =
            [proxy_headers(client), proxy_headers(client + 1)].map(|headers| headers[version].clone());
        let mut client = front.connect_after(&header).await;
        client.send(NO_TOKEN).await;
        client.answer().await.assert_refused(407, "http_request_denied", "no token");
        let mut refused = front.connect_after(&header).await;
        refused.answer().await.assert_refused(429, "http_request_denied", "from this address");
        let mut other = front.connect_after(&other).await;
        other.send(connect(echo.address)).await;
        other.answer().await.assert_opened();
        held.push((client, other));
    }
    let mut without = Client::connect(front.gateway.address).await;
    without.send(b"\x16\x03\x01").await;
    assert!(without.is_ended().await);
}

#[tokio::test]
async fn too_many_connections_behind_a_balancer_are_refused_with_an_answer_over_tls() {
    let echo = Echo::start().await;
    let front = Front::start_with(|config| {
        config.listen.proxy_protocol = balancers("127.0.0.0/8");
        config.limits.connections = 1;
    })
    .await;
    let [header, other] = proxy_headers(1);
    let mut first = front.connect_after(&header).await;
    first.send(connect(echo.address)).await;
    first.answer().await.assert_opened();
    let mut second = front.connect_after(&other).await;
    second.answer().await.assert_refused(503, "http_request_denied", "too many connections");
}

#[tokio::test]
async fn a_proxy_header_from_elsewhere_is_no_handshake() {
    let front = Front::start_with(|config| config.listen.proxy_protocol = balancers("127.0.0.9/32")).await;
    let [header, _] = proxy_headers(1);
    let mut client = Client::connect(front.gateway.address).await;
    client.send(header).await;
    let mut got = Vec::new();
    let _ = client.stream.read_to_end(&mut got).await; // an alert, then a close or a reset
    assert!(find(&got, b"HTTP").is_none());
    front.gateway.emptied().await;
}
