//! UDP through the gateway (RFC 9298): datagrams in capsules, over HTTP/2 and HTTP/1.1.

use crate::support::client::{Answer, Client, connect_with};
use crate::support::http2::Http2;
use crate::support::target::Echo;
use crate::support::udp::{any_port, ask, capsule, echo, open, open_with, paid, path, upgrade};
use crate::support::{ISSUER, PATIENCE, Running};
use h2::Reason;
use postern_config::ConfigDuration;
use postern_gateway::config::{Config, Egress};
use postern_testkit::ports;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

async fn start() -> Running {
    Running::start_with(any_port).await
}

async fn start_without_rates() -> Running {
    let change = |config: &mut Config| {
        any_port(config);
        config.limits.source.refusals = 0;
    };
    Running::start_with(change).await
}

/// The challenge is in both fields, whichever of them the client knows.
fn assert_challenged(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    let challenge = answer.value("proxy-authenticate");
    assert!(challenge.starts_with("PrivateToken challenge="), "{answer:?}");
    assert_eq!(answer.value("www-authenticate"), challenge);
    assert!(answer.all("capsule-protocol").is_empty(), "{answer:?}");
}

#[tokio::test]
async fn datagrams_go_both_ways_whole_and_a_token_opens_one_stream() {
    let (gateway, target) = (start().await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let token = ISSUER.authorization();
    let fields = [("proxy-authorization", token.as_str())];
    let (answer, mut flow) = open_with(&mut client, target, &token).await;
    answer.assert_opened();
    for length in [0, 1, 62, 63, 1200, 1472, 9000, 65_507] {
        flow.echo(&vec![length as u8; length]).await;
    }
    assert_challenged(&ask(&mut client, &path(target), &fields).await.answer().await, 407);
    // Not for TCP either.
    let tcp = Echo::start().await;
    let answer = Client::ask(gateway.address, connect_with(tcp.address, &[&token])).await;
    answer.assert_refused(407, "http_request_denied", "already spent");
    flow.echo(b"after both").await;
    drop((flow, client));
    gateway.emptied().await;
}

#[tokio::test]
async fn http1_upgrades_to_capsules_also_to_those_that_were_sent_ahead() {
    let (gateway, target) = (start().await, echo().await);
    for authorization in ["Proxy-Authorization", "Authorization"] {
        let head = format!(
            "GET {} HTTP/1.1\r\nHost: proxy.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: connect-udp\r\n\
             Capsule-Protocol: ?1\r\n{authorization}: {}\r\n\r\n",
            path(target),
            ISSUER.authorization()
        );
        let mut client = Client::connect(gateway.address).await;
        client.send([head.as_bytes(), &capsule(b"ahead")].concat()).await;
        let answer = client.head().await;
        assert_eq!(answer.status, 101, "{answer:?}");
        assert_eq!(answer.value("upgrade"), "connect-udp");
        assert_eq!(answer.value("connection").to_lowercase(), "upgrade");
        assert_eq!(answer.value("capsule-protocol"), "?1");
        for field in ["content-length", "content-type", "transfer-encoding"] {
            assert!(answer.all(field).is_empty(), "{answer:?}");
        }
        assert_eq!(client.take(8).await, capsule(b"ahead"));
        client.send(capsule(b"after")).await;
        assert_eq!(client.take(8).await, capsule(b"after"));
        drop(client);
    }
    gateway.emptied().await;
}

/// Bytes that a client sent ahead of the answer must not be read as another request.
#[tokio::test]
async fn a_refused_upgrade_ends_the_connection() {
    let (gateway, target) = (start().await, echo().await);
    let smuggled = connect_with(target, &[&ISSUER.authorization()]);
    let mut client = Client::connect(gateway.address).await;
    client.send(upgrade(target, "") + &smuggled).await;
    let answer = client.answer().await;
    assert_challenged(&answer, 407);
    assert_eq!(answer.value("connection"), "close");
    assert!(client.is_ended().await);
}

#[tokio::test]
async fn capsules_may_arrive_byte_by_byte_and_unknown_ones_are_skipped() {
    let (gateway, target) = (start().await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut flow = open(&mut client, target).await;
    let mut stream = vec![0x17, 3, 0, 0, 0]; // an unknown type
    stream.extend([0, 4, 2, 0, 1, 0]); // an unknown context
    stream.extend(capsule(b"known"));
    for byte in stream {
        flow.tunnel.send(&[byte]).await.unwrap();
    }
    assert_eq!(flow.next().await.unwrap(), b"known");
    // A capsule of the greatest length is skipped for ever.
    flow.tunnel.send(&[0x17, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
    for _ in 0..64 {
        flow.tunnel.send(&[0; 64 << 10]).await.unwrap();
    }
    open(&mut client, target).await.echo(b"another").await;
}

#[tokio::test]
async fn a_malformed_stream_is_reset_and_the_connection_stays_open() {
    let (gateway, target) = (start().await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    for malformed in [
        &[0, 0][..],                                             // no context
        &[0, 1, 0x40],                                           // half a context
        &[0, 0x80, 1, 0, 0, 0],                                  // 65,535 bytes
        &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], // 2^62 - 1
    ] {
        let mut flow = open(&mut client, target).await;
        flow.echo(b"before").await;
        flow.tunnel.send(malformed).await.unwrap();
        assert_eq!(flow.tunnel.reset().await, Some(Reason::PROTOCOL_ERROR), "{malformed:?}");
    }
    let mut flow = open(&mut client, target).await;
    flow.tunnel.send(&capsule(b"cut")[..4]).await.unwrap();
    flow.tunnel.end();
    assert_eq!(flow.tunnel.reset().await, Some(Reason::PROTOCOL_ERROR));
    open(&mut client, target).await.echo(b"still on").await;
    // HTTP/1.1 has nothing but the connection.
    let mut client = Client::connect(gateway.address).await;
    client.send(upgrade(target, &paid()).into_bytes()).await;
    assert_eq!(client.head().await.status, 101);
    client.send([capsule(b"before"), vec![0, 0]].concat()).await;
    client.is_reset().await;
}

#[tokio::test]
async fn what_egress_forbids_is_refused_and_costs_no_token_where_that_can_be_known() {
    let (target, other) = (echo().await, echo().await);
    let port = target.port();
    let egress = |text: &str| postern_config::parse::<Egress>("egress.toml", text, []).unwrap();
    for (text, authority, is_spent) in [
        ("private = true\nports = \"any\"".into(), target.to_string(), false), // 443 alone by default
        ("private = true\nports = \"any\"\nudp = \"off\"".into(), "127.0.0.1:443".to_owned(), false),
        (format!("private = true\nudp = [{}]", other.port()), target.to_string(), false),
        // A rule for TCP opens no port of UDP.
        (format!("private = true\n[[rules]]\nallow = [\"127.0.0.1:{port}\"]"), target.to_string(), false),
        (format!("udp = \"any\"\nports = [{port}]"), target.to_string(), false),
        ("udp = \"any\"".into(), format!("[::ffff:127.0.0.1]:{port}"), false),
        ("udp = \"any\"".into(), "10.0.0.1:443".to_owned(), false),
        ("udp = \"any\"".into(), "[::1]:443".to_owned(), false),
        ("private = true\nudp = \"any\"\ndeny = [\"127.0.0.0/8\"]".into(), target.to_string(), false),
        ("udp = \"any\"\n[[rules]]\ndeny = [\"localhost\"]".into(), format!("localhost:{port}"), false),
        // Only the lookup shows that the name is that of a private address.
        ("udp = \"any\"".into(), format!("localhost:{port}"), true),
    ] {
        println!("{text} {authority}");
        let refusing = Running::start_with(|config| config.egress = egress(&text)).await;
        let token = ISSUER.authorization();
        let fields = [("proxy-authorization", token.as_str())];
        let mut client = Http2::connect(refusing.address).await;
        let answer = ask(&mut client, &path(&authority), &fields).await.answer().await;
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(answer.all("proxy-authenticate").is_empty() && answer.all("www-authenticate").is_empty());
        drop(client);
        let home = refusing.stop().await;
        let mut open = Running::start_in(home, any_port).unwrap();
        open.ready().await;
        let mut client = Http2::connect(open.address).await;
        let (answer, _tunnel) = ask(&mut client, &path(target), &fields).await.opened().await;
        assert_eq!(answer.status, if is_spent { 407 } else { 200 }, "{answer:?}");
        drop(client);
        open.shutdown.stop();
        open.ended().await;
    }
}

#[tokio::test]
async fn both_kinds_of_client_learn_the_challenge_and_present_their_token() {
    let (gateway, target) = (start().await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let (token, path) = (ISSUER.authorization(), path(target));
    for (fields, status) in [
        (&[][..], 407),
        (&[("proxy-authorization", "Basic eDp4")], 407),
        (&[("authorization", "Basic eDp4")], 401),
        (&[("authorization", "Basic eDp4"), ("proxy-authorization", "Basic eDp4")], 407),
    ] {
        assert_challenged(&ask(&mut client, &path, fields).await.answer().await, status);
    }
    let twice = [("authorization", token.as_str()), ("proxy-authorization", token.as_str())];
    assert_eq!(ask(&mut client, &path, &twice).await.answer().await.status, 400);
    let basic = [("authorization", token.as_str()), ("proxy-authorization", "Basic eDp4")];
    ask(&mut client, &path, &basic).await.opened().await.0.assert_opened();
    assert_challenged(&ask(&mut client, &path, &twice[..1]).await.answer().await, 401);
    // A target of TCP is a proxy's, and Authorization is for what lies behind it.
    let tcp = Echo::start().await;
    let request = format!(
        "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\nAuthorization: {1}\r\n\r\n",
        tcp.address,
        ISSUER.authorization()
    );
    Client::ask(gateway.address, request).await.assert_refused(407, "http_request_denied", "no token");
}

#[tokio::test]
async fn a_port_that_is_unreachable_ends_the_stream() {
    let (gateway, target) = (start().await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut flow = open(&mut client, ports::closed_udp()).await;
    flow.send(b"anybody?").await;
    assert_eq!(flow.tunnel.reset().await, Some(Reason::CONNECT_ERROR));
    open(&mut client, target).await.echo(b"still on").await;
}

#[tokio::test]
async fn a_silent_stream_ends_after_its_time_and_one_with_datagrams_does_not() {
    const IDLE: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(50);
    let gateway = Running::start_with(|config| {
        any_port(config);
        config.limits.udp_idle_timeout = ConfigDuration(IDLE);
    });
    let (gateway, target) = (gateway.await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut silent = open(&mut client, target).await;
    // When the last datagram was sent, so before the gateway moved it.
    let mut last = Instant::now();
    let mut busy = open(&mut client, target).await;
    let (began, mut silence, mut has_ended) = (Instant::now(), pin!(silent.next()), false);
    while !has_ended || began.elapsed() < 2 * IDLE {
        if has_ended {
            tokio::time::sleep(PAUSE).await;
        } else if let Ok(end) = timeout(PAUSE, &mut silence).await {
            assert_eq!(end, None);
            has_ended = true;
        }
        let began_to_send = Instant::now();
        let is_sent = busy.tunnel.send(&capsule(b"busy")).await.is_ok();
        if !is_sent || !matches!(busy.tunnel.next().await, Some(Ok(_))) {
            // This machine was busy for longer than the limit, so the stream was idle, too.
            assert!(last.elapsed() >= IDLE, "ended {:?} after a datagram", last.elapsed());
            busy = open(&mut client, target).await;
        }
        last = began_to_send;
    }
}

#[tokio::test]
async fn the_clients_end_ends_the_stream_and_its_reset_the_relay() {
    let (gateway, target) = (start().await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut flow = open(&mut client, target).await;
    flow.echo(b"before").await;
    flow.tunnel.end();
    assert_eq!(flow.next().await, None);
    drop(flow);
    let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = far.local_addr().unwrap();
    let mut flow = open(&mut client, address).await;
    flow.send(b"before").await;
    timeout(PATIENCE, far.recv_from(&mut [0; 16])).await.unwrap().unwrap();
    assert_eq!(ports::udp_connections(address), 1);
    flow.tunnel.send.send_reset(Reason::CANCEL);
    drop((flow, client));
    gateway.emptied().await;
    // Its port could be another socket's by now.
    assert_eq!(ports::udp_connections(address), 0, "the gateway's socket is open");
}

#[tokio::test]
async fn of_many_streams_with_one_token_one_opens() {
    let (gateway, target) = (start_without_rates().await, echo().await);
    let mut clients = [Http2::connect(gateway.address).await, Http2::connect(gateway.address).await];
    for _ in 0..8 {
        let token = ISSUER.authorization();
        let fields = [("proxy-authorization", token.as_str())];
        let mut asked = Vec::new();
        for at in 0..12 {
            asked.push(ask(&mut clients[at % 2], &path(target), &fields).await);
        }
        let mut opened = 0;
        for sent in asked {
            match sent.opened().await.0.status {
                200 => opened += 1,
                status => assert_eq!(status, 407),
            }
        }
        assert_eq!(opened, 1);
    }
    drop(clients);
    gateway.emptied().await;
}

/// The client leaves at any stage: nothing stays behind, and the token opens one stream more at most.
#[tokio::test]
async fn a_stream_that_is_reset_before_its_answer_leaves_nothing_behind() {
    let (gateway, target) = (start_without_rates().await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    for turns in 0..60 {
        let token = ISSUER.authorization();
        let fields = [("proxy-authorization", token.as_str())];
        let mut sent = ask(&mut client, &path(target), &fields).await;
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        sent.body.send_reset(Reason::CANCEL);
        drop(sent);
        let mut opened = 0;
        for _ in 0..2 {
            opened +=
                i32::from(ask(&mut client, &path(target), &fields).await.opened().await.0.status == 200);
        }
        assert!(opened <= 1);
    }
    drop(client);
    gateway.emptied().await;
}

#[tokio::test]
async fn nobody_but_the_target_reaches_the_client() {
    let gateway = start().await;
    let (target, stranger) =
        (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let mut client = Http2::connect(gateway.address).await;
    let mut flow = open(&mut client, target.local_addr().unwrap()).await;
    flow.send(b"to the target").await;
    let (_, gateways) = timeout(PATIENCE, target.recv_from(&mut [0; 64])).await.unwrap().unwrap();
    for _ in 0..10 {
        stranger.send_to(b"of a stranger", gateways).await.unwrap();
    }
    target.send_to(b"of the target", gateways).await.unwrap();
    assert_eq!(flow.next().await.unwrap(), b"of the target");
    flow.tunnel.end();
    assert_eq!(flow.next().await, None);
}

#[tokio::test]
async fn a_flood_from_targets_whose_clients_do_not_read_stops_no_other_stream() {
    let (gateway, target) = (start().await, echo().await);
    // The client's window for the connection must not be what stops it.
    let mut settings = h2::client::Builder::new();
    settings.initial_connection_window_size(1 << 30);
    let mut client = Http2::with(&settings, TcpStream::connect(gateway.address).await.unwrap()).await;
    let flooding = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut stalled = Vec::new();
    for _ in 0..16 {
        let mut flow = open(&mut client, flooding.local_addr().unwrap()).await;
        flow.send(b"flood me").await;
        let (_, from) = timeout(PATIENCE, flooding.recv_from(&mut [0; 16])).await.unwrap().unwrap();
        stalled.push((flow, from));
    }
    let mut healthy = open(&mut client, target).await;
    for round in 0..200 {
        for (_, from) in &stalled {
            for _ in 0..8 {
                let _ = flooding.send_to(&[7; 1200], *from).await; // what the kernel does not take is lost
            }
        }
        if round % 10 == 0 {
            healthy.echo(b"healthy").await;
        }
    }
    // A stalled stream first yields the datagrams it has kept; new ones pass once it is read.
    let (flow, from) = &mut stalled[0];
    assert_eq!(flow.next().await.unwrap(), [7; 1200]);
    loop {
        flooding.send_to(b"last", *from).await.unwrap();
        let found = async { while flow.next().await.unwrap() != b"last" {} };
        if timeout(Duration::from_secs(2), found).await.is_ok() {
            break;
        }
    }
}
