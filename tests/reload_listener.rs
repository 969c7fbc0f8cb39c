//! The listener follows the file while the gateway serves: what it reads first, and whom it admits.

use crate::support::proxy::{connect, dial, echoes};
use crate::support::reload::{file, reloaded, waiting};
use crate::support::site::{Plan, Site, write};
use crate::support::target;
use crate::support::tls::Authority;
use crate::support::unit::Unit;
use postern_testkit::http2::HELLO;
use postern_testkit::ports;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The first bytes that come back.
async fn answered(daemon: &Unit, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(daemon.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = vec![0; 12];
    let read = stream.read(&mut answer).await.unwrap_or(0);
    answer.truncate(read);
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_connection_begins_with_follows_the_file() {
    let site = Site::new(Plan::default());
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    let (gateway, good) = (&site.gateways[0], file(&site.gateways[0]));
    let (issuer, of_issuer) = (&site.issuer, file(&site.issuer));
    let with = |key: &str| good.replace("[issuer]\n", &format!("{key}\n[issuer]\n"));
    let refused = b"HTTP/1.1 400".as_slice();
    let no_host = b"CONNECT a.example:443 HTTP/1.1\r\n\r\n".as_slice();
    let named =
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nCONNECT a.example:443 HTTP/1.1\r\nHost: a\r\n\r\n".as_slice();
    let is_http2 = |answer: &[u8]| answer.get(3) == Some(&4); // SETTINGS
    for _ in 0..3 {
        assert!(is_http2(&answered(gateway, HELLO).await));
        reloaded(gateway, &with("http2 = false"), "listen.http2 = false").await;
        assert_eq!(answered(gateway, HELLO).await, refused);

        assert_eq!(answered(gateway, no_host).await, refused);
        reloaded(gateway, &with("require_host = false"), "listen.require_host = false").await;
        assert_eq!(answered(gateway, no_host).await, b"HTTP/1.1 407");

        assert_eq!(answered(gateway, named).await, refused);
        let balanced = with("proxy_protocol = [\"127.0.0.0/8\"]");
        reloaded(gateway, &balanced, "listen.proxy_protocol").await;
        assert_eq!(answered(gateway, named).await, b"HTTP/1.1 407");
        assert_eq!(answered(gateway, no_host).await, b"", "it is none of the balancer's");
        reloaded(gateway, &good, "listen.proxy_protocol").await;

        assert!(is_http2(&answered(issuer, HELLO).await));
        reloaded(
            issuer,
            &of_issuer.replace("[listen]\n", "[listen]\nhttp2 = false\n"),
            "listen.http2 = false",
        )
        .await;
        assert_eq!(answered(issuer, HELLO).await, refused);
        reloaded(issuer, &of_issuer, "listen.http2").await;
    }
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_gateways_are_peers_follows_the_file() {
    let site = Site::new(Plan::default());
    let (gateway, good) = (&site.gateways[0], file(&site.gateways[0]));
    let at = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let authorities = ["one", "two"].map(|name| {
        let folder = site.home().join(name);
        std::fs::create_dir(&folder).unwrap();
        Authority::new(&folder)
    });
    let admitting = |index: usize| {
        let Authority { ca, certificate, key, .. } = &authorities[index];
        format!(
            "{good}[peers]\naddress = \"{at}\"\ncertificate = {certificate:?}\nkey = {key:?}\nclient_ca = {ca:?}\n"
        )
    };
    write(gateway, &admitting(0));
    for unit in [&site.issuer, gateway] {
        unit.start_ready().await;
    }
    let echo = target::echo().await.to_string();
    let mut held = tunnel(at, &authorities[0], &echo).await.unwrap();
    for index in [1, 0, 1] {
        reloaded(gateway, &admitting(index), "peers.client_ca").await;
        assert!(tunnel(at, &authorities[1 - index], &echo).await.is_none());
        echoes(&mut tunnel(at, &authorities[index], &echo).await.unwrap(), b"a peer").await.unwrap();
    }
    echoes(&mut held, b"a connection stays as it is").await.unwrap();

    // A change of its address, or of whether there is one, waits for a restart.
    for text in [good.clone(), admitting(1).replace(&at.to_string(), "127.0.0.1:1")] {
        let line = waiting(gateway, &text).await;
        assert!(line.contains("peers") && line.contains("the sockets are bound at the start"), "{line}");
        echoes(&mut tunnel(at, &authorities[1], &echo).await.unwrap(), b"a peer").await.unwrap();
    }
    let mut client = dial(gateway.address).await.unwrap();
    assert_eq!(connect(&mut client, &echo, None).await.unwrap().status, 407);
    site.terminate();
}

/// A tunnel of a peer that shows a certificate of `authority`, if it is admitted.
async fn tunnel(
    at: SocketAddr,
    authority: &Authority,
    target: &str,
) -> Option<BufReader<TlsStream<TcpStream>>> {
    let [certificate, key] = &authority.client;
    let own = Some((certificate.as_path(), key.as_path()));
    let config = postern_daemon::tls::store_client_config(Some(&authority.ca), own).unwrap();
    let stream = TcpStream::connect(at).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = BufReader::new(TlsConnector::from(config).connect(name, stream).await.ok()?);
    let head = connect(&mut stream, target, None).await.ok()?;
    (head.status == 200).then_some(stream)
}
