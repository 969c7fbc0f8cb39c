//! UDP that goes on through a next hop: another gateway, which has the socket, or a proxy that carries none.

use crate::chains::until;
use crate::peers::{AUTHORITY, circle, exit_with, url};
use crate::support::client::{Client, connect_with};
use crate::support::http2::Http2;
use crate::support::proxies::{CREDENTIALS, Proxy, all_through, all_via, egress};
use crate::support::target::{Echo, read_head};
use crate::support::udp::{any_port, ask, capsule, echo, open, open_with, paid, path, upgrade};
use crate::support::{ISSUER, PATIENCE, Running};
use h2::Reason;
use postern_config::ConfigDuration;
use postern_gateway::config::{Config, Egress};
use postern_testkit::ports;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::{sleep, timeout};

/// Keys of a next hop that is reached over HTTP/1.1, which does not announce UDP.
const OVER_HTTP1: &str = "tunnels = 1\nudp = true\n";

fn exit() -> Running {
    exit_with(any_port)
}

/// A gateway whose tunnels go through `exit`.
async fn entry_with(exit: &Running, keys: &str, change: impl FnOnce(&mut Config)) -> Running {
    let egress = all_through(&[&url(exit)], &(AUTHORITY.keys() + keys));
    Running::start_with(|config| {
        (config.egress, config.listen.workers) = (egress, 1);
        any_port(config);
        change(config);
    })
    .await
}

async fn entry(exit: &Running) -> Running {
    entry_with(exit, "", |_| {}).await
}

/// A gateway with this egress, and UDP to any port.
async fn gateway(egress: Egress) -> Running {
    Running::start_with(|config| {
        (config.egress, config.listen.workers) = (egress, 1);
        any_port(config);
    })
    .await
}

#[tokio::test]
async fn datagrams_go_through_another_gateway_over_both_versions_for_one_token() {
    for keys in ["", OVER_HTTP1] {
        let (exit, target) = (exit(), echo().await);
        let entry = entry_with(&exit, keys, |_| {}).await;
        let mut client = Http2::connect(entry.address).await;
        let token = ISSUER.authorization();
        let (answer, mut flow) = open_with(&mut client, target, &token).await;
        answer.assert_opened();
        assert_eq!(answer.value("capsule-protocol"), "?1");
        for length in [0, 1, 62, 63, 1200, 1472, 9000, 65_507] {
            flow.echo(&vec![length as u8; length]).await;
        }
        assert_eq!(open_with(&mut client, target, &token).await.0.status, 407);
        assert!(ports::connections(exit.peers.unwrap().port()) > 0, "it went directly");
        // The next hop resolves names.
        let mut named = open(&mut client, format!("localhost:{}", target.port())).await;
        named.echo(b"by name").await;
        flow.tunnel.end();
        assert_eq!(flow.next().await, None);
        drop((flow, named, client));
        entry.emptied().await;
    }
}

#[tokio::test]
async fn a_client_of_http1_sends_capsules_ahead_through_another_gateway() {
    let (exit, target) = (exit(), echo().await);
    let entry = entry(&exit).await;
    let mut client = Client::connect(entry.address).await;
    let head = upgrade(target, &format!("Capsule-Protocol: ?1\r\n{}", paid()));
    client.send([head.as_bytes(), &capsule(b"ahead")].concat()).await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(client.take(8).await, capsule(b"ahead"));
    client.send(capsule(b"after")).await;
    assert_eq!(client.take(8).await, capsule(b"after"));
    drop(client);
    entry.emptied().await;
}

/// Unknown capsules and contexts go on, and the last gateway skips them.
#[tokio::test]
async fn streams_end_as_without_a_next_hop_and_no_other_one_does() {
    let (exit, target) = (exit(), echo().await);
    let entry = entry(&exit).await;
    let mut client = Http2::connect(entry.address).await;
    let mut other = open(&mut client, target).await;
    let mut flow = open(&mut client, ports::closed_udp()).await;
    flow.send(b"anybody?").await;
    assert_eq!(flow.tunnel.reset().await, Some(Reason::CONNECT_ERROR));
    for malformed in [&[0, 0][..], &[0, 1, 0x40], &[0, 0x80, 1, 0, 0, 0]] {
        let mut flow = open(&mut client, target).await;
        flow.tunnel.send(&[0x17, 1, 0, 0, 2, 2, 0]).await.unwrap();
        flow.echo(b"before").await;
        flow.tunnel.send(malformed).await.unwrap();
        let began = Instant::now();
        assert_eq!(flow.tunnel.reset().await, Some(Reason::PROTOCOL_ERROR), "{malformed:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{malformed:?}: {:?}", began.elapsed());
    }
    other.echo(b"still on").await;
    // Its reset closes the socket at the last gateway. The port could be another socket's then.
    let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = far.local_addr().unwrap();
    let mut flow = open(&mut client, address).await;
    flow.send(b"before").await;
    timeout(PATIENCE, far.recv_from(&mut [0; 16])).await.unwrap().unwrap();
    assert_eq!(ports::udp_connections(address), 1);
    flow.tunnel.send.send_reset(Reason::CANCEL);
    let closed = async {
        while ports::udp_connections(address) > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, closed).await.unwrap();
    other.echo(b"still on").await;
}

#[tokio::test]
async fn a_silent_stream_ends_at_whichever_gateway_has_less_patience() {
    const IDLE: ConfigDuration = ConfigDuration(Duration::from_secs(1));
    let short = |config: &mut Config| config.limits.udp_idle_timeout = IDLE;
    let target = echo().await;
    for is_of_exit in [false, true] {
        let exit = exit_with(|config| {
            any_port(config);
            if is_of_exit {
                short(config);
            }
        });
        let entry = entry_with(&exit, "", |config| {
            if !is_of_exit {
                short(config);
            }
        });
        let entry = entry.await;
        let mut client = Http2::connect(entry.address).await;
        let mut flow = open(&mut client, target).await;
        flow.echo(b"once").await;
        while let Some(Ok(_)) = flow.tunnel.next().await {}
        // The way to the target has ended as well.
        let ended = std::future::poll_fn(|cx| flow.tunnel.send.poll_reset(cx));
        timeout(PATIENCE, ended).await.unwrap().unwrap();
        drop((flow, client));
        entry.emptied().await;
    }
}

#[tokio::test]
async fn udp_goes_where_both_gateways_let_it() {
    let target = echo().await;
    for (exits, entrys) in [("udp = [443]", "udp = \"any\""), ("udp = \"any\"", "udp = [443]")] {
        let exit =
            exit_with(|config| config.egress = egress(&format!("private = true\nports = \"any\"\n{exits}")));
        let entry = entry_with(&exit, "", |config| config.egress.udp = egress(entrys).udp).await;
        let mut client = Http2::connect(entry.address).await;
        let answer = open_with(&mut client, target, &ISSUER.authorization()).await.0;
        assert_eq!(answer.status, 403, "{answer:?}");
        // TCP has ports of its own.
        let tcp = Echo::start().await;
        client.tunnel(tcp.address).await.echo(b"over TCP").await;
    }
}

#[tokio::test]
async fn where_the_next_hop_carries_no_udp_no_token_is_spent() {
    let (target, direct) = (echo().await, "[[rules]]\nallow = [\"127.0.0.1\"]\nvia = \"direct\"\n");
    let (socks, http) = (Proxy::socks(), Proxy::http());
    let backend = Proxy::open_http();
    let nghttpx = Proxy::https(&AUTHORITY, &backend);
    let through = |url: &str, keys: &str| {
        let mut all = all_through(&[url], keys);
        all.rules = egress(direct).rules;
        all
    };
    for (egress, name) in [
        (through(&socks.url, CREDENTIALS), "SOCKS5"),
        (through(&http.url, CREDENTIALS), "HTTP/1.1"),
        (through(&nghttpx.url, &(AUTHORITY.keys() + "tunnels = 1\n")), "HTTP/1.1 over TLS"),
        (through(&nghttpx.url, &AUTHORITY.keys()), "HTTP/2"),
    ] {
        let gateway = gateway(egress).await;
        let mut client = Http2::connect(gateway.address).await;
        // The first check of a URL with TLS shows it.
        let known = async {
            while ask(&mut client, &path("a.example:443"), &[]).await.answer().await.status != 403 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, known).await.expect(name);
        let token = ISSUER.authorization();
        let fields = [("proxy-authorization", token.as_str())];
        let answer = ask(&mut client, &path("a.example:443"), &fields).await.answer().await;
        answer.assert_refused(403, "http_request_denied", "carries no UDP");
        let (answer, mut flow) = open_with(&mut client, target, &token).await;
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        flow.echo(b"with the same token").await;
    }
}

/// An operator who is wrong about the proxy loses one token, and no tunnel of TCP.
#[tokio::test]
async fn a_next_hop_that_turns_out_to_carry_no_udp_costs_one_token() {
    let backend = Proxy::open_http();
    let gateway = gateway(all_through(&[&backend.url], "udp = true\n")).await;
    let mut client = Http2::connect(gateway.address).await;
    let tokens = [ISSUER.authorization(), ISSUER.authorization()];
    for token in &tokens {
        let fields = [("proxy-authorization", token.as_str())];
        let answer = ask(&mut client, &path("a.example:443"), &fields).await.answer().await;
        answer.assert_refused(403, "http_request_denied", "carries no UDP");
    }
    let tcp = Echo::start().await;
    let spent = Client::ask(gateway.address, connect_with(tcp.address, &[&tokens[0]])).await;
    spent.assert_refused(407, "http_request_denied", "already spent");
    let mut client = Client::connect(gateway.address).await;
    client.send(connect_with(tcp.address, &[&tokens[1]])).await;
    client.head().await.assert_opened();
    assert!(gateway.readiness.degraded().is_empty(), "{:?}", gateway.readiness.degraded());
}

/// A proxy that opens one target and knows no other, as one that allows some hosts; it sends each byte back.
async fn picky(target: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if !read_head(&mut stream).await?.contains(&path(target)) {
                    return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
                }
                let opened = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: connect-udp\r\n\
                              Capsule-Protocol: ?1\r\n\r\n";
                stream.write_all(opened.as_bytes()).await?;
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.map(drop)
            });
        }
    });
    format!("http://{address}")
}

/// A client that asks for what the next hop refuses would otherwise end UDP for all others.
#[tokio::test]
async fn a_next_hop_that_has_carried_udp_and_refuses_a_target_goes_on_carrying_the_others() {
    let gateway = gateway(all_through(&[&picky("good.example:443").await], "udp = true\n")).await;
    let mut client = Http2::connect(gateway.address).await;
    for _ in 0..3 {
        open(&mut client, "good.example:443").await.echo(b"open").await;
        let (answer, _) = open_with(&mut client, "bad.example:443", &ISSUER.authorization()).await;
        assert_eq!(answer.status, 403, "{answer:?}");
    }
}

/// Returns a gateway whose next hop has two URLs, a SOCKS5 proxy and the gateway returned as `exit`, which alone carries UDP.
async fn through_socks_or_exit() -> (Running, Running, Proxy) {
    let (exit, socks) = (exit(), Proxy::socks());
    let keys = format!("{}{CREDENTIALS}\n", AUTHORITY.keys());
    let gateway = gateway(all_through(&[&socks.url, &url(&exit)], &keys)).await;
    (gateway, exit, socks)
}

#[tokio::test]
async fn udp_goes_through_the_url_that_carries_it() {
    let (gateway, _exit, _socks) = through_socks_or_exit().await;
    let (target, mut client) = (echo().await, Http2::connect(gateway.address).await);
    for _ in 0..8 {
        open(&mut client, target).await.echo(b"through the gateway").await;
    }
}

/// The next hop of a target whose address alone has a rule is known after the lookup.
#[tokio::test]
async fn a_rule_for_addresses_leads_udp_through_the_next_hop() {
    let (exit, target) = (exit(), echo().await);
    let mut rules = all_via(&url(&exit), &(AUTHORITY.keys() + "udp = true\n"));
    rules.rules = egress("[[rules]]\nallow = [\"127.0.0.0/8\"]\nvia = \"a\"\n").rules;
    let gateway = gateway(rules).await;
    let mut client = Http2::connect(gateway.address).await;
    for host in ["127.0.0.1", "localhost"] {
        open(&mut client, format!("{host}:{}", target.port())).await.echo(host.as_bytes()).await;
    }
    assert!(ports::connections(exit.peers.unwrap().port()) > 0, "it went directly");
}

#[tokio::test]
async fn udp_in_a_circle_of_gateways_is_refused_once_and_then_before_the_token_is_spent() {
    let ports = [ports::free(), ports::free()];
    // By rules alone: no check finds it.
    let circle = |own: usize| {
        let mut around = all_via(&format!("https://localhost:{}", ports[1 - own]), &AUTHORITY.keys());
        around.udp = egress("udp = \"any\"").udp;
        circle(ports[own], around)
    };
    let (one, other) = (circle(0), circle(1));
    other.ready().await;
    one.ready().await;
    one.turn_to();
    let mut client = Http2::connect(one.address).await;
    let tokens = [ISSUER.authorization(), ISSUER.authorization()];
    let refused = async |client: &mut Http2, token: &str, words: &str| {
        let fields = [("proxy-authorization", token)];
        let answer = ask(client, &path("name.example:443"), &fields).await.answer().await;
        answer.assert_refused(508, "proxy_loop_detected", words);
    };
    refused(&mut client, &tokens[0], "came back to a gateway").await;
    refused(&mut client, &tokens[1], "would come back to this gateway").await;
    // The same name over TCP is another target, and the second token is good.
    let answer = Client::ask(one.address, connect_with("name.example:443", &[&tokens[1]])).await;
    answer.assert_refused(508, "proxy_loop_detected", "came back to a gateway");
}

#[tokio::test]
async fn while_its_next_hop_is_away_udp_is_refused_and_no_token_is_read() {
    let (exit, target) = (exit(), echo().await);
    let entry = entry(&exit).await;
    let mut client = Http2::connect(entry.address).await;
    open(&mut client, target).await.echo(b"before").await;
    exit.stop().await;
    entry.readiness_is(|reasons| reasons.iter().any(|text| text.contains("no token is read"))).await;
    let answer = open_with(&mut client, target, &ISSUER.authorization()).await.0;
    assert_eq!(answer.status, 503, "{answer:?}");
}

/// The other URL is up, so TCP goes on. It carries no UDP.
#[tokio::test]
async fn while_the_only_url_that_carries_udp_is_away_no_token_is_read() {
    let (gateway, exit, _socks) = through_socks_or_exit().await;
    let (target, mut client) = (echo().await, Http2::connect(gateway.address).await);
    open(&mut client, target).await.echo(b"before").await;
    exit.stop().await;
    let degraded = || gateway.readiness.degraded().join("; ");
    until("a check finds out", || degraded().contains("1 of 2 URLs of the next hop \"exit\"")).await;
    let token = ISSUER.authorization();
    let answer = open_with(&mut client, target, &token).await.0;
    assert_eq!(
        answer.status, 502,
        "a 503 would take the gateway from its agents, for TCP as well: {answer:?}"
    );
    let tcp = Echo::start().await;
    let mut client = Client::connect(gateway.address).await;
    client.send(connect_with(tcp.address, &[&token])).await;
    client.head().await.assert_opened();
}

/// A client that reads nothing fills its own window: the datagrams of others pass, on the same connection to the next hop.
#[tokio::test]
async fn a_client_that_does_not_read_stops_no_other_stream_of_the_next_hop() {
    let (exit, target) = (exit(), echo().await);
    let entry = entry(&exit).await;
    let flooding = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut stalled = Client::connect_narrow(entry.address).await;
    let head = upgrade(flooding.local_addr().unwrap(), &paid());
    stalled.send([head.as_bytes(), &capsule(b"flood me")].concat()).await;
    assert_eq!(stalled.head().await.status, 101);
    let (_, from) = timeout(PATIENCE, flooding.recv_from(&mut [0; 16])).await.unwrap().unwrap();
    let mut client = Http2::connect(entry.address).await;
    let mut healthy = open(&mut client, target).await;
    for round in 0..2000 {
        for _ in 0..8 {
            let _ = flooding.send_to(&[7; 1200], from).await; // what the kernel does not take is lost
        }
        if round % 50 == 0 {
            healthy.echo(b"healthy").await;
        }
    }
    // It begins where it stopped, with whole datagrams.
    let mut read = [0; 4 + 1200];
    for _ in 0..100 {
        timeout(PATIENCE, stalled.stream.read_exact(&mut read)).await.unwrap().unwrap();
        assert_eq!(read[..], capsule(&[7; 1200])[..]);
    }
    stalled.stream.shutdown().await.unwrap();
}
