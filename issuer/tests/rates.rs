//! Limits per source on actions that cost work before anyone has paid for them.

use crate::places::connect_from;
use crate::support::{Answer, Running, account, bearer, certified, config, declare, post, request, rest};
use postern_daemon::tls::client_config;
use postern_token::{ChallengeDigest, DIRECTORY_PATH};
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Sends `bytes` from 127.0.0.`last` and reads the answer, up to the end of the connection.
async fn exchange_from(last: u8, issuer: &Running, bytes: &[u8]) -> Answer {
    let mut stream = connect_from(last, issuer).await;
    stream.write_all(bytes).await.unwrap();
    Answer::read(&mut stream).await
}

#[tokio::test]
async fn a_source_whose_requests_were_refused_too_often_is_answered_429_and_others_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    declare(&config, &[account("one", "k1", "1000/1d")]);
    config.limits.source.exempt = Vec::new();
    config.limits.source.refusals = 1; // a second until one is forgotten
    config.limits.source.refusals_burst = 61;
    let issuer = Running::start(config).await;
    let request = issuer.key().await.request(ChallengeDigest::of(b"challenge")).unwrap().0.serialize();
    // While its connections are open, more is refused than is read of new ones.
    let without_key = String::from_utf8(post("", b"x")).unwrap().replace("connection: close\r\n", "");
    let (mut open, mut kept) = (Vec::new(), None);
    for _ in 0..61 {
        let mut stream: TcpStream = connect_from(1, &issuer).await;
        stream.write_all(without_key.as_bytes()).await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
        if kept.is_none() { kept = Some(stream) } else { open.push(stream) }
    }
    for stream in &mut open {
        stream.write_all(b"nonsense\r\n\r\n").await.unwrap();
        let text = String::from_utf8(rest(stream).await).unwrap();
        assert!(text.contains("HTTP/1.1 401 ") || text.contains("HTTP/1.1 400 "), "{text}");
    }
    let good = post(&bearer("k1"), &request);
    for last in [1, 2] {
        let answer = exchange_from(last, &issuer, &good).await;
        match last {
            1 => {
                assert_eq!(answer.status, 429, "{}", answer.text());
                assert!(
                    answer.text().contains("from this address or network were refused"),
                    "{}",
                    answer.text()
                );
                let seconds: u64 = answer.field("retry-after").unwrap().parse().unwrap();
                assert!((2..=61).contains(&seconds), "{seconds}");
            }
            _ => assert_eq!(answer.status, 200, "{}", answer.text()),
        }
    }
    let mut kept = kept.unwrap();
    kept.write_all(&good).await.unwrap();
    let text = String::from_utf8(rest(&mut kept).await).unwrap();
    assert!(text.contains("HTTP/1.1 429 ") && text.contains("\r\nretry-after: "), "{text}");
}

#[tokio::test]
async fn what_is_answered_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.source.exempt = Vec::new();
    config.limits.source.refusals = 1;
    config.limits.source.refusals_burst = 1;
    let issuer = Running::start(config).await;
    for _ in 0..20 {
        let get = request("GET", DIRECTORY_PATH, "", b"");
        assert_eq!(exchange_from(1, &issuer, &get).await.status, 200);
    }
}

#[tokio::test]
async fn more_handshakes_than_a_source_may_make_are_not_begun() {
    let directory = tempfile::tempdir().unwrap();
    let tls = certified(directory.path());
    let connector = TlsConnector::from(Arc::clone(&client_config(tls.certificate.as_deref()).unwrap()));
    let mut config = config(directory.path());
    config.tls = Some(tls);
    config.limits.source.exempt = Vec::new();
    config.limits.source.handshakes = 1;
    config.limits.source.handshakes_burst = 3;
    let issuer = Running::start(config).await;
    let handshake = async |last| {
        let stream = connect_from(last, &issuer).await;
        connector.connect("localhost".try_into().unwrap(), stream).await
    };
    let mut made = 0;
    let refused = loop {
        match handshake(1).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100, "there is no limit");
    };
    assert!(made >= 3, "{refused}");
    // Nothing is answered before the handshake, not even an alert, which would be invalid data here.
    assert!(matches!(refused.kind(), UnexpectedEof | ConnectionReset | BrokenPipe), "{refused:?}");
    handshake(2).await.unwrap();
}
