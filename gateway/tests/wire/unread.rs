//! Clients that do not read their answers, or read them slowly.

use crate::support::client::{Client, NO_TOKEN, connect, find};
use crate::support::target::Held;
use crate::support::{ISSUER, PATIENCE, Running};
use postern_config::ConfigDuration;
use postern_testkit::clients::flood_until_cut;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

/// A connection with little room on this side, so that answers soon fill what the gateway's kernel keeps.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_send_buffer_size(65_536).unwrap();
    socket.connect(address).await.unwrap()
}

fn get(target: SocketAddr) -> String {
    let token = ISSUER.authorization();
    format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {token}\r\n\r\n")
}

/// The target's end of the next connection, its request read: an answer that comes before is no answer.
async fn asked(target: &mut Held) -> TcpStream {
    let (mut far, mut request) = (target.next().await, Vec::new());
    while find(&request, b"\r\n\r\n").is_none() {
        assert!(timeout(PATIENCE, far.read_buf(&mut request)).await.unwrap().unwrap() > 0);
    }
    far
}

#[tokio::test]
async fn a_client_that_never_reads_its_answers_is_cut_off() {
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(300)).await;
    flood_until_cut(narrow(gateway.address).await, NO_TOKEN).await;
    gateway.emptied().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_late_gets_every_answer() {
    const NUMBER: usize = 10_000;
    let gateway = Running::start().await;
    let (mut reader, mut writer) = narrow(gateway.address).await.into_split();
    let sent = NO_TOKEN.repeat(NUMBER);
    let writing = tokio::spawn(async move {
        writer.write_all(sent.as_bytes()).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    sleep(Duration::from_millis(500)).await; // the gateway stands still
    let mut answers = String::new();
    timeout(PATIENCE, reader.read_to_string(&mut answers)).await.unwrap().unwrap();
    assert_eq!(answers.matches("HTTP/1.1 407 ").count(), NUMBER);
    writing.await.unwrap();
}

#[tokio::test]
async fn a_forwarded_answer_that_is_not_read_is_cut_off_after_the_idle_timeout() {
    let gateway = Running::start_with(|config| config.limits.idle_timeout = ConfigDuration::secs(3)).await;
    let mut target = Held::start().await;
    let mut client = narrow(gateway.address).await;
    client.write_all(get(target.address).as_bytes()).await.unwrap();
    let mut far = asked(&mut target).await;
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n").await.unwrap();
    flood_until_cut(far, &"x".repeat(1024)).await;
    gateway.emptied().await;
    let mut received = Vec::new();
    let ended = timeout(PATIENCE, client.read_to_end(&mut received)).await.unwrap();
    assert!(ended.is_err(), "{} bytes passed for a whole answer", received.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_answer_that_is_read_slowly_arrives_whole() {
    const LENGTH: usize = 24 << 20;
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(300)).await;
    let mut target = Held::start().await;
    let request = get(target.address); // takes a while, which is the gateway's header timeout
    let mut client = narrow(gateway.address).await;
    client.write_all(request.as_bytes()).await.unwrap();
    let mut far = asked(&mut target).await;
    let sending = tokio::spawn(async move {
        far.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        far.write_all(&vec![b'x'; LENGTH]).await.unwrap();
        far
    });
    let mut received = Vec::new();
    while find(&received, b"\r\n\r\n").is_none_or(|end| received.len() < end + 4 + LENGTH) {
        // Ten pauses, longer together than the deadlines of an ordinary answer.
        sleep(Duration::from_millis(200)).await;
        let mut part = (&mut client).take(LENGTH as u64 / 10);
        let read = timeout(PATIENCE, part.read_to_end(&mut received)).await.unwrap().unwrap();
        let end = &received[received.len().saturating_sub(100)..];
        assert!(read > 0, "cut off after {}: {:?}", received.len(), String::from_utf8_lossy(end));
    }
    drop(sending.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_is_not_read_for_a_while_is_not_cut_off() {
    const LENGTH: usize = 24 << 20;
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(200)).await;
    let mut target = Held::start().await;
    let request = connect(target.address); // takes a while, which is the gateway's header timeout
    let mut client = Client::over(narrow(gateway.address).await);
    client.send(request).await;
    let mut far = target.next().await;
    let sending = tokio::spawn(async move { far.write_all(&vec![b'x'; LENGTH]).await.unwrap() });
    client.answer().await.assert_opened();
    sleep(Duration::from_secs(2)).await; // ten times the deadline of an answer
    assert_eq!(client.take(LENGTH).await.len(), LENGTH);
    client.closed_silently().await;
    sending.await.unwrap();
}
