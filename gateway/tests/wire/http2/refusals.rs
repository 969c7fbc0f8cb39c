//! A refused client learns the reason, as over HTTP/1.1, and loses nothing that was not spent.

use crate::support::http2::{Http2, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running};
use http::Request;

#[tokio::test]
async fn a_refusal_is_the_same_as_over_http_1() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    client.ask(connect_with(echo.address, &[])).await.assert_refused(407, "http_request_denied", "no token");
    let garbage = client.ask(connect_with(echo.address, &["PrivateToken token=\"AAAA\""])).await;
    garbage.assert_refused(407, "http_request_denied", "does not hold a token");
    let token = ISSUER.authorization();
    let sent = client.connect_with(echo.address, &[&token]).await;
    let (answer, mut tunnel) = sent.opened().await;
    answer.assert_opened();
    let again = client.ask(connect_with(echo.address, &[&token])).await;
    again.assert_refused(407, "http_request_denied", "spent");
    assert_eq!(again.value("content-length"), again.body.len().to_string());
    tunnel.echo(b"still").await;
    assert_eq!(echo.came().await, 1);
}

#[tokio::test]
async fn a_request_that_can_be_read_in_two_ways_is_refused_and_costs_no_token() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let token = ISSUER.authorization();
    let connect = || Request::connect(echo.address.to_string()).header("proxy-authorization", &token);
    for (request, details) in [
        (connect().header("host", "other.example"), ":authority"),
        (connect().header("host", "a").header("host", "b"), "Host"),
        (connect().header("content-length", "5"), "body"),
        (connect().header("content-length", "0"), "body"),
        (Request::connect("other.example").header("proxy-authorization", &token), "port"),
        (Request::get("https://other.example/").header("proxy-authorization", &token), "http://"),
    ] {
        let answer = client.send(request.body(()).unwrap(), false).await.answer().await;
        answer.assert_refused(400, "http_request_error", details);
    }
    let request = connect().header("host", echo.address.to_string()).body(()).unwrap();
    let (answer, mut tunnel) = client.send(request, false).await.opened().await;
    answer.assert_opened();
    tunnel.echo(b"the token was not spent").await;
}

#[tokio::test]
async fn a_refused_head_has_no_body() {
    let gateway = Running::start().await;
    let mut client = Http2::connect(gateway.address).await;
    let answer = client.ask(Request::head("http://target.example/").body(()).unwrap()).await;
    assert_eq!((answer.status, answer.body.len()), (407, 0));
    assert!(answer.value("content-length").parse::<usize>().unwrap() > 0, "{answer:?}");
}

/// Of streams that race, at most one wins, on one connection and on two.
#[tokio::test]
async fn a_token_on_many_streams_at_once_opens_one_tunnel() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut clients = [Http2::connect(gateway.address).await, Http2::connect(gateway.address).await];
    let token = ISSUER.authorization();
    let mut sent = Vec::new();
    for number in 0..64 {
        sent.push(clients[number % 2].connect_with(echo.address, &[&token]).await);
    }
    let (mut opened, mut tunnels) = (0, Vec::new());
    for sent in sent {
        let (answer, tunnel) = sent.opened().await;
        assert!(matches!(answer.status, 200 | 407), "{answer:?}");
        opened += usize::from(answer.status == 200);
        tunnels.push(tunnel);
    }
    assert_eq!(opened, 1);
}

#[tokio::test]
async fn tunnels_are_bounded_as_connections_are() {
    let echo = Echo::start().await;
    let gateway = Running::start_with(|config| config.limits.connections = 3).await;
    let mut client = Http2::connect(gateway.address).await;
    let (mut one, _two) = (client.tunnel(echo.address).await, client.tunnel(echo.address).await);
    let token = ISSUER.authorization();
    let refused = client.ask(connect_with(echo.address, &[&token])).await;
    refused.assert_refused(503, "http_request_denied", "too many connections");
    one.echo(b"still").await;
    one.end();
    assert_eq!(one.rest().await, b"");
    drop(one);
    let (answer, mut tunnel) = client.connect_with(echo.address, &[&token]).await.opened().await;
    answer.assert_opened(); // its place is free again, and the token was not spent
    tunnel.echo(b"and on").await;
}

#[tokio::test]
async fn a_source_has_as_many_requests_at_once_as_connections() {
    let gateway = Running::start_with(|config| {
        config.limits.source.connections = 3;
        config.limits.source.exempt = Vec::new();
        config.limits.source.refusals = 0;
    })
    .await;
    let slow = crate::support::target::Held::start().await;
    let mut client = Http2::connect(gateway.address).await;
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let request = Request::post(format!("http://{}/", slow.address))
            .header("proxy-authorization", ISSUER.authorization())
            .body(())
            .unwrap();
        uploads.push(client.send(request, false).await);
    }
    let refused = client.ask(connect_with("a.example:443", &[])).await;
    refused.assert_refused(429, "http_request_denied", "from this address");
}
