//! Places for connections: who gets one, and who gives way.

use crate::support::{Answer, REQUEST_TYPE, Running, config, request};
use postern_config::ConfigDuration;
use postern_token::DIRECTORY_PATH;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A connection whose address is 127.0.0.`last`.
pub async fn connect_from(last: u8, issuer: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
    socket.connect(issuer.address).await.unwrap()
}

#[tokio::test]
async fn slow_headers_and_slow_bodies_give_way_to_whole_requests() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.connections = NonZeroUsize::new(2).unwrap();
    config.limits.header_timeout = ConfigDuration::minutes(5); // it is not what frees the places
    config.limits.body_timeout = ConfigDuration::minutes(5);
    let issuer = Running::start(config).await;
    let header = "GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: ".to_owned();
    let body = format!(
        "POST /token-request HTTP/1.1\r\nhost: localhost\r\ncontent-type: {REQUEST_TYPE}\r\ncontent-length: 259\r\n\
         expect: 100-continue\r\n\r\n"
    );
    for (slow, is_begun) in [(header, false), (body, true)] {
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut stream = issuer.connect().await;
            stream.write_all(slow.as_bytes()).await.unwrap();
            if is_begun {
                stream.read_exact(&mut [0; 25]).await.unwrap(); // 100 Continue: the issuer waits for the body
            }
            held.push(stream);
        }
        for _ in 0..5 {
            assert_eq!(issuer.get("").await.status, 200);
        }
        drop(held);
    }
}

#[tokio::test]
async fn a_slow_header_that_gives_way_is_answered_503() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.connections = NonZeroUsize::MIN;
    let issuer = Running::start(config).await;
    let mut slow = issuer.connect().await;
    let one = format!("GET {DIRECTORY_PATH} HTTP/1.1\r\nhost: localhost\r\n");
    slow.write_all(format!("{one}\r\n{one}").as_bytes()).await.unwrap();
    slow.read_exact(&mut [0; 15]).await.unwrap(); // the first is answered, so the second is on its way
    assert_eq!(issuer.get("").await.status, 200);
    let mut rest = String::new();
    slow.read_to_string(&mut rest).await.unwrap();
    let last = rest.split("HTTP/1.1 ").last().unwrap();
    assert!(last.starts_with("503 ") && last.contains("retry-after: 1\r\n"), "{rest}");
    assert!(last.contains("another connection needed its place"), "{rest}");
}

#[tokio::test]
async fn who_sends_no_request_reads_so() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let long = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx-long: {}\r\n\r\n", "x".repeat(40_000));
    for (sent, status, said) in [("nonsense\r\n\r\n", 400, "no request of HTTP"), (&long, 431, "16 KiB")] {
        let answer = issuer.exchange(sent.as_bytes()).await;
        assert_eq!((answer.status, answer.field("connection")), (status, Some("close")));
        assert!(answer.text().contains(said), "{}", answer.text());
    }
}

#[tokio::test]
async fn one_source_gets_its_share_and_others_get_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.source.connections = 2;
    config.limits.source.exempt = Vec::new();
    let issuer = Running::start(config).await;
    let get = request("GET", DIRECTORY_PATH, "", b"");
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect_from(1, &issuer).await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap(); // accepted, and kept alive
        held.push(stream);
    }
    let mut refused = connect_from(1, &issuer).await;
    refused.write_all(&get).await.unwrap();
    refused.shutdown().await.unwrap();
    let answer = Answer::read(&mut refused).await;
    assert_eq!((answer.status, answer.field("retry-after")), (429, Some("1")));
    assert!(answer.text().contains("from this address or network"), "{}", answer.text());
    let mut other = connect_from(2, &issuer).await;
    other.write_all(&get).await.unwrap();
    assert_eq!(Answer::read(&mut other).await.status, 200);
}
