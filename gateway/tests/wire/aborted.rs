//! Clients that hang up at every point of the exchange: nothing of theirs stays behind, and no token is admitted
//! twice.

use crate::support::client::{Client, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The point at which a client hangs up.
#[derive(Clone, Copy)]
enum Until {
    Connected,
    Sent(usize),
    SentAll,
    Yielded,
    Answered,
    Echoed,
}

async fn hang_up(gateway: &Running, request: &str, until: Until, reset: bool) {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    match until {
        Until::Connected => {}
        Until::Sent(length) => stream.write_all(&request.as_bytes()[..length]).await.unwrap(),
        _ => stream.write_all(request.as_bytes()).await.unwrap(),
    }
    match until {
        Until::Yielded => tokio::task::yield_now().await,
        Until::Answered => drop(stream.read(&mut [0; 1]).await),
        Until::Echoed => {
            let mut client = Client::over(stream);
            client.head().await.assert_opened();
            client.send("x").await;
            client.take(1).await;
            stream = client.stream;
        }
        _ => {}
    }
    if reset {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_leave_nothing_behind_and_their_tokens_are_admitted_once_at_most() {
    const ROUNDS: usize = 200; // of 11 clients each
    const PLACES: usize = 40; // more than one round needs
    let echo = Echo::start().await;
    let gateway = Running::start_with(|config| config.limits.connections = PLACES).await;
    let mut tokens = Vec::new();
    for round in 0..ROUNDS {
        let token = ISSUER.authorization();
        let request = connect_with(echo.address, &[&token]);
        let part = 1 + round * (request.len() - 1) / ROUNDS;
        let came = echo.came().await;
        for until in [Until::Connected, Until::Sent(part), Until::SentAll, Until::Yielded, Until::Answered] {
            hang_up(&gateway, &request, until, false).await;
            hang_up(&gateway, &request, until, true).await;
        }
        gateway.emptied().await;
        let opened = echo.came().await - came;
        assert!(opened <= 1, "one token opened {opened} tunnels");
        let fresh = connect_with(echo.address, &[&ISSUER.authorization()]);
        hang_up(&gateway, &fresh, Until::Echoed, round % 2 == 0).await;
        tokens.extend([request, fresh]);
    }
    // Each token may have opened a tunnel: now none opens one.
    let came = echo.came().await;
    for request in &tokens {
        let answer = Client::ask(gateway.address, request).await;
        answer.assert_refused(407, "http_request_denied", "token already spent");
    }
    assert_eq!(echo.came().await, came);
    assert!(came <= tokens.len(), "{came} tunnels for {} tokens", tokens.len());
    gateway.emptied().await;
    // Every place is free again: as many tunnels as there are places.
    let mut tunnels = Vec::new();
    for _ in 0..PLACES {
        let mut client = Client::connect(gateway.address).await;
        client.send(connect_with(echo.address, &[&ISSUER.authorization()])).await;
        client.answer().await.assert_opened();
        tunnels.push(client);
    }
}
