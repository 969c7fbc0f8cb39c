//! Limits per source on actions that cost work before anyone has paid for them.

use crate::places::{client_from, settled};
use crate::support::client::{Client, connect, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, PATIENCE, Running};
use crate::tls::certificate;
use postern_daemon::sources::SourceLimits;
use postern_daemon::tls::{TlsConfig, client_config};
use postern_gateway::config::Config;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

const LIMITED: &str = "too many requests from this address or network were refused";

/// One refusal of a source is forgotten in a second, and its requests are read until it has this number.
fn limit(config: &mut Config, refusals_burst: u32) {
    config.limits.source.exempt = Vec::new();
    config.limits.source.refusals = 1;
    config.limits.source.refusals_burst = refusals_burst;
}

async fn gateway(refusals_burst: u32) -> Running {
    Running::start_with(|config| limit(config, refusals_burst)).await
}

/// Causes refusals from 127.0.0.1: as many as are read, and `excess` more, on connections that are open by then.
async fn exhaust(gateway: SocketAddr, burst: u32, excess: usize) {
    let mut open = Vec::new();
    for _ in 0..burst {
        open.push(settled(client_from(1, gateway).await).await);
    }
    for client in open.iter_mut().take(excess) {
        client.send("nonsense\r\n\r\n").await;
        client.answer().await.assert_refused(400, "http_request_error", "not valid HTTP/1.1");
    }
}

#[tokio::test]
async fn a_source_whose_requests_were_refused_too_often_is_answered_429_and_others_are_served() {
    let (echo, gateway) = (Echo::start().await, gateway(61).await);
    let mut kept = settled(client_from(1, gateway.address).await).await;
    exhaust(gateway.address, 60, 60).await;
    let request = connect(echo.address);
    let mut fresh = client_from(1, gateway.address).await;
    for client in [&mut kept, &mut fresh] {
        client.send(&request).await;
        let answer = client.answer().await;
        answer.assert_refused(429, "http_request_denied", LIMITED);
        let body = String::from_utf8(answer.body.clone()).unwrap();
        assert!(body.contains("Retry-After") && body.contains("no token is lost"), "{body}");
        let seconds: u64 = answer.value("retry-after").parse().unwrap();
        assert!((2..=61).contains(&seconds), "{seconds}");
        client.closed_silently().await;
    }
    let mut other = client_from(2, gateway.address).await;
    other.send(&request).await; // the token was not spent
    other.answer().await.assert_opened();
}

#[tokio::test]
async fn who_waits_as_long_as_retry_after_says_is_served() {
    let (echo, gateway) = (Echo::start().await, gateway(4).await);
    exhaust(gateway.address, 4, 2).await;
    let request = connect(echo.address);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = client_from(1, gateway.address).await;
        client.send(&request).await;
        let answer = client.answer().await;
        if answer.status == 200 {
            break;
        }
        answer.assert_refused(429, "http_request_denied", LIMITED);
        assert!(Instant::now() < deadline, "it is refused for ever");
        sleep(Duration::from_secs(answer.value("retry-after").parse().unwrap())).await;
    }
}

#[tokio::test]
async fn each_refusal_that_a_client_causes_counts() {
    let good = ISSUER.authorization();
    let requests = [
        (407, connect_with("a.example:443", &[])),
        (407, connect_with("a.example:443", &["PrivateToken token=\"AAIx\""])),
        (407, connect_with("a.example:443", &["Basic YTpi"])),
        (403, connect_with("169.254.169.254:443", &[&good])),
        (400, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()),
        (400, "nonsense\r\n\r\n".to_owned()),
        (431, format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000))),
    ];
    for (status, request) in requests {
        let gateway = Running::start_with(|config| {
            limit(config, 1);
            config.egress.private = false;
        })
        .await;
        let mut refused = 0;
        loop {
            let mut client = client_from(1, gateway.address).await;
            client.send(&request).await;
            let answer = client.answer().await;
            if answer.status == 429 {
                break;
            }
            assert_eq!(answer.status, status, "{answer:?}");
            refused += 1;
            assert!(refused < 100, "there is no limit for {status}: {request}");
        }
        assert!(refused > 0, "{request}");
    }
}

#[tokio::test]
async fn tunnels_and_what_a_token_has_paid_for_do_not_count() {
    let (echo, gateway) = (Echo::start().await, gateway(1).await);
    let closed = postern_testkit::ports::closed();
    for _ in 0..4 {
        let mut client = client_from(1, gateway.address).await;
        client.send(connect(echo.address)).await;
        client.answer().await.assert_opened();
        let mut client = client_from(1, gateway.address).await;
        client.send(connect(closed)).await;
        client.answer().await.assert_refused(502, "connection_refused", "refused the connection");
    }
    let mut tunnel = client_from(1, gateway.address).await;
    tunnel.send(connect(echo.address)).await;
    tunnel.answer().await.assert_opened();
    exhaust(gateway.address, 1, 1).await;
    tunnel.send("through").await;
    assert_eq!(tunnel.take(7).await, b"through", "an open tunnel stays open");
}

#[tokio::test]
async fn what_is_on_this_machine_has_no_rate_by_default_and_zero_is_no_limit() {
    for exempt in [SourceLimits::default().exempt, Vec::new()] {
        let gateway = Running::start_with(|config| {
            config.limits.source.refusals = u32::from(!exempt.is_empty());
            config.limits.source.refusals_burst = 1;
            config.limits.source.exempt = exempt;
        })
        .await;
        for _ in 0..20 {
            drop(settled(client_from(1, gateway.address).await).await);
        }
    }
}

#[tokio::test]
async fn more_handshakes_than_a_source_may_make_are_not_begun() {
    let home = TempDir::new().unwrap();
    let (certificate, key) = certificate(home.path());
    let connector = TlsConnector::from(Arc::clone(&client_config(Some(&certificate)).unwrap()));
    let gateway = Running::start_with(|config| {
        config.tls = Some(TlsConfig::of_files(certificate, key));
        config.limits.source.exempt = Vec::new();
        config.limits.source.handshakes = 1;
        config.limits.source.handshakes_burst = 3;
    })
    .await;
    let handshake = async |last| {
        let Client { stream, .. } = client_from(last, gateway.address).await;
        connector.connect("proxy.example".try_into().unwrap(), stream).await
    };
    let mut open = Vec::new();
    let refused = loop {
        match handshake(1).await {
            Ok(stream) => open.push(stream),
            Err(error) => break error,
        }
        assert!(open.len() < 100, "there is no limit");
    };
    assert!(open.len() >= 3, "{refused}");
    for stream in open {
        settled(Client::over(stream)).await; // each has its connection
    }
    settled(Client::over(handshake(2).await.unwrap())).await;
    // Nothing is answered before the handshake, not even an alert, which would be invalid data here.
    assert!(matches!(refused.kind(), UnexpectedEof | ConnectionReset | BrokenPipe), "{refused:?}");
}
