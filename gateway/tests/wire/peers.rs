//! A gateway as the next hop of another one: both are real, and only the first takes a token.

use crate::support::client::{Client, connect, connect_with};
use crate::support::proxies::{Authority, all_through, echoes, egress, tunnel};
use crate::support::target::Echo;
use crate::support::{PATIENCE, Running, home_with_keys};
use postern_config::ConfigDuration;
use postern_daemon::tls::{self, TlsConfig};
use postern_gateway::config::{Config, Egress, Peers};
use postern_testkit::ports;
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Of the gateways' certificates.
pub(crate) static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);

fn peers(authority: &Authority) -> Peers {
    let [certificate, key] = authority.signed(ServerAuth);
    Peers { address: ([127, 0, 0, 1], 0).into(), certificate, key, client_ca: authority.ca.clone() }
}

/// The last gateway of a chain. It has no key, so no client gets a tunnel from it.
pub(crate) fn exit_with(change: impl FnOnce(&mut Config)) -> Running {
    Running::start_in(TempDir::new().unwrap(), |config| {
        config.peers = Some(peers(&AUTHORITY));
        config.listen.workers = 1;
        config.listen.patience = ConfigDuration::secs(0);
        std::fs::write(config.issuer.keys.as_ref().unwrap(), crate::support::directory(Vec::new())).unwrap();
        change(config);
    })
    .unwrap()
}

pub(crate) fn url(exit: &Running) -> String {
    format!("https://localhost:{}", exit.peers.unwrap().port())
}

/// The first gateway of a chain.
async fn entry(exit: &Running, keys: &str) -> Running {
    let egress = all_through(&[&url(exit)], keys);
    Running::start_with(|config| (config.egress, config.listen.workers) = (egress, 1)).await
}

/// A connection to the listener for peers that shows `shown`, or nothing.
async fn reach(exit: &Running, shown: Option<&[PathBuf; 2]>) -> Client<TlsStream<TcpStream>> {
    let own = shown.map(|[certificate, key]| (certificate.as_path(), key.as_path()));
    let config = tls::store_client_config(Some(&AUTHORITY.ca), own).unwrap();
    let stream = TcpStream::connect(exit.peers.unwrap()).await.unwrap();
    Client::over(TlsConnector::from(config).connect("localhost".try_into().unwrap(), stream).await.unwrap())
}

#[tokio::test]
async fn tunnels_of_another_gateway_need_no_token_no_key_and_no_store() {
    let (echo, exit) = (Echo::start().await, exit_with(|_| {}));
    let entry = entry(&exit, &AUTHORITY.keys()).await;
    let mut tunnels = Vec::new();
    for number in 0..20_u8 {
        let mut client = tunnel(&entry, echo.address).await;
        echoes(&mut client, &[number; 1000]).await;
        tunnels.push(client);
    }
    let shared = ports::connections(exit.peers.unwrap().port());
    assert!((1..=2).contains(&shared), "{shared} connections"); // a check that is under way has another one
    let answer = Client::ask(exit.address, connect(echo.address)).await;
    answer.assert_refused(503, "proxy_internal_error", "no issuer key"); // its own clients are refused
}

#[tokio::test]
async fn the_first_gateway_spends_the_token_and_the_last_sees_none() {
    let (echo, exit) = (Echo::start().await, exit_with(|_| {}));
    let entry = entry(&exit, &AUTHORITY.keys()).await;
    let request = connect(echo.address);
    let mut client = Client::connect(entry.address).await;
    client.send(&request).await;
    client.head().await.assert_opened();
    let replayed = Client::ask(entry.address, &request).await;
    assert_eq!(replayed.status, 407, "{replayed:?}");
}

/// A gateway with this listener for peers. It is not waited for, and takes clients all the same: it may find out that it leads in a
/// circle before it is ready.
pub(crate) fn circle(port: u16, egress: Egress) -> Running {
    let mut listener = peers(&AUTHORITY);
    listener.address.set_port(port);
    let change = |config: &mut Config| {
        (config.peers, config.egress, config.listen.workers) = (Some(listener), egress, 1);
        config.listen.patience = ConfigDuration::secs(0);
    };
    Running::start_in(home_with_keys(), change).unwrap()
}

/// A check of the next hop detects that all tunnels would come back, before a client does.
#[tokio::test]
async fn a_circle_of_all_tunnels_is_found_by_a_check_and_costs_no_token() {
    let (echo, ports) = (Echo::start().await, [ports::free(), ports::free()]);
    let url = |port: u16| format!("https://localhost:{port}");
    let circle = |own: usize| circle(ports[own], all_through(&[&url(ports[1 - own])], &AUTHORITY.keys()));
    let (one, other) = (circle(0), circle(1));
    // And nothing else: tokens are for the mark that it has by then.
    let says_so = |reasons: &[String]| matches!(reasons, [text] if text.contains("leads in a circle"));
    one.readiness_is(says_so).await;
    other.readiness_is(says_so).await;
    one.turn_to();
    let request = connect(echo.address);
    for request in [&request[..], &request, "CONNECT challenge.invalid:443 HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let answer = Client::ask(one.address, request).await;
        answer.assert_refused(508, "proxy_loop_detected", "would come back to this gateway");
    }
    // Another gateway in its place goes directly.
    other.stop().await;
    let _exit = exit_with(|config| config.peers.as_mut().unwrap().address.set_port(ports[1]));
    one.readiness_is(|reasons| reasons.is_empty()).await;
    let mut client = Client::connect(one.address).await;
    client.send(request).await;
    client.head().await.assert_opened();
    echoes(&mut client, b"there and back").await;
}

#[tokio::test]
async fn what_gateways_tell_each_other_is_read_of_peers_alone_and_no_target_sees_it() {
    let exit = exit_with(|_| {});
    let entry = entry(&exit, &AUTHORITY.keys()).await;
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = origin.local_addr().unwrap();
    let token = crate::support::ISSUER.authorization();
    let mut client = Client::connect(entry.address).await;
    client
        .send(format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nProxy-Authorization: {token}\r\n\r\n"))
        .await;
    let (mut stream, _) = timeout(PATIENCE, origin.accept()).await.unwrap().unwrap();
    let mut request = vec![0; 4096];
    let length = stream.read(&mut request).await.unwrap();
    let request = String::from_utf8_lossy(&request[..length]).to_lowercase();
    assert!(request.starts_with("get / ") && !request.contains("loop"), "{request}");
}

#[tokio::test]
async fn a_client_without_a_certificate_of_the_authority_is_no_peer() {
    let (echo, exit, strangers) = (Echo::start().await, exit_with(|_| {}), Authority::new());
    let strange = strangers.signed(ClientAuth);
    for shown in [None, Some(&strange)] {
        let mut client = reach(&exit, shown).await; // in TLS 1.3 the refusal comes behind the handshake
        let _ = client.stream.write_all(connect(echo.address).as_ref()).await;
        let read = timeout(PATIENCE, client.stream.read(&mut [0; 1])).await;
        assert!(!matches!(read.unwrap(), Ok(1..)), "it was answered");
    }
    // Without TLS a client gets the reason alone.
    let mut client = Client::connect(exit.peers.unwrap()).await;
    client.send(connect(echo.address)).await;
    assert!(client.rest().await.starts_with(b"HTTP/1.1 400 "));
    assert_eq!(echo.came().await, 0);
    let mut known = reach(&exit, Some(&AUTHORITY.signed(ClientAuth))).await;
    known.send(connect(echo.address)).await;
    known.head().await.assert_opened();
}

/// A certificate opens tunnels at the listener for peers alone.
#[tokio::test]
async fn at_the_listener_for_clients_a_peer_needs_a_token() {
    let (echo, agents) = (Echo::start().await, Authority::new());
    let [certificate, key] = AUTHORITY.signed(ServerAuth);
    let tls = TlsConfig { client_ca: Some(agents.ca.clone()), ..TlsConfig::of_files(certificate, key) };
    let gateway = Running::start_with(|config| {
        (config.tls, config.peers) = (Some(tls.clone()), Some(peers(&AUTHORITY)));
    })
    .await;
    let answered = async |address, authority: &Authority| {
        let [certificate, key] = authority.signed(ClientAuth);
        let config = tls::store_client_config(Some(&AUTHORITY.ca), Some((&certificate, &key))).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = TlsConnector::from(config).connect("localhost".try_into().unwrap(), stream).await;
        let mut client = stream.unwrap();
        client.write_all(connect_with(echo.address, &[]).as_ref()).await.ok()?;
        let mut status = [0; 12];
        client.read_exact(&mut status).await.ok()?;
        Some(String::from_utf8_lossy(&status).into_owned())
    };
    let (clients, peers_at) = (gateway.address, gateway.peers.unwrap());
    assert_eq!(answered(clients, &agents).await.as_deref(), Some("HTTP/1.1 407"));
    assert_eq!(answered(clients, &AUTHORITY).await, None);
    assert_eq!(answered(peers_at, &agents).await, None);
    assert_eq!(answered(peers_at, &AUTHORITY).await.as_deref(), Some("HTTP/1.1 200"));

    // With one authority for both every client would be a peer.
    let copy = gateway.home().join("copy.pem");
    std::fs::copy(&AUTHORITY.ca, &copy).unwrap();
    for client_ca in [AUTHORITY.ca.clone(), copy] {
        let refused = Running::start_in(home_with_keys(), |config| {
            config.tls = Some(TlsConfig { client_ca: Some(client_ca), ..tls.clone() });
            config.peers = Some(peers(&AUTHORITY));
        });
        assert!(refused.err().unwrap().to_string().contains("without tokens at peers.address"));
    }
}

#[tokio::test]
async fn a_peer_goes_where_the_last_gateway_lets_it() {
    let echo = Echo::start().await;
    let exit = exit_with(|config| config.egress.private = false);
    let entry = entry(&exit, &AUTHORITY.keys()).await;
    let answer = Client::ask(entry.address, connect(echo.address)).await;
    assert_eq!(answer.status, 403, "{answer:?}");
    let mut peer = reach(&exit, Some(&AUTHORITY.signed(ClientAuth))).await;
    peer.send(connect_with(echo.address, &[])).await;
    let refused = peer.answer().await;
    assert_eq!(refused.status, 403);
    assert!(refused.all("proxy-authenticate").is_empty(), "a peer needs no challenge: {refused:?}");
    assert_eq!(echo.came().await, 0);
}

/// All connections of a gateway come from its address, and may wait for their first tunnel.
#[tokio::test]
async fn limits_for_one_source_do_not_bind_a_peer() {
    let echo = Echo::start().await;
    let exit = exit_with(|config| {
        config.limits.source.connections = 2;
        config.limits.source.exempt.clear(); // loopback
    });
    let (shown, mut waiting) = (AUTHORITY.signed(ClientAuth), Vec::new());
    for _ in 0..8 {
        waiting.push(reach(&exit, Some(&shown)).await);
    }
    for peer in &mut waiting {
        peer.send(connect_with(echo.address, &[])).await;
        peer.head().await.assert_opened();
    }
}

/// A connection without a tunnel will have one soon, and its handshake is made.
#[tokio::test]
async fn an_idle_connection_of_a_peer_is_kept() {
    let header_timeout = ConfigDuration::secs(1); // the handshake is made within it
    let exit = exit_with(|config| config.limits.header_timeout = header_timeout);
    let next_hop = format!("name = \"exit\"\nurls = [\"{}\"]\ncheck_every = \"1h\"\n", url(&exit));
    let through = "ports = \"any\"\nprivate = true\nvia = \"exit\"\n[[next_hops]]\n";
    let egress = egress(&format!("{through}{next_hop}{}", AUTHORITY.keys()));
    let entry = Running::start_with(|config| (config.egress, config.listen.workers) = (egress, 1)).await;
    let echo = Echo::start().await;
    drop(tunnel(&entry, echo.address).await);
    entry.emptied().await;
    sleep(Duration::from_secs(3)).await;
    assert!(ports::connections(exit.peers.unwrap().port()) >= 1, "it is gone");
}

#[tokio::test]
async fn a_drain_lets_tunnels_go_on_and_takes_no_peer() {
    let (echo, exit) = (Echo::start().await, exit_with(|_| {}));
    let entry = entry(&exit, &AUTHORITY.keys()).await;
    let mut client = tunnel(&entry, echo.address).await;
    exit.shutdown.drain();
    let refused = async {
        while TcpStream::connect(exit.peers.unwrap()).await.is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, refused).await.unwrap();
    echoes(&mut client, b"still open").await;
    entry.readiness_is(|reasons| reasons.iter().any(|text| text.contains("egress.via"))).await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_found_at_the_start() {
    let start = |change: fn(&mut Peers, &Path)| {
        let home = home_with_keys();
        let path = home.path().to_owned();
        let started = Running::start_in(home, |config| {
            let mut own = peers(&AUTHORITY);
            change(&mut own, &path);
            config.peers = Some(own);
        });
        started.err().map(|error| error.to_string())
    };
    assert_eq!(start(|_, _| {}), None);
    let refused = start(|peers, home| peers.client_ca = home.join("none.pem")).unwrap();
    assert!(refused.starts_with("peers: cannot read"), "{refused}");
    let refused = start(|peers, _| peers.key = AUTHORITY.signed(ServerAuth)[1].clone()).unwrap();
    assert!(refused.starts_with("peers: the certificate in"), "{refused}");
}
