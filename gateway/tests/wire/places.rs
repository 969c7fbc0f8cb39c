//! Places for connections: who gets one, and who gives way.

use crate::support::client::{Client, NO_TOKEN, connect, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpSocket;

/// A client whose address is 127.0.0.`last`.
pub(crate) async fn client_from(last: u8, gateway: SocketAddr) -> Client {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
    Client::over(socket.connect(gateway).await.unwrap())
}

/// Sends a request without a token and reads the answer, so that the gateway has surely accepted the connection.
pub(crate) async fn settled<S: AsyncRead + AsyncWrite + Unpin>(mut client: Client<S>) -> Client<S> {
    client.send(NO_TOKEN).await;
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client
}

#[tokio::test]
async fn one_source_gets_its_share_of_the_places_and_others_get_theirs() {
    let echo = Echo::start().await;
    let gateway = Running::start_with(|config| {
        config.limits.source.connections = 3;
        config.limits.source.exempt = Vec::new();
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(settled(client_from(1, gateway.address).await).await);
    }
    let request = connect(echo.address);
    let mut refused = client_from(1, gateway.address).await;
    refused.send(&request).await;
    let answer = refused.answer().await;
    answer.assert_refused(429, "http_request_denied", "from this address");
    assert_eq!(answer.value("connection"), "close");
    refused.closed_silently().await;
    let mut other = client_from(2, gateway.address).await;
    other.send(&request).await; // the token was not spent
    other.answer().await.assert_opened();
    drop((held, refused, other));
    gateway.emptied().await;
    // Tunnels are paid for: a source may have any number of them.
    let mut tunnels = Vec::new();
    for _ in 0..5 {
        let mut client = client_from(1, gateway.address).await;
        client.send(connect(echo.address)).await;
        client.answer().await.assert_opened();
        tunnels.push(client);
    }
}

#[tokio::test]
async fn what_is_on_this_machine_has_no_limit_for_a_source_by_default() {
    let gateway = Running::start_with(|config| config.limits.source.connections = 1).await;
    let (first, second) = (Client::connect(gateway.address).await, Client::connect(gateway.address).await);
    drop((settled(first).await, settled(second).await));
}

#[tokio::test]
async fn when_all_places_are_taken_the_oldest_connection_without_a_request_gives_way() {
    let echo = Echo::start().await;
    let gateway = Running::start_with(|config| {
        config.limits.connections = 3;
        // On another thread a connection could still be about to note that its answer is written.
        config.listen.workers = 1;
    })
    .await;
    let mut tunnel = Client::connect(gateway.address).await;
    tunnel.send(connect(echo.address)).await;
    tunnel.answer().await.assert_opened();
    let mut slow = settled(Client::connect(gateway.address).await).await;
    let mut silent = settled(Client::connect(gateway.address).await).await;
    slow.send("CONNECT a.exam").await;
    let mut tunnels = vec![tunnel];
    for displaced in [&mut slow, &mut silent] {
        let mut client = Client::connect(gateway.address).await;
        client.send(connect(echo.address)).await;
        client.answer().await.assert_opened();
        tunnels.push(client);
        let rest = displaced.rest().await;
        if !rest.is_empty() {
            let rest = String::from_utf8(rest).unwrap();
            assert!(
                rest.starts_with("HTTP/1.1 503 ") && rest.contains("another connection needed"),
                "{rest}"
            );
            assert!(rest.contains("retry-after: 1\r\n") && rest.contains("no token was spent"), "{rest}");
        }
    }
    let authorization = ISSUER.authorization();
    let answer = Client::ask(gateway.address, connect_with(echo.address, &[&authorization])).await;
    answer.assert_refused(503, "http_request_denied", "too many connections");
    for tunnel in &mut tunnels {
        tunnel.send("through").await;
        assert_eq!(tunnel.take(7).await, b"through");
    }
    tunnels.pop();
    let mut waits = None;
    while waits.is_none() {
        // The place is free as soon as the gateway has noticed.
        let answer = Client::ask(gateway.address, connect_with(echo.address, &[&authorization])).await;
        waits = (answer.status == 200).then_some(answer);
    }
}
