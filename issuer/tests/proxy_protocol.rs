//! The PROXY protocol of load balancers: whom a connection counts for. Here the whole loopback network is the balancers'.

use crate::support::{Answer, Running, config, request, rest};
use postern_config::ConfigDuration;
use postern_daemon::proxy_protocol::Balancers;
use postern_issuer::Config;
use postern_testkit::clients::proxy_headers;
use postern_token::DIRECTORY_PATH;
use std::num::NonZeroUsize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start(network: &str, change: impl FnOnce(&mut Config)) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.listen.proxy_protocol = Balancers(vec![network.parse().unwrap()]);
    config.limits.source.connections = 1;
    config.limits.source.exempt = Vec::new();
    change(&mut config);
    Running::start(config).await
}

/// Sends `header` and a request, and reads until the issuer closes.
async fn get(issuer: &Running, header: &[u8]) -> Answer {
    issuer.exchange(&[header, &request("GET", DIRECTORY_PATH, "", b"")].concat()).await
}

/// A connection that is counted and kept alive.
async fn held(issuer: &Running, header: &[u8]) -> TcpStream {
    let mut stream = issuer.connect().await;
    stream.write_all(&[header, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"].concat()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 404");
    stream
}

#[tokio::test]
async fn clients_behind_one_balancer_are_served_and_counted_apart() {
    let issuer = start("127.0.0.0/8", |_| {}).await;
    for (number, header) in [proxy_headers(1), proxy_headers(2)].into_iter().enumerate() {
        let held = held(&issuer, &header[number]).await;
        for header in &header {
            let answer = get(&issuer, header).await;
            assert_eq!((answer.status, answer.field("retry-after")), (429, Some("1")));
            assert!(answer.text().contains("from this address or network"), "{}", answer.text());
        }
        for header in proxy_headers(3) {
            let mut other = issuer.connect().await;
            for byte in [&header[..], &request("GET", DIRECTORY_PATH, "", b"")].concat() {
                other.write_all(&[byte]).await.unwrap();
            }
            assert_eq!(Answer::read(&mut other).await.status, 200);
        }
        drop(held);
    }
}

#[tokio::test]
async fn a_balancers_own_connections_have_no_limit_for_a_source() {
    let issuer = start("127.0.0.0/8", |_| {}).await;
    let mut all = Vec::new();
    for header in [&b"PROXY UNKNOWN\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        all.push((held(&issuer, header).await, held(&issuer, header).await));
    }
}

#[tokio::test]
async fn a_header_from_elsewhere_is_a_bad_request_and_does_not_choose_the_source() {
    let issuer = start("127.0.0.9/32", |config| config.limits.source.connections = 2).await;
    let [first, second] = [held(&issuer, b"").await, held(&issuer, b"").await];
    for header in proxy_headers(1) {
        assert_eq!(get(&issuer, &header).await.status, 429);
    }
    drop((first, second));
    let issuer = start("127.0.0.9/32", |_| {}).await;
    assert_eq!(get(&issuer, &proxy_headers(1)[0]).await.status, 400);
}

#[tokio::test]
async fn what_is_not_a_header_is_closed_without_an_answer() {
    let issuer =
        start("127.0.0.0/8", |config| config.limits.header_timeout = ConfigDuration::millis(300)).await;
    let missing = request("GET", DIRECTORY_PATH, "", b"");
    let [v1, v2] = proxy_headers(1);
    for bytes in [&missing[..], b"", &v1[..20], &v2[..20], b"PROXY TCP4 nonsense\r\n"] {
        let mut stream = issuer.connect().await;
        stream.write_all(bytes).await.unwrap();
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got).await; // a close, or a reset
        assert!(got.is_empty(), "{}", bytes.escape_ascii());
    }
}

#[tokio::test]
async fn a_connection_that_waits_for_its_header_gives_way() {
    let issuer = start("127.0.0.0/8", |config| {
        config.limits.connections = NonZeroUsize::MIN;
        config.limits.header_timeout = ConfigDuration::minutes(5); // it is not what frees the place
    })
    .await;
    let mut silent = issuer.connect().await;
    assert_eq!(get(&issuer, &proxy_headers(1)[0]).await.status, 200);
    assert!(rest(&mut silent).await.is_empty());
}
