//! The stop in two steps: accept nothing new and let what is open finish, then end what is left.

use crate::support::client::{Client, NO_TOKEN, connect};
use crate::support::target::{Echo, Held};
use crate::support::{PATIENCE, Running};
use postern_daemon::drain::Drained;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

#[tokio::test]
async fn a_drain_closes_the_listener_lets_tunnels_finish_and_then_ends() {
    let (mut gateway, echo) = (Running::start().await, Echo::start().await);
    let mut tunnel = Client::connect(gateway.address).await;
    tunnel.send(connect(echo.address)).await;
    tunnel.answer().await.assert_opened();
    let mut idle = Client::connect(gateway.address).await;
    idle.send(NO_TOKEN).await;
    idle.answer().await.assert_refused(407, "http_request_denied", "no token");

    gateway.shutdown.drain();
    let waiting = tokio::spawn({
        let shutdown = gateway.shutdown.clone();
        async move { shutdown.wait(PATIENCE).await }
    });
    idle.closed_silently().await; // kept alive for nothing
    drop(idle);
    // The listener is gone, or will be in a moment.
    let refused = async { while TcpStream::connect(gateway.address).await.is_ok() {} };
    timeout(PATIENCE, refused).await.unwrap();
    tunnel.send("still here").await;
    assert_eq!(tunnel.take(10).await, b"still here");
    assert!(!waiting.is_finished(), "a tunnel is open");
    tunnel.stream.shutdown().await.unwrap();
    tunnel.closed_silently().await;
    assert_eq!(timeout(PATIENCE, waiting).await.unwrap().unwrap(), Drained::Finished);
    gateway.ended().await;
}

#[tokio::test]
async fn the_deadline_closes_tunnels_that_do_not_finish() {
    let (mut gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(connect(target.address)).await;
    client.answer().await.assert_opened();
    let mut far = target.next().await;
    gateway.shutdown.drain();
    // A drain waits for each worker, too, until the worker has stopped accepting.
    let tracker = gateway.shutdown.tracker();
    let accepting = async {
        while tracker.len() > 1 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, accepting).await.unwrap();
    let drained = gateway.shutdown.wait(Duration::from_millis(300)).await;
    assert_eq!(drained, Drained::CutOff(1));
    client.is_reset().await;
    let ended = timeout(PATIENCE, far.read(&mut [0])).await.unwrap();
    assert_eq!(
        ended.map_err(|error| error.kind()),
        Err(std::io::ErrorKind::ConnectionReset),
        "an upload, too"
    );
    gateway.ended().await;
}

/// An answer without a length, to a client of HTTP/1.0, ends where its connection does.
#[tokio::test]
async fn the_deadline_cuts_an_answer_in_a_way_that_is_seen() {
    let (mut gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    let token = crate::support::ISSUER.authorization();
    let url = format!("http://{}/slow", target.address);
    client.send(format!("GET {url} HTTP/1.0\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n")).await;
    let mut far = target.next().await;
    far.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
    far.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").await.unwrap();
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.take(4).await, b"half");
    gateway.shutdown.drain();
    gateway.shutdown.wait(Duration::from_millis(300)).await;
    client.is_reset().await;
    gateway.ended().await;
}

#[tokio::test]
async fn a_request_that_is_being_answered_when_the_drain_begins_gets_its_answer() {
    let (mut gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    let token = crate::support::ISSUER.authorization();
    let url = format!("http://{}/slow", target.address);
    client.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n")).await;
    let mut far = target.next().await;
    far.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
    gateway.shutdown.drain();
    let shutdown = gateway.shutdown.clone();
    let waiting = tokio::spawn(async move { shutdown.wait(PATIENCE).await });
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow").await.unwrap();
    let answer = client.answer().await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"slow"[..]));
    client.closed_silently().await;
    drop(client);
    assert_eq!(timeout(PATIENCE, waiting).await.unwrap().unwrap(), Drained::Finished);
    gateway.ended().await;
}
