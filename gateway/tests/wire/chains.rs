//! Several next hops, over mutual TLS and HTTP/2: real ones, nghttpx in front of tinyproxy.

use crate::support::client::{Client, connect, connect_with};
use crate::support::proxies::{Authority, Proxy, all_through, echoes, tunnel};
use crate::support::target::Echo;
use crate::support::{ISSUER, PATIENCE, Running};
use postern_config::ConfigDuration;
use postern_gateway::config::Egress;
use postern_testkit::ports;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

/// The authority of the proxies, and the proxy behind all of them.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);

async fn gateway(egress: Egress) -> Running {
    Running::start_with(|config| (config.egress, config.listen.workers) = (egress, 1)).await
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}

#[tokio::test]
async fn tunnels_share_connections_over_mutual_tls_and_none_stops_another() {
    let (echo, backend) = (Echo::start().await, Proxy::open_http());
    let exit = Proxy::https(&AUTHORITY, &backend);
    let gateway = gateway(all_through(&[&exit.url], &AUTHORITY.keys())).await;
    let mut tunnels = Vec::new();
    for number in 0..20_u8 {
        let mut client = tunnel(&gateway, echo.address).await;
        echoes(&mut client, &[number; 1000]).await;
        tunnels.push(client);
    }
    // A check that is under way has another one.
    assert!((1..=2).contains(&exit.connections()), "{} connections", exit.connections());
    // A client that sends and never reads fills its own window and no other one.
    let stalled = &mut tunnels[0].stream;
    while timeout(Duration::from_millis(300), stalled.write_all(&[0; 1 << 16])).await.is_ok() {}
    for client in &mut tunnels[1..] {
        echoes(client, b"another").await;
    }
}

#[tokio::test]
async fn a_next_hop_that_does_not_know_the_gateway_is_not_used() {
    let (echo, backend, strangers) = (Echo::start().await, Proxy::open_http(), Authority::new());
    let exit = Proxy::https(&AUTHORITY, &backend);
    let trusting = format!("ca = \"{}\"\n", AUTHORITY.ca.display());
    for (keys, reason) in [
        (trusting.clone(), "certificate"),        // shows none
        (strangers.keys(), "ca of the next hop"), // does not trust it
    ] {
        let gateway = Running::start_in(crate::support::home_with_keys(), |config| {
            config.egress = all_through(&[&exit.url], &keys);
            config.listen.patience = ConfigDuration::secs(0);
        })
        .unwrap();
        gateway.readiness_is(|reasons| matches!(reasons, [only] if only.contains("egress.via"))).await;
        let reasons = gateway.readiness.reasons().join("; ");
        assert!(reasons.contains(reason), "{reasons}");
        let answer = Client::ask(gateway.address, connect(echo.address)).await;
        answer.assert_refused(503, "destination_unavailable", "cannot be used now");
    }
    assert_eq!(echo.came().await, 0);
}

/// A check finds what would cost each tunnel its token.
#[tokio::test]
async fn a_socks_proxy_that_rejects_our_credentials_is_away_before_a_token_is_read() {
    let proxy = Proxy::socks();
    let wrong = "user = \"u\"\npassword = \"wrong\"\n";
    for (credentials, reason) in [("", "none of our ways"), (wrong, "the user and the password")] {
        let gateway = Running::start_in(crate::support::home_with_keys(), |config| {
            config.egress = all_through(&[&proxy.url], credentials);
            config.listen.patience = ConfigDuration::secs(0);
        })
        .unwrap();
        gateway.readiness_is(|reasons| matches!(reasons, [only] if only.contains(reason))).await;
        let answer = Client::ask(gateway.address, connect("name.example:443")).await;
        answer.assert_refused(503, "destination_unavailable", "cannot be used now");
    }
}

/// The first that is tried may be any of them.
#[tokio::test]
async fn where_one_url_fails_another_opens_the_tunnel() {
    let (echo, backend) = (Echo::start().await, Proxy::open_http());
    let good = Proxy::https(&AUTHORITY, &backend);
    let broken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let broken_url = format!("https://localhost:{}", broken.local_addr().unwrap().port());
    // It takes connections, and ends each of them.
    tokio::spawn(async move { while broken.accept().await.is_ok() {} });
    let closed = format!("https://localhost:{}", ports::closed().port());
    for balance in ["load", "target"] {
        let keys = format!("{}balance = \"{balance}\"\n", AUTHORITY.keys());
        let gateway = gateway(all_through(&[&closed, &broken_url, &good.url], &keys)).await;
        for name in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]"] {
            let mut client = tunnel(&gateway, format!("{name}:{}", echo.address.port())).await;
            echoes(&mut client, b"through").await;
        }
        let degraded = || gateway.readiness.degraded().join("; ");
        until("it says that two are down", || degraded().contains("2 of 3 URLs of the next hop \"exit\""))
            .await;
        assert!(gateway.readiness.reasons().is_empty());
    }
}

/// The kernel still accepts connections for a frozen process.
#[tokio::test]
async fn a_frozen_next_hop_is_left_for_another_and_used_again_when_it_is_back() {
    let (echo, backend) = (Echo::start().await, Proxy::open_http());
    let exits = [Proxy::https(&AUTHORITY, &backend), Proxy::https(&AUTHORITY, &backend)];
    let keys = AUTHORITY.keys() + "connect_timeout = \"1s\"\n";
    let gateway = gateway(all_through(&[&exits[0].url, &exits[1].url], &keys)).await;
    // Both have a connection that tunnels share, or get one here.
    for _ in 0..8 {
        echoes(&mut tunnel(&gateway, echo.address).await, b"before").await;
    }
    exits[0].signal("STOP");
    for _ in 0..8 {
        echoes(&mut tunnel(&gateway, echo.address).await, b"elsewhere").await;
    }
    let degraded = || gateway.readiness.degraded().join("; ");
    until("a check finds out", || degraded().contains(&exits[0].url)).await;
    exits[0].signal("CONT");
    until("a check finds out", || degraded().is_empty()).await;
}

/// A client loses no token to a gateway that knows that it cannot serve.
#[tokio::test]
async fn while_the_next_hop_of_all_tunnels_is_away_no_token_is_read() {
    let (echo, backend) = (Echo::start().await, Proxy::open_http());
    let exit = Proxy::https(&AUTHORITY, &backend);
    let mut egress = all_through(&[&exit.url], &(AUTHORITY.keys() + "connect_timeout = \"1s\"\n"));
    let direct: SocketAddr = Echo::start().await.address;
    let rule = format!("[[rules]]\nallow = [\"{direct}\"]\nvia = \"direct\"\n");
    egress.rules = crate::support::proxies::egress(&rule).rules;
    let gateway = gateway(egress).await;
    exit.signal("STOP");
    gateway.readiness_is(|reasons| reasons.iter().any(|text| text.contains("no token is read"))).await;
    let token = ISSUER.authorization();
    let probe = Client::ask(gateway.address, connect_with("challenge.invalid:443", &[])).await;
    probe.assert_refused(503, "destination_unavailable", "cannot be used now");
    for target in [echo.address.to_string(), "name.example:443".to_owned()] {
        let answer = Client::ask(gateway.address, connect_with(target, &[&token])).await;
        answer.assert_refused(503, "destination_unavailable", "cannot be used now");
    }
    // By its rule it does not go there.
    tunnel(&gateway, direct).await;
    exit.signal("CONT");
    gateway.ready().await;
    let mut client = Client::connect(gateway.address).await;
    client.send(connect_with(echo.address, &[&token])).await;
    client.head().await.assert_opened();
    echoes(&mut client, b"with the same token").await;
}

#[tokio::test]
async fn a_plain_request_goes_through_a_tunnel_on_a_shared_connection() {
    let backend = Proxy::open_http();
    let exit = Proxy::https(&AUTHORITY, &backend);
    let gateway = gateway(all_through(&[&exit.url], &AUTHORITY.keys())).await;
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = origin.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = origin.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").await;
            let _ = stream.write_all(&[b'x'; 100_000]).await;
        }
    });
    for _ in 0..3 {
        let authorization = ISSUER.authorization();
        let request = format!(
            "GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nProxy-Authorization: {authorization}\r\n\r\n"
        );
        let answer = Client::ask(gateway.address, request).await;
        assert_eq!((answer.status, answer.body.len()), (200, 100_000));
    }
}

#[tokio::test]
async fn what_a_target_breaks_is_broken_through_all_hops() {
    let backend = Proxy::open_http();
    let exit = Proxy::https(&AUTHORITY, &backend);
    let gateway = gateway(all_through(&[&exit.url], &AUTHORITY.keys())).await;
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = tunnel(&gateway, target.local_addr().unwrap()).await;
    let (stream, _) = target.accept().await.unwrap();
    // Half-closed, and then closed in order: an end is an end.
    client.stream.shutdown().await.unwrap();
    drop(stream);
    client.closed_silently().await;
}
