//! Tunnels through the agent, by CONNECT and SOCKS5, over real sockets.

use crate::support::gateway::{Gateway, Mood, Step};
use crate::support::issuer::Issuer;
use crate::support::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(HANG, stream.read_to_end(&mut bytes)).await.expect("the end").unwrap();
    bytes
}

/// Sends hello, then echoes everything, and a farewell after the end: whichever side ends first, all of it
/// must arrive.
const LENGTH: usize = 3_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_ends_first_still_gets_every_byte() {
    let world = World::new().await;
    let target = serve(|mut stream| async move {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let count = bytes.len().to_string();
        stream.write_all(&vec![b'x'; LENGTH]).await.unwrap();
        stream.write_all(count.as_bytes()).await.unwrap();
    })
    .await;
    let mut answer = world.connect(&target.to_string()).await;
    answer.stream.write_all(&vec![b'y'; LENGTH]).await.unwrap();
    answer.stream.shutdown().await.unwrap();
    let back = read_all(&mut answer.stream).await;
    assert_eq!(back.len(), LENGTH + 7);
    assert_eq!(back[LENGTH..], *LENGTH.to_string().as_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_ends_first_still_gets_every_byte() {
    let world = World::new().await;
    let (sender, received) = tokio::sync::oneshot::channel();
    let sender = Arc::new(parking_lot::Mutex::new(Some(sender)));
    let target = serve(move |mut stream| {
        let sender = sender.lock().take();
        async move {
            stream.write_all(&vec![b'x'; LENGTH]).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            sender.unwrap().send(bytes.len()).unwrap();
        }
    })
    .await;
    let mut answer = world.connect(&target.to_string()).await;
    let rest = read_all(&mut answer.stream).await;
    assert_eq!(answer.body.len() + rest.len(), LENGTH);
    answer.stream.write_all(&vec![b'y'; LENGTH]).await.unwrap();
    answer.stream.shutdown().await.unwrap();
    assert_eq!(timeout(HANG, received).await.unwrap().unwrap(), LENGTH);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_come_with_the_request_or_the_answer_are_relayed() {
    let world = World::new().await;
    let target = echo().await;
    world.gateway.then(Step::OpenWith(b"server first\n"));
    let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nclient first\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap(); // and nothing more: it must be answered all the same
    let mut answer = timeout(HANG, answer(stream)).await.unwrap();
    assert_eq!(answer.status, 200);
    let rest = read_all(&mut answer.stream).await;
    assert_eq!(answer.body + std::str::from_utf8(&rest).unwrap(), "server first\nclient first\n");
}

/// RFC 9110, section 9.3.6: a client ignores the length of a successful answer to CONNECT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_in_the_answer_that_opens_a_tunnel_means_nothing() {
    for field in ["Content-Length: 3", "Transfer-Encoding: chunked"] {
        let world = World::new().await;
        let raw = format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\nall of it");
        world.gateway.then(Step::Raw(raw.into_bytes()));
        let mut answer = timeout(HANG, connect(world.agent.address, "target.example:443")).await.unwrap();
        assert_eq!(answer.status, 200, "{field}");
        let rest = read_all(&mut answer.stream).await;
        assert_eq!(answer.body + std::str::from_utf8(&rest).unwrap(), "all of it", "{field}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_behind_tls_is_reached() {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let tls = postern_daemon::tls::ServerTls::load(&certificate, &key).unwrap().config();
    let issuer = Issuer::start().await;
    let gateway = Gateway::start_with(&issuer, Some(tls.into())).await;
    let mut config = config(&gateway, &issuer, directory.path());
    config.gateway.ca = Some(certificate);
    let agent = RunningAgent::start(config).await;
    let mut answer = connect(agent.address, &echo().await.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    expect_echo(&mut answer.stream).await;
    answer.stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut answer.stream).await, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_reports_what_it_is_and_what_it_is_not() {
    let world = World::new().await;
    let agent = world.agent.address;
    let page = send(agent, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains(&format!("curl -x http://{agent}")), "{}", page.body);
    for request in [
        "GET /other HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "GET https://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://user@x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT x:0 HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT x HTTP/1.1\r\nHost: x\r\n\r\n",
        "no HTTP at all\r\n\r\n",
    ] {
        assert_eq!(send(agent, request.as_bytes()).await.status, 400, "{request}");
    }
    assert!(world.gateway.tokens().is_empty());
}

pub async fn socks(agent: SocketAddr, address: &[u8], port: u16) -> (u8, TcpStream) {
    let mut stream = TcpStream::connect(agent).await.unwrap();
    // Two methods offered, and the request sent before the answer to them has come.
    stream.write_all(&[5, 2, 2, 0, 5, 1, 0]).await.unwrap();
    stream.write_all(address).await.unwrap();
    stream.write_all(&port.to_be_bytes()).await.unwrap();
    let mut answer = [0; 12];
    timeout(HANG, stream.read_exact(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!((answer[..3].to_vec(), answer[4..].to_vec()), (vec![5, 0, 5], vec![0, 1, 0, 0, 0, 0, 0, 0]));
    (answer[3], stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socks5_reaches_names_and_addresses_of_both_families() {
    let world = World::new().await;
    let port = echo().await.port();
    let name = [&[3, 14][..], b"target.example"].concat();
    let v6 = [&[4][..], &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]].concat();
    for (address, host) in
        [(name, "target.example"), (vec![1, 192, 0, 2, 1], "192.0.2.1"), (v6, "[2001:db8::1]")]
    {
        let (reply, mut stream) = socks(world.agent.address, &address, port).await;
        assert_eq!(reply, 0);
        expect_echo(&mut stream).await;
        let head = world.gateway.heads().pop().unwrap();
        assert!(
            head.starts_with(&format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n")),
            "{head}"
        );
    }
    assert_eq!(world.gateway.tokens().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socks5_reports_what_went_wrong() {
    let world = World::new().await;
    world.stocked(8).await;
    // A target that failed is answered again for seconds, so each has its port.
    for (port, (status, fields, reply)) in (443..).zip([
        (403, "", 2),
        (502, "Proxy-Status: gw; error=connection_refused\r\n", 5),
        (502, "Proxy-Status: gw; error=dns_error\r\n", 4),
        (504, "", 4),
        (500, "", 1),
    ]) {
        let raw = format!("HTTP/1.1 {status} No\r\n{fields}Content-Length: 0\r\n\r\n");
        world.gateway.then(Step::Raw(raw.into_bytes()));
        assert_eq!(socks(world.agent.address, &[1, 192, 0, 2, 1], port).await.0, reply, "{status} {fields}");
    }
    world.gateway.set_mood(Mood::Unavailable);
    assert_eq!(socks(world.agent.address, &[1, 192, 0, 2, 1], 80).await.0, 1, "no gateway serves");
    let tokens = world.gateway.tokens().len();
    assert_eq!(socks(world.agent.address, &[&[3, 4][..], b"a\r\nb"].concat(), 443).await.0, 1);
    assert_eq!(world.gateway.tokens().len(), tokens);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_socks_cannot_do_here_is_refused_in_its_own_words() {
    let world = World::new().await;
    let exchange = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        read_all(&mut stream).await
    };
    let refused = |reply| vec![5, 0, 5, reply, 0, 1, 0, 0, 0, 0, 0, 0];
    for command in [2, 9] {
        let request = [5, 1, 0, 5, command, 0, 1, 192, 0, 2, 1, 1, 187];
        assert_eq!(exchange(&request).await, refused(7), "command {command}");
    }
    assert_eq!(exchange(&[5, 1, 0, 5, 1, 0, 2, 0, 0, 0, 0]).await, refused(8), "an unknown address type");
    assert_eq!(exchange(&[5, 1, 2]).await, [5, 255], "passwords only");
    assert_eq!(exchange(&[5, 1, 0, 5, 1, 0, 3, 9, b'x']).await, [5, 0], "cut off");
    assert_eq!(exchange(&[4, 1, 1, 187, 192, 0, 2, 1, 0]).await, [0, 91, 0, 0, 0, 0, 0, 0], "SOCKS4");
    assert!(world.gateway.tokens().is_empty());
}

/// RFC 9931: a program may forward another party's bytes ahead of the answer, which would be requests and cost tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connect_ends_the_connection() {
    let world = World::new().await;
    world.gateway.then(Step::Raw(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n".to_vec()));
    let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
    let smuggled = format!("GET http://{}/ HTTP/1.1\r\nHost: x\r\n\r\n", echo().await);
    let request = format!("CONNECT target.example:443 HTTP/1.1\r\nHost: x\r\n\r\n{smuggled}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = timeout(HANG, answer(stream)).await.unwrap();
    assert_eq!((answer.status, field(&answer.head, "connection")), (502, Some("close".into())));
    assert_eq!(read_all(&mut answer.stream).await, b"");
    assert_eq!(world.gateway.tokens().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_what_is_open_and_accepts_nothing_new() {
    let world = World::new().await;
    let mut open = world.connect(&echo().await.to_string()).await;
    let idle = TcpStream::connect(world.agent.address).await.unwrap();
    let shutdown = world.agent.process.shutdown.clone();
    shutdown.drain();
    let mut idle = idle;
    assert_eq!(read_all(&mut idle).await, b"", "a connection without a request ends");
    world
        .until("the listener is closed", || std::net::TcpStream::connect(world.agent.address).is_err())
        .await;
    expect_echo(&mut open.stream).await;
    open.stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut open.stream).await, b"");
    let drained = timeout(HANG, shutdown.wait(HANG)).await.expect("the drain ends by itself");
    assert_eq!(drained, postern_daemon::drain::Drained::Finished);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_answers_a_first_request_that_is_on_its_way() {
    let (world, target) = (World::new().await, echo().await);
    world.stocked(8).await;
    let mut connections = Vec::new();
    for first in ["", "CONNECT "] {
        let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        connections.push((stream, &"CONNECT "[first.len()..]));
    }
    tokio::time::sleep(Duration::from_millis(50)).await; // they are accepted
    world.agent.process.shutdown.drain();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for (stream, rest) in &mut connections {
        stream
            .write_all(format!("{rest}{target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
            .await
            .unwrap();
    }
    for (stream, _) in connections {
        let mut answer = timeout(HANG, answer(stream)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.head);
        expect_echo(&mut answer.stream).await;
    }
}

#[tokio::test]
async fn a_client_that_never_reads_its_answers_is_cut_off() {
    let world = World::new().await;
    let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
    let flood = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(64);
    let flooding = async { while stream.write_all(flood.as_bytes()).await.is_ok() {} };
    timeout(2 * HANG, flooding).await.expect("the agent closes the connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_is_too_long_is_431_and_a_silent_client_is_closed() {
    let world = World::new().await;
    let mut silent = TcpStream::connect(world.agent.address).await.unwrap();
    let long =
        format!("GET http://target.example/ HTTP/1.1\r\nHost: x\r\nCookie: {}\r\n\r\n", "a".repeat(80_000));
    let answer = send(world.agent.address, long.as_bytes()).await;
    assert_eq!((answer.status, field(&answer.head, "connection").as_deref()), (431, Some("close")));
    assert!(
        answer.head.contains("error=http_request_error") && answer.body.contains("32 KiB"),
        "{}",
        answer.head
    );
    // After ten seconds; it was a minute.
    let closed = timeout(HANG, silent.read(&mut [0])).await;
    assert_eq!(closed.expect("the agent closes the connection").unwrap(), 0);
}
