//! Clients that cost without paying, one by one.

use crate::support::client::{Client, connect_with as plain_connect_with};
use crate::support::http2::{Http2, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, PATIENCE, Running};
use bytes::Bytes;
use h2::Reason;
use h2::client::Builder;
use postern_config::ConfigDuration;
use postern_testkit::http2::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, HELLO, PING, RST_STREAM, SETTINGS, fields, frame, frames,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Sends frames until the gateway ends the connection.
async fn until_ended(gateway: SocketAddr, next: impl Fn(u32) -> Vec<u8> + Send + 'static) {
    let (mut reader, mut writer) = TcpStream::connect(gateway).await.unwrap().into_split();
    let sending = tokio::spawn(async move {
        let mut sent = writer.write_all(HELLO).await;
        for number in 0..200_000 {
            if sent.is_err() {
                return;
            }
            sent = writer.write_all(&next(number)).await;
        }
        panic!("nothing ends it");
    });
    let mut said = Vec::new();
    let reading = reader.read_to_end(&mut said);
    let _ = timeout(PATIENCE, reading).await.expect("the connection stays open"); // it may be reset
    timeout(PATIENCE, sending).await.unwrap().unwrap();
}

/// Reads until there are as many frames of this type.
async fn until_said(stream: &mut TcpStream, said: &mut Vec<u8>, kind: u8, count: usize) {
    while frames(said).iter().filter(|(of, _)| *of == kind).count() < count {
        assert!(timeout(PATIENCE, stream.read_buf(said)).await.unwrap().unwrap() > 0, "{said:?}");
    }
}

/// They cost what a refusal costs, and are limited as refusals are.
#[tokio::test]
async fn requests_that_are_reset_at_once_count_as_refused() {
    let gateway = Running::start_with(|config| {
        config.limits.source.refusals = 1;
        config.limits.source.refusals_burst = 30;
        config.limits.source.exempt = Vec::new();
    })
    .await;
    let head = fields(&[(":method", "CONNECT"), (":authority", "a.example:443")]);
    let reset = |number: u32| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_HEADERS, stream, &head), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    };
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let resets: Vec<u8> = (0..100).flat_map(reset).collect();
    stream.write_all(&[HELLO, &resets[..], &frame(PING, 0, 0, &[7; 8])].concat()).await.unwrap();
    until_said(&mut stream, &mut Vec::new(), PING, 1).await;
    let answer = Client::ask(gateway.address, plain_connect_with("a.example:443", &[])).await;
    assert_eq!(answer.status, 429, "{answer:?}");
}

#[tokio::test]
async fn a_header_without_end_ends_the_connection() {
    let gateway = Running::start().await;
    let piece = fields(&[("x", "y")]).repeat(100);
    until_ended(gateway.address, move |number| match number {
        0 => frame(HEADERS, 0, 1, &piece),
        _ => frame(CONTINUATION, 0, 1, &piece),
    })
    .await;
    gateway.emptied().await;
}

#[tokio::test]
async fn a_large_header_is_refused_and_costs_no_more_than_its_stream() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut request = connect_with(echo.address, &[]);
    request.headers_mut().insert("x", "y".repeat(17 << 10).parse().unwrap());
    match client.send(request, true).await.answer_or_reset().await {
        Ok(answer) => assert_eq!(answer.status, 431, "{answer:?}"),
        Err(error) => assert!(error.is_reset(), "{error}"),
    }
    client.tunnel(echo.address).await.echo(b"and on").await;
}

/// A second header that does not end the stream (RFC 9113, section 8.1), when no answer can have come before it.
#[tokio::test]
async fn what_is_malformed_in_a_tunnel_resets_its_stream_and_no_other() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let authority = echo.address.to_string();
    let connect = |stream| {
        let token = ISSUER.authorization();
        let head = [(":method", "CONNECT"), (":authority", &authority), ("proxy-authorization", &token)];
        frame(HEADERS, END_HEADERS, stream, &fields(&head))
    };
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(&[HELLO, &connect(1), &connect(3)].concat()).await.unwrap();
    let mut said = Vec::new();
    until_said(&mut stream, &mut said, HEADERS, 2).await;
    let malformed = frame(HEADERS, END_HEADERS, 1, &fields(&[("x", "y")]));
    stream.write_all(&[malformed, frame(DATA, 0, 3, b"still")].concat()).await.unwrap();
    until_said(&mut stream, &mut said, RST_STREAM, 1).await;
    until_said(&mut stream, &mut said, DATA, 1).await;
    let said = frames(&said);
    assert!(said.contains(&(RST_STREAM, &[0, 0, 0, 1])), "{said:?}");
    assert!(said.contains(&(DATA, b"still")), "{said:?}");
}

/// Pings and settings are answered, and those of a client that reads no answer must not pile up.
#[tokio::test]
async fn answers_to_pings_and_settings_do_not_pile_up() {
    for flood in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let gateway =
            Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(500)).await;
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(HELLO).await.unwrap();
        let flood = flood.repeat(10_000);
        let sending = async { while stream.write_all(&flood).await.is_ok() {} };
        assert!(timeout(PATIENCE, sending).await.is_ok(), "it takes whatever comes, and is not read");
        gateway.emptied().await;
    }
}

/// A window of nothing: no refusal can be sent.
#[tokio::test]
async fn refusals_that_are_not_read_hold_no_place_and_end_the_connection_when_there_are_many() {
    let gateway = Running::start_with(|config| config.limits.connections = 12).await;
    let echo = Echo::start().await;
    let mut hostile = Vec::new();
    for _ in 0..3 {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let mut client = Http2::with(Builder::new().initial_window_size(0), stream).await;
        let mut unread = Vec::new();
        for _ in 0..8 {
            let sent = client.connect_with(echo.address, &[]).await;
            unread.push(sent.opened().await);
        }
        assert!(unread.iter().all(|(answer, _)| answer.status == 407));
        hostile.push((client, unread));
    }
    Http2::connect(gateway.address).await.tunnel(echo.address).await.echo(b"there is room").await;
    let (client, unread) = hostile.remove(0);
    let mut more = Vec::new(); // one that is dropped is reset, and then it is not unread
    let asking = async {
        while let Ok(mut sender) = client.sender.clone().ready().await {
            match sender.send_request(connect_with(echo.address, &[]), false) {
                Ok(sent) => more.push(sent),
                Err(_) => return,
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asking).await.expect("any number may be left unread");
    drop((unread, more));
    assert!(client.ended().await.is_err());
}

#[tokio::test]
async fn a_client_may_give_up_many_requests_at_once() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut tunnel = client.tunnel(echo.address).await;
    let mut sent = Vec::new();
    for _ in 0..100 {
        sent.push(client.connect_with(echo.address, &[]).await);
    }
    for mut sent in sent {
        sent.body.send_reset(Reason::CANCEL);
    }
    tunnel.echo(b"still").await;
}

/// A request that costs the client nothing keeps no connection open.
#[tokio::test]
async fn refusals_do_not_keep_a_connection_open_that_had_a_tunnel() {
    let echo = Echo::start().await;
    let gateway =
        Running::start_with(|config| config.limits.idle_timeout = ConfigDuration::millis(700)).await;
    let mut client = Http2::connect(gateway.address).await;
    let mut tunnel = client.tunnel(echo.address).await;
    tunnel.end();
    assert_eq!(tunnel.rest().await, b"");
    let asking = async {
        while let Ok(mut sender) = client.sender.clone().ready().await {
            let Ok((response, _)) = sender.send_request(connect_with(echo.address, &[]), true) else {
                return;
            };
            let _ = response.await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it is kept for nothing");
}

/// Data sent before a token was checked has one bound for the whole connection, and later requests are still answered.
#[tokio::test]
async fn data_without_a_token_is_not_kept() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    for _ in 0..200 {
        let mut sent = client.connect_with(echo.address, &[]).await;
        let _ = sent.body.send_data(Bytes::from_static(&[7; 60 << 10]), false);
        sent.answer().await.assert_refused(407, "http_request_denied", "no token");
    }
    client.tunnel(echo.address).await.echo(b"and on").await;
}

/// Wherever a client resets its request, its token is spent once at most.
#[tokio::test]
async fn a_token_of_a_request_that_was_reset_opens_one_tunnel_at_most() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let (mut opened, mut spent) = (0, 0);
    for wait in 0..40_u64 {
        let token = ISSUER.authorization();
        let mut sent = client.connect_with(echo.address, &[&token]).await;
        tokio::time::sleep(Duration::from_micros(wait * 25)).await;
        sent.body.send_reset(Reason::CANCEL);
        let first = sent.response.await.is_ok_and(|response| response.status() == 200);
        let (answer, _tunnel) = client.connect_with(echo.address, &[&token]).await.opened().await;
        assert!(answer.status == 407 || answer.status == 200 && !first, "{answer:?}");
        match answer.status {
            200 => opened += 1,
            _ => spent += 1,
        }
    }
    assert_eq!(opened + spent, 40);
    drop(client);
    gateway.emptied().await;
}

/// Without an account nothing is kept open: no request, a request without an end, one that pings.
#[tokio::test]
async fn a_connection_without_a_tunnel_is_given_up() {
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(300)).await;
    let head = fields(&[(":method", "CONNECT"), (":authority", "a.example:443")]);
    for begun in [&HELLO[..10], HELLO, &[HELLO, &frame(HEADERS, 0, 1, &head)[..]].concat()] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(begun).await.unwrap();
        timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    }
    let (mut reader, mut writer) = TcpStream::connect(gateway.address).await.unwrap().into_split();
    writer.write_all(HELLO).await.unwrap();
    let pinging = async {
        while writer.write_all(&frame(PING, 0, 0, &[0; 8])).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reading = async { while let Ok(1..) = reader.read(&mut [0; 4096]).await {} };
    timeout(PATIENCE, async { tokio::join!(pinging, reading) }).await.expect("pings keep it");
    gateway.emptied().await;
}
