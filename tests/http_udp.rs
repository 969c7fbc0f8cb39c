//! `Upgrade: connect-udp` (RFC 9298) at the agent: a program's capsules to the gateway, over both versions of HTTP, without a token
//! of its own.

use crate::support::admin::{Metrics, metrics_when};
use crate::support::association::{Program, echo, echo_at, v4};
use crate::support::proxy::{self, Head, read_head};
use crate::support::udp::{Stage, Way, capsule, path, request, tokens};
use crate::support::{PATIENCE, edit, eventually, in_time};
use postern_testkit::ports;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Time in which an agent sends one token for a target that fails.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends a request and bytes behind it; returns the connection and the answer's head.
async fn ask(agent: SocketAddr, request: &str, behind: &[u8]) -> (BufReader<TcpStream>, Head) {
    let mut stream = proxy::dial(agent).await.unwrap();
    in_time(stream.write_all(&[request.as_bytes(), behind].concat())).await.unwrap();
    let head = in_time(read_head(&mut stream)).await.unwrap();
    (stream, head)
}

async fn open(agent: SocketAddr, target: SocketAddr) -> BufReader<TcpStream> {
    let (stream, head) = ask(agent, &request(&path(target), "Capsule-Protocol: ?1\r\n"), b"").await;
    assert_eq!(head.status, 101, "{head:?}");
    stream
}

/// Packets may be lost on a busy machine, so the datagram is sent again until it comes back.
async fn echoes(stream: &mut BufReader<TcpStream>, size: usize) {
    let (sent, began) = (capsule(&vec![size as u8; size]), Instant::now());
    let mut got = Vec::new();
    while !got.ends_with(&sent) {
        assert!(began.elapsed() < PATIENCE, "{} bytes came", got.len());
        stream.write_all(&sent).await.unwrap();
        let arriving = async {
            while !got.ends_with(&sent) {
                assert_ne!(stream.read_buf(&mut got).await.unwrap(), 0, "it ended");
            }
        };
        let _ = timeout(Duration::from_secs(10), arriving).await;
    }
}

async fn assert_each_stream_costs_one_token(way: Way) {
    let (stage, target) = (Stage::start(way).await, echo().await);
    let agent = stage.agent.address;
    // What was sent ahead of the answer (RFC 9931) goes on as well; the path may be a URL's.
    for uri in [path(target), format!("http://{agent}{}", path(target))] {
        let (mut stream, head) = ask(agent, &request(&uri, ""), &capsule(b"ahead")).await;
        assert_eq!(head.status, 101, "{head:?}");
        for (name, value) in
            [("connection", "Upgrade"), ("upgrade", "connect-udp"), ("capsule-protocol", "?1")]
        {
            assert_eq!(head.value(name), Some(value), "{head:?}");
        }
        assert_eq!((head.value("content-length"), head.value("transfer-encoding")), (None, None));
        let mut ahead = [0; 8];
        in_time(stream.read_exact(&mut ahead)).await.unwrap();
        assert_eq!(ahead[..], capsule(b"ahead"));
        for size in [0, 1, 62, 63, 1200, 9000, 65_000] {
            echoes(&mut stream, size).await;
        }
    }
    stage.has_streams(0).await;
    assert_eq!(stage.opened().await, 2);
    let (mut one, other) = (open(agent, target).await, open(agent, target).await);
    stage.has_streams(2).await;
    drop(other);
    stage.has_streams(1).await;
    // An end is answered by an end.
    echoes(&mut one, 4).await;
    one.shutdown().await.unwrap();
    assert_eq!(in_time(one.read(&mut [0])).await.unwrap(), 0);
    stage.has_streams(0).await;
    assert_eq!(stage.opened().await, 4);
    for daemon in [stage.agent, stage.gateway] {
        daemon.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http2_each_stream_costs_one_token() {
    assert_each_stream_costs_one_token(Way::Http2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http1_each_stream_costs_one_token() {
    assert_each_stream_costs_one_token(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http1_in_tls_each_stream_costs_one_token() {
    assert_each_stream_costs_one_token(Way::Tls).await;
}

/// Bytes behind a refused request are no further request, and no refusal of the agent's own costs a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_for_udp_is_refused_and_ends_the_connection() {
    let (stage, target) = (Stage::start(Way::Plain).await, echo().await);
    let (agent, at) = (stage.agent.address, path(target));
    let smuggled = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    for (request, words) in [
        (request("/", ""), "names no target"),
        (request("/.well-known/masque/udp/a.example/443", ""), "names no target"),
        (request("/.well-known/masque/udp/a..b/443/", ""), ""),
        (request("/.well-known/masque/udp/a.example/0/", ""), ""),
        (request(&at, "Content-Length: 0\r\n"), "no Content-Length"),
        (request(&at, "Content-Type: text/plain\r\n"), "no Content-Length"),
        (request(&at, "Host: twice\r\n"), "one Host field"),
        (request(&at, "Proxy-Authorization: PrivateToken token=\"eA==\"\r\n"), "this is an agent"),
        (request(&at, "Authorization: PrivateToken token=\"eA==\"\r\n"), "this is an agent"),
    ] {
        let (mut stream, head) = ask(agent, &request, smuggled.as_bytes()).await;
        assert_eq!((head.status, head.value("connection")), (400, Some("close")), "{request}{head:?}");
        let mut rest = String::new();
        in_time(stream.read_to_string(&mut rest)).await.unwrap();
        assert!(rest.contains(words) && !rest.contains("\r\n"), "{request}{rest}");
    }
    // Another upgrade is none for UDP.
    let other = request(&at, "").replace("connect-udp", "websocket");
    assert_eq!(ask(agent, &other, b"").await.1.status, 400);
    assert_eq!(stage.opened().await, 0);
    assert_eq!(Metrics::of(stage.agent.admin).await.agent_requests("bad_request"), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_refused_costs_a_token_only_once_in_a_while() {
    let (stage, target) = (Stage::with(Way::Http2, "", "").await, echo().await);
    let began = Instant::now();
    for turn in 0..20 {
        let (mut stream, head) = ask(stage.agent.address, &request(&path(target), ""), b"").await;
        let status = head.value("proxy-status").unwrap();
        assert!(head.status == 403 && status.contains("does not open tunnels to this port"), "{head:?}");
        let mut body = String::new();
        in_time(stream.read_to_string(&mut body)).await.unwrap();
        assert!(turn == 0 || began.elapsed() > PAUSE || body.contains("has sent no token"), "{turn}: {body}");
    }
    let metrics = Metrics::of(stage.agent.admin).await;
    let most = 1 + began.elapsed().as_secs() / PAUSE.as_secs();
    assert!((1..=most).contains(&tokens(&metrics, "target_failed")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_unreachable_costs_a_token_only_once_in_a_while() {
    let stage = Stage::start(Way::Http2).await;
    let closed = ports::closed_udp();
    let (began, mut refused) = (Instant::now(), 0);
    for _ in 0..20 {
        let (mut stream, head) =
            ask(stage.agent.address, &request(&path(closed), ""), &capsule(b"anybody?")).await;
        let mut rest = Vec::new();
        let ended = in_time(stream.read_to_end(&mut rest)).await;
        match head.status {
            101 => assert!(ended.is_err(), "an end in order: {rest:?}"),
            status => {
                refused += 1;
                let details = head.value("proxy-status").unwrap();
                assert!(status == 502 && details.contains("ended within seconds"), "{head:?}");
            }
        }
        stage.has_streams(0).await;
    }
    let opened = stage.opened().await;
    let most = 1 + began.elapsed().as_secs() / PAUSE.as_secs();
    assert!((1..=most).contains(&opened) && opened + refused == 20, "{opened} tokens");
}

/// A target that answers once and is gone ends its stream with the next datagram. HTTP and SOCKS5 then wait alike, for each other
/// as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_stream_costs_no_further_token_for_a_while_over_either_protocol() {
    let stage = Stage::start(Way::Http2).await;
    let agent = stage.agent.address;
    for is_first_socks in [false, true] {
        let (far, before) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), stage.opened().await);
        let (target, began) = (far.local_addr().unwrap(), Instant::now());
        let (program, mut room) = (stage.program().await, [0; 64]);
        let mut stream = None;
        if is_first_socks {
            program.send(&v4(target), b"once").await;
        } else {
            stream.insert(open(agent, target).await).write_all(&capsule(b"once")).await.unwrap();
        }
        let (length, from) = in_time(far.recv_from(&mut room)).await.unwrap();
        far.send_to(&room[..length], from).await.unwrap();
        match &mut stream {
            Some(stream) => _ = in_time(stream.read_exact(&mut [0; 7])).await.unwrap(),
            None => _ = in_time(program.socket.recv(&mut room)).await.unwrap(),
        }
        far.connect(target).await.unwrap(); // to itself: the kernel answers others that it is gone, and keeps its port
        match &mut stream {
            Some(stream) => stream.write_all(&capsule(b"twice")).await.unwrap(),
            None => program.send(&v4(target), b"twice").await,
        }
        stage.has_streams(0).await;
        for _ in 0..5 {
            program.send(&v4(target), b"again").await;
            let (_, head) = ask(agent, &request(&path(target), ""), &capsule(b"again")).await;
            if head.status == 502 {
                assert!(head.value("proxy-status").unwrap().contains("ended within seconds"), "{head:?}");
            }
            stage.has_streams(0).await;
        }
        let (opened, most) =
            (stage.opened().await - before, 1 + 2 * (began.elapsed().as_secs() / PAUSE.as_secs()));
        assert!(opened <= most, "{opened} tokens in {:?}, SOCKS5 first: {is_first_socks}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_targets_udp_is_refused_over_http_as_well() {
    let (stage, target) =
        (Stage::with(Way::Plain, "udp = \"any\"\n", "udp_targets = 0\n").await, echo().await);
    let (_, head) = ask(stage.agent.address, &request(&path(target), ""), b"").await;
    assert!(head.status == 403 && head.fields.contains("udp_targets"), "{head:?}");
    edit(&stage.agent_file, "udp_targets = 0", "udp_targets = 1");
    stage.agent.reread("listen.udp_targets");
    echoes(&mut open(stage.agent.address, target).await, 4).await;
    assert_eq!(stage.opened().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_keeps_the_place_of_its_connection() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "connections = 2\n").await;
    let (agent, target) = (stage.agent.address, echo().await);
    let (mut one, other) = (open(agent, target).await, open(agent, target).await);
    let (_, head) = ask(agent, &request(&path(target), ""), b"").await;
    assert_eq!(head.status, 503, "{head:?}");
    echoes(&mut one, 4).await;
    drop(other);
    // SOCKS5 has the same places.
    eventually("the place is free", || async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        Program::with(socket, 0, agent).await.ok()
    })
    .await;
    echoes(&mut one, 4).await;
    assert_eq!(stage.opened().await, 2);
}

/// A malformed stream is the gateway's to refuse, and breaks the program's connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_stream_breaks_and_no_other_one_does() {
    for way in [Way::Http2, Way::Plain] {
        let (stage, target) = (Stage::start(way).await, echo().await);
        let mut other = open(stage.agent.address, target).await;
        let mut stream = open(stage.agent.address, target).await;
        echoes(&mut stream, 4).await;
        stream.write_all(&[0, 0]).await.unwrap();
        let mut rest = Vec::new();
        assert!(in_time(stream.read_to_end(&mut rest)).await.is_err(), "{way:?}: an end in order");
        stage.has_streams(1).await;
        echoes(&mut other, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_streams_and_begins_none() {
    let (stage, target) = (Stage::start(Way::Http2).await, echo().await);
    let mut busy = open(stage.agent.address, target).await;
    stage.agent.process.signal("TERM");
    eventually("it takes no connection", || async { proxy::dial(stage.agent.address).await.err() }).await;
    echoes(&mut busy, 4).await;
    drop(busy);
    stage.agent.process.ended().assert_stopped();
}

/// After a restart of the gateway a new stream opens, 5 s after the last one at the latest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_the_gateway_a_new_stream_opens() {
    let (stage, target) = (Stage::start(Way::Http2).await, echo().await);
    let agent = stage.agent.address;
    let mut stream = open(agent, target).await;
    echoes(&mut stream, 4).await;
    stage.gateway.process.kill();
    assert!(!matches!(in_time(stream.read(&mut [0; 16])).await, Ok(1..)));
    let gateway = crate::support::daemon::Daemon::ready("gateway", &stage.gateway_file).await;
    eventually("a stream", || async {
        let (stream, head) = ask(agent, &request(&path(target), ""), b"").await;
        (head.status == 101).then_some(stream)
    })
    .await;
    metrics_when(gateway.admin, "none was spent twice", |metrics| metrics.requests("already_spent") == 0)
        .await;
}

/// A payload of the greatest length is more than one packet of IPv6 through the loopback interface.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_counts_the_datagrams_that_the_path_does_not_take() {
    let (stage, target) = (Stage::start(Way::Http2).await, echo_at((Ipv6Addr::LOCALHOST, 0)).await);
    let mut stream = open(stage.agent.address, target).await;
    in_time(stream.write_all(&capsule(&[7; 65_527]))).await.unwrap();
    echoes(&mut stream, 100).await;
    let dropped = |direction| format!("postern_datagrams_dropped_total{{direction=\"{direction}\"}}");
    let up = |metrics: &Metrics| metrics.value(&dropped("up")) == 1;
    let metrics = metrics_when(stage.gateway.admin, "a datagram is dropped", up).await;
    assert_eq!(metrics.value(&dropped("down")), 0);
}
