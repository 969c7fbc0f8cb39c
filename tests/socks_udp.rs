//! UDP ASSOCIATE (RFC 1928) in the agent: a program's datagrams through CONNECT-UDP, over both versions of HTTP.

use crate::support::admin::{Metrics, metrics_when};
use crate::support::association::{Program, datagram, echo, name, v4};
use crate::support::daemon::{Daemon, client_config};
use crate::support::tls::Authority;
use crate::support::udp::{Stage, Way, tokens};
use crate::support::{edit, eventually, in_time, proxy, target};
use postern_testkit::ports;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_rustls::TlsAcceptor;

/// Time in which an agent sends one token for a target that fails.
const PAUSE: Duration = Duration::from_secs(5);

async fn assert_each_target_costs_one_token(way: Way) {
    let (stage, first, second) = (Stage::start(way).await, echo().await, echo().await);
    let mut program = stage.program().await;
    for size in [4, 62, 63, 1200, 9000, 65_497] {
        program.echo(&v4(first), size).await;
    }
    assert_eq!(stage.opened().await, 1);
    for size in [4, 1200] {
        program.echo(&name("localhost", second.port()), size).await;
        program.echo(&v4(first), size).await;
    }
    assert_eq!(stage.opened().await, 2);
    stage.has_streams(2).await;
    // The streams end with the connection, and only that of this program.
    let mut other = stage.program().await;
    other.echo(&v4(first), 4).await;
    assert_eq!(stage.opened().await, 3);
    drop(program.control);
    stage.has_streams(1).await;
    other.echo(&v4(first), 4).await;
    drop(other.control);
    stage.has_streams(0).await;
    assert_eq!(stage.opened().await, 3);
    for daemon in [stage.agent, stage.gateway] {
        daemon.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http2_each_target_costs_one_token() {
    assert_each_target_costs_one_token(Way::Http2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http1_each_target_costs_one_token() {
    assert_each_target_costs_one_token(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http1_in_tls_each_target_costs_one_token() {
    assert_each_target_costs_one_token(Way::Tls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_and_datagrams_of_others_are_dropped() {
    let (stage, target, other) = (Stage::start(Way::Http2).await, echo().await, echo().await);
    let mut program = stage.program().await;
    program.echo(&v4(target), 4).await;
    let mut fragment = datagram(&v4(other), b"a part");
    fragment[2] = 1;
    program.socket.send_to(&fragment, program.relay).await.unwrap();
    program.socket.send_to(&[0, 0, 0, 1, 127], program.relay).await.unwrap();
    program.send(&[2, 0, 0], b"no such type").await;
    stage.dropped(3).await;
    for source in ["127.0.0.1:0", "127.0.0.2:0"] {
        let stranger = UdpSocket::bind(source).await.unwrap();
        stranger.send_to(&datagram(&v4(other), b"mine"), program.relay).await.unwrap();
    }
    stage.dropped(5).await;
    program.echo(&v4(target), 4).await;
    assert_eq!(stage.opened().await, 1);

    // A port that was announced counts from the first datagram on.
    let announced = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = announced.local_addr().unwrap().port();
    let mut program = Program::with(announced, port, stage.agent.address).await.unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.send_to(&datagram(&v4(target), b"mine"), program.relay).await.unwrap();
    stage.dropped(6).await;
    assert_eq!(stage.opened().await, 1);
    program.echo(&v4(target), 4).await;
    assert_eq!(stage.opened().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_the_target_that_was_silent_for_longest_ends() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "udp_targets = 2\n").await;
    let [first, second, third] = [v4(echo().await), v4(echo().await), v4(echo().await)];
    let mut program = stage.program().await;
    for target in [&first, &second, &first, &third, &first] {
        program.echo(target, 4).await;
    }
    stage.has_streams(2).await;
    assert_eq!(stage.opened().await, 3);
    program.echo(&second, 4).await;
    program.echo(&first, 4).await;
    assert_eq!(stage.opened().await, 4);
    stage.has_streams(2).await;
}

/// Sends a request that the agent answers itself.
async fn is_served(connection: &mut BufReader<TcpStream>) {
    in_time(connection.write_all(b"HEAD /proxy.pac HTTP/1.1\r\nHost: localhost\r\n\r\n")).await.unwrap();
    assert_eq!(in_time(proxy::read_head(connection)).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_target_takes_a_place_of_a_connection() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "connections = 6\n").await;
    let [first, second, third] = [v4(echo().await), v4(echo().await), v4(echo().await)];
    let mut program = stage.program().await;
    program.echo(&first, 4).await;
    program.echo(&second, 4).await;
    // The other half of the places is for connections, idle ones too.
    let mut connection = proxy::dial(stage.agent.address).await.unwrap();
    is_served(&mut connection).await;
    program.send(&third, b"one too many").await;
    metrics_when(stage.agent.admin, "there is no place", |metrics| metrics.agent_requests("too_many") > 0)
        .await;
    is_served(&mut connection).await;
    program.echo(&first, 4).await;
    assert_eq!(stage.opened().await, 2);
    drop(program);
    stage.has_streams(0).await;
    eventually("the places are free", || async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut program = Program::with(socket, 0, stage.agent.address).await.ok()?;
        program.echo(&third, 4).await;
        Some(())
    })
    .await;
}

/// A program that vanished without a word, as a phone does, would otherwise hold its place for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_association_without_a_target_gives_its_place_to_a_connection() {
    tokio::join!(vanished_after_its_target(), vanished_without_a_place_for_its_target());
}

async fn vanished_after_its_target() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "connections = 4\n").await;
    let closed = v4(ports::closed_udp());
    let program = stage.program().await;
    program.send(&closed, b"nobody is there").await;
    metrics_when(stage.agent.admin, "a stream was open", |metrics| metrics.agent_requests("opened") > 0)
        .await;
    stage.has_streams(0).await;
    makes_room(&stage, program).await;
}

async fn vanished_without_a_place_for_its_target() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "connections = 4\n").await;
    let (target, other) = (v4(echo().await), v4(echo().await));
    let (mut program, unlucky) = (stage.program().await, stage.program().await);
    program.echo(&target, 4).await;
    unlucky.send(&other, b"there is no place").await;
    metrics_when(stage.agent.admin, "there is no place", |metrics| metrics.agent_requests("too_many") > 0)
        .await;
    makes_room(&stage, unlucky).await;
    program.echo(&target, 4).await;
    assert_eq!(stage.opened().await, 1);
}

/// Waits until connections have displaced the program's association.
async fn makes_room(stage: &Stage, mut program: Program) {
    let ended = tokio::spawn(async move { program.control.read(&mut [0]).await });
    eventually("the association makes room", || async {
        let mut connections = Vec::new();
        for _ in 0..4 {
            connections.push(proxy::dial(stage.agent.address).await.ok()?);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        ended.is_finished().then_some(())
    })
    .await;
}

/// A program that looks for servers with a datagram to each address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_leaves_half_of_the_tokens_to_tunnels() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "").await;
    edit(&stage.agent_file, "[wallet]\n", "[wallet]\nmost_per_minute = 8\n");
    stage.agent.reread("wallet.most_per_minute");
    let (program, closed) = (stage.program().await, ports::closed());
    for host in 1..=100 {
        program.send(&v4(SocketAddr::from(([127, 0, 1, host], 9))), b"anybody?").await;
    }
    metrics_when(stage.agent.admin, "the scan is limited", |metrics| metrics.agent_requests("no_token") > 50)
        .await;
    let mut stream = proxy::dial(stage.agent.address).await.unwrap();
    let answer = in_time(proxy::connect(&mut stream, &closed.to_string(), None)).await.unwrap();
    assert_ne!(answer.status, 429, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_being_opened_makes_no_room_for_another() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "udp_targets = 2\n").await;
    let [first, second, third, fourth] =
        [v4(echo().await), v4(echo().await), v4(echo().await), v4(echo().await)];
    let mut program = stage.program().await;
    program.echo(&first, 4).await;
    stage.gateway.process.signal("STOP");
    for target in [&second, &third, &fourth, &fourth] {
        program.send(target, b"wait").await;
    }
    stage.dropped(2).await; // those to the fourth
    stage.gateway.process.signal("CONT");
    for target in [&second, &third, &second] {
        program.echo(target, 4).await;
    }
    assert_eq!(stage.opened().await, 3);
    assert_eq!(tokens(&Metrics::of(stage.agent.admin).await, "abandoned"), 0);
    stage.has_streams(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_refused_is_tried_once_in_a_while_and_nothing_comes_back() {
    let (stage, target) = (Stage::with(Way::Http2, "", "").await, echo().await);
    let (program, began) = (stage.program().await, Instant::now());
    program.send(&v4(target), b"to a port that is not 443").await;
    metrics_when(stage.agent.admin, "the gateway refuses", |metrics| {
        metrics.agent_requests("target_failed") == 1
    })
    .await;
    for sent in 0..50 {
        program.send(&v4(target), b"again").await;
        stage.dropped(sent + 2).await;
    }
    let metrics = Metrics::of(stage.agent.admin).await;
    let most = 1 + began.elapsed().as_secs() / PAUSE.as_secs();
    assert!(tokens(&metrics, "target_failed") <= most, "{} tokens", tokens(&metrics, "target_failed"));
    let gateway = Metrics::of(stage.gateway.admin).await;
    assert_eq!((gateway.requests("opened"), gateway.requests("already_spent")), (0, 0));
    assert!(program.socket.try_recv(&mut [0; 16]).is_err(), "something came back");
}

/// The system reports each datagram to such a port, which ends its stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_unreachable_costs_a_token_only_once_in_a_while() {
    let stage = Stage::start(Way::Http2).await;
    let closed = ports::closed_udp();
    let (program, began) = (stage.program().await, Instant::now());
    for sent in 0..50 {
        program.send(&v4(closed), b"anybody?").await;
        if sent == 0 {
            metrics_when(stage.gateway.admin, "a stream", |metrics| metrics.requests("opened") >= 1).await;
        }
        stage.has_streams(0).await;
    }
    let opened = stage.opened().await;
    let most = 1 + began.elapsed().as_secs() / PAUSE.as_secs();
    assert!(opened <= most, "{opened} tokens in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_the_gateway_the_next_datagrams_open_a_new_stream() {
    tokio::join!(restarted(Way::Http2), restarted(Way::Plain));
}

async fn restarted(way: Way) {
    let Stage { _home, issuer: _issuer, gateway, gateway_file, agent, .. } = Stage::start(way).await;
    let (target, mut program) = (v4(echo().await), Program::of(agent.address).await);
    program.echo(&target, 4).await;
    gateway.process.kill();
    let gateway = Daemon::ready("gateway", &gateway_file).await;
    program.echo(&target, 4).await;
    assert!(Metrics::of(gateway.admin).await.requests("opened") >= 1, "{way:?}");
    assert_eq!(Metrics::of(gateway.admin).await.requests("already_spent"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_an_association_without_a_stream_and_waits_for_others() {
    let (stage, target, other) = (Stage::start(Way::Http2).await, echo().await, echo().await);
    let (mut idle, mut busy) = (stage.program().await, stage.program().await);
    busy.echo(&v4(target), 4).await;
    stage.agent.process.signal("TERM");
    assert_eq!(in_time(idle.control.read(&mut [0])).await.unwrap(), 0);
    busy.echo(&v4(target), 4).await;
    // It was sent before the echo, and opens no stream.
    busy.send(&v4(other), b"a new target").await;
    busy.echo(&v4(target), 4).await;
    assert_eq!(Metrics::of(stage.gateway.admin).await.requests("opened"), 1);
    drop(busy);
    stage.agent.process.ended().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_targets_the_command_is_not_supported() {
    let stage = Stage::with(Way::Plain, "udp = \"any\"\n", "udp_targets = 0\n").await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    assert_eq!(Program::with(socket, 0, stage.agent.address).await.err(), Some(7));
    let mut stream = proxy::dial(stage.agent.address).await.unwrap();
    let target = target::echo().await;
    assert_eq!(proxy::socks(&mut stream, "127.0.0.1", target.port()).await.unwrap(), 0);
    // A reload allows it, and forbids it to those that have begun.
    edit(&stage.agent_file, "udp_targets = 0", "udp_targets = 1");
    stage.agent.reread("listen.udp_targets");
    let (mut program, first, second) = (stage.program().await, echo().await, echo().await);
    program.echo(&v4(first), 4).await;
    edit(&stage.agent_file, "udp_targets = 1", "udp_targets = 0");
    stage.agent.reread("listen.udp_targets");
    program.send(&v4(second), b"a new target").await;
    stage.dropped(1).await;
    program.echo(&v4(first), 4).await;
    assert_eq!(stage.opened().await, 2);
}

/// A gateway of HTTP/2 without extended CONNECT, which asks for tokens of another one. It counts those that come.
async fn gateway_without_udp(authority: &Authority, other: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let mut stream = proxy::dial(other).await.unwrap();
    let refusal = proxy::connect(&mut stream, "challenge.invalid:443", None).await.unwrap();
    let challenge = refusal.value("proxy-authenticate").unwrap().to_owned();
    let certificates = CertificateDer::pem_file_iter(&authority.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&authority.key).unwrap();
    let mut tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key)
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let (tls, listener) = (TlsAcceptor::from(Arc::new(tls)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (address, tokens) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&tokens);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, challenge, counted) = (tls.clone(), challenge.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                let stream = tls.accept(stream).await.unwrap();
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let mut answer = http::Response::builder().status(407);
                    if request.headers().contains_key("proxy-authorization") {
                        counted.fetch_add(1, Ordering::Relaxed);
                        answer = answer.status(502);
                    }
                    let answer = answer.header("proxy-authenticate", &challenge).body(()).unwrap();
                    let _ = respond.send_response(answer, true); // the agent may be gone
                }
            });
        }
    });
    (address, tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_offers_no_udp_is_sent_no_token() {
    let (stage, home) = (Stage::start(Way::Plain).await, TempDir::new().unwrap());
    let authority = Authority::new(home.path());
    let (gateway, came) = gateway_without_udp(&authority, stage.gateway.address).await;
    let (url, issuer) = (format!("https://{gateway}"), stage.issuer.http());
    let file = client_config(home.path(), &url, &issuer, Some(&authority.ca));
    let agent = Daemon::ready("client", &file).await;
    let program = Program::of(agent.address).await;
    program.send(&v4(echo().await), b"first").await;
    metrics_when(agent.admin, "the gateway has failed", |metrics| {
        metrics.agent_requests("gateway_failed") > 0
    })
    .await;
    agent.process.wait_for("the reason", |_, log| log.contains("carries no UDP over HTTP/2").then_some(()));
    assert_eq!(came.load(Ordering::Relaxed), 0);
    let mut stream = proxy::dial(agent.address).await.unwrap();
    assert_eq!(proxy::connect(&mut stream, "target.example:443", None).await.unwrap().status, 502);
    assert_eq!(came.load(Ordering::Relaxed), 1, "a tunnel of TCP sends one");
}
