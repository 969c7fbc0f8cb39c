//! The beginning and the end of a connection.

use crate::support::client::{Client, NO_TOKEN, connect_with as plain_connect_with};
use crate::support::http2::{Http2, connect_with};
use crate::support::target::Echo;
use crate::support::{PATIENCE, Running};
use crate::tls::Front;
use h2::Reason;
use postern_config::ConfigDuration;
use postern_daemon::drain::Drained;
use postern_testkit::http2::HELLO;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

#[tokio::test]
async fn clients_that_offer_it_speak_it_over_tls() {
    let (front, echo) = (Front::start_with(|_| {}).await, Echo::start().await);
    let stream = front.speaking(&[b"h2", b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = Http2::over(stream).await;
    let mut tunnel = client.tunnel(echo.address).await;
    tunnel.echo(&vec![1; 1 << 20]).await;
    client.ask(connect_with(echo.address, &[])).await.assert_refused(407, "http_request_denied", "no token");
    tunnel.end();
    assert_eq!(tunnel.rest().await, b"");
    let stream = front.speaking(&[b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut client = Client::over(stream);
    client.send(plain_connect_with(echo.address, &[])).await;
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
}

#[tokio::test]
async fn without_http2_it_is_neither_offered_nor_spoken() {
    let front = Front::start_with(|config| config.listen.http2 = false).await;
    let stream = front.speaking(&[b"h2", b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let gateway = Running::start_with(|config| config.listen.http2 = false).await;
    Client::ask(gateway.address, HELLO).await.assert_refused(400, "http_request_error", "HTTP/1.1");
}

#[tokio::test]
async fn a_preface_may_come_byte_by_byte() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let (near, far) = tokio::io::duplex(1 << 20);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let slowed = tokio::spawn(async move {
        let (mut from_client, mut to_client) = tokio::io::split(far);
        let (mut from_gateway, mut to_gateway) = stream.into_split();
        let up = async {
            for _ in 0..60 {
                let Ok(byte) = from_client.read_u8().await else { return };
                to_gateway.write_u8(byte).await.unwrap();
                sleep(Duration::from_millis(2)).await;
            }
            let _ = tokio::io::copy(&mut from_client, &mut to_gateway).await;
        };
        let down = async { _ = tokio::io::copy(&mut from_gateway, &mut to_client).await };
        tokio::join!(up, down);
    });
    let mut client = Http2::over(near).await;
    client.tunnel(echo.address).await.echo(b"all the same").await;
    drop(client);
    slowed.abort();
}

/// Only what begins a connection can be the preface.
#[tokio::test]
async fn a_preface_after_a_request_is_refused() {
    let gateway = Running::start().await;
    let mut client = Client::connect(gateway.address).await;
    client.send(NO_TOKEN).await;
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client.send(HELLO).await;
    client.answer().await.assert_refused(400, "http_request_error", "HTTP/1.1");
    client.closed_silently().await;
    for not_quite in ["PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", "PRI * HTTP/2.1\r\n\r\n"] {
        let mut client = Client::connect(gateway.address).await;
        client.send(not_quite).await;
        let said = client.rest().await;
        assert!(!said.starts_with(b"HTTP/1.1 2"), "{:?}", String::from_utf8_lossy(&said));
    }
    gateway.emptied().await;
}

#[tokio::test]
async fn a_drain_lets_tunnels_finish_and_takes_no_other() {
    let (mut gateway, echo) = (Running::start().await, Echo::start().await);
    let mut idle = Http2::connect(gateway.address).await;
    idle.ask(connect_with(echo.address, &[])).await.assert_refused(407, "http_request_denied", "no token");
    let mut client = Http2::connect(gateway.address).await;
    let mut tunnel = client.tunnel(echo.address).await;
    gateway.shutdown.drain();
    let waiting = tokio::spawn({
        let shutdown = gateway.shutdown.clone();
        async move { shutdown.wait(PATIENCE).await }
    });
    idle.ended().await.unwrap();
    tunnel.echo(b"still here").await;
    let refused = async {
        while let Ok(mut sender) = client.sender.clone().ready().await {
            let Ok((response, _)) = sender.send_request(connect_with(echo.address, &[]), true) else {
                return;
            };
            if response.await.is_err() {
                return;
            }
        }
    };
    timeout(PATIENCE, refused).await.expect("it takes more");
    tunnel.echo(b"and on").await;
    assert!(!waiting.is_finished(), "a tunnel is open");
    tunnel.end();
    assert_eq!(tunnel.rest().await, b"");
    drop(tunnel);
    client.ended().await.unwrap();
    assert_eq!(timeout(PATIENCE, waiting).await.unwrap().unwrap(), Drained::Finished);
    gateway.ended().await;
}

/// GOAWAY comes in two steps, with a PING between them.
#[tokio::test]
async fn a_drain_does_not_wait_for_a_client_that_answers_no_ping() {
    let mut gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::hours(1)).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    gateway.accepted(1).await;
    gateway.shutdown.drain();
    let drained = gateway.shutdown.wait(PATIENCE).await;
    assert_eq!(drained, Drained::Finished);
    gateway.ended().await;
    stream.read_to_end(&mut Vec::new()).await.unwrap();
}

#[tokio::test]
async fn the_deadline_resets_tunnels_that_do_not_finish() {
    let (mut gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut tunnel = client.tunnel(echo.address).await;
    tunnel.echo(b"half").await;
    gateway.shutdown.drain();
    assert!(matches!(gateway.shutdown.wait(Duration::from_millis(300)).await, Drained::CutOff(_)));
    assert_eq!(tunnel.reset().await, Some(Reason::CONNECT_ERROR), "a break, not an end");
    gateway.ended().await;
}

/// It has no tunnel any more, but had one.
#[tokio::test]
async fn a_connection_that_carried_a_tunnel_is_kept_for_the_idle_timeout() {
    let echo = Echo::start().await;
    let gateway = Running::start_with(|config| {
        config.limits.header_timeout = ConfigDuration::secs(1); // the first tunnel is opened within it
        config.limits.idle_timeout = ConfigDuration::secs(5);
    })
    .await;
    let mut client = Http2::connect(gateway.address).await;
    let mut tunnel = client.tunnel(echo.address).await;
    tunnel.end();
    assert_eq!(tunnel.rest().await, b"");
    sleep(Duration::from_secs(2)).await; // beyond the one, and far from the other
    client.tunnel(echo.address).await.echo(b"again").await;
    client.ended().await.unwrap();
    gateway.emptied().await;
}
