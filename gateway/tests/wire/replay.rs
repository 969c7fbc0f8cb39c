//! Exactly once: of all presentations of one token, one opens a tunnel.

use crate::support::client::{Client, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running};
use postern_token::header::format_authorization;
use std::sync::Arc;
use tokio::sync::Barrier;

#[tokio::test]
async fn the_second_presentation_is_refused_as_spent() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let request = connect_with(echo.address, &[&ISSUER.authorization()]);
    Client::ask(gateway.address, &request).await.assert_opened();
    let answer = Client::ask(gateway.address, &request).await;
    answer.assert_refused(407, "http_request_denied", "token already spent");
    assert_eq!(answer.proxy_status().details.unwrap(), "token already spent");
    assert_eq!(echo.came().await, 1);
}

#[tokio::test]
async fn a_restart_forgets_nothing() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let tokens: Vec<String> = (0..20).map(|_| ISSUER.authorization()).collect();
    for token in &tokens[..10] {
        Client::ask(gateway.address, connect_with(echo.address, &[token])).await.assert_opened();
    }
    let gateway = Running::start_in(gateway.stop().await, |_| {}).unwrap();
    gateway.ready().await;
    for token in &tokens[..10] {
        let answer = Client::ask(gateway.address, connect_with(echo.address, &[token])).await;
        answer.assert_refused(407, "http_request_denied", "token already spent");
    }
    for token in &tokens[10..] {
        Client::ask(gateway.address, connect_with(echo.address, &[token])).await.assert_opened();
    }
}

#[tokio::test]
async fn a_second_gateway_on_the_same_store_does_not_start() {
    let gateway = Running::start().await;
    let home = tempfile::TempDir::new().unwrap();
    let path = gateway.home().join("spent");
    assert!(Running::start_in(home, |config| config.store.path = path).is_err());
}

#[tokio::test]
async fn of_two_gateways_with_a_store_each_only_one_admits_a_token() {
    let (there, here) = (Running::start().await, Running::start().await);
    let echo = Echo::start().await;
    let request = connect_with(echo.address, &[&format_authorization(&ISSUER.token())]);
    let refused = async |gateway: &Running, details: &str| {
        let answer = Client::ask(gateway.address, &request).await;
        assert_eq!(answer.status, 407, "{answer:?}");
        assert!(answer.proxy_status().details.unwrap().contains(details), "{answer:?}");
    };
    refused(&there, "records that the gateway has lost").await;
    Client::ask(here.address, &request).await.assert_opened();
    refused(&here, "token already spent").await;
    assert_eq!(echo.came().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_presentations_at_once_exactly_one_opens_a_tunnel() {
    const TOKENS: usize = 50;
    const RACERS: usize = 64;
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let tokens: Vec<Arc<str>> =
        (0..TOKENS).map(|_| connect_with(echo.address, &[&ISSUER.authorization()]).into()).collect();
    let (mut tunnels, mut bytes) = (0, 0);
    for request in tokens {
        let barrier = Arc::new(Barrier::new(RACERS));
        let racers: Vec<_> = (0..RACERS)
            .map(|_| {
                let (request, barrier, gateway) =
                    (Arc::clone(&request), Arc::clone(&barrier), gateway.address);
                tokio::spawn(async move {
                    let mut client = Client::connect(gateway).await;
                    barrier.wait().await;
                    client.send(&*request).await;
                    let answer = client.answer().await;
                    if answer.status != 200 {
                        answer.assert_refused(407, "http_request_denied", "token already spent");
                        return 0;
                    }
                    client.send("four").await;
                    client.take(4).await.len()
                })
            })
            .collect();
        let mut opened = 0;
        for racer in racers {
            let echoed = racer.await.unwrap();
            opened += usize::from(echoed > 0);
            bytes += echoed;
        }
        assert_eq!(opened, 1);
        tunnels += opened;
    }
    assert_eq!((tunnels, bytes, echo.came().await), (TOKENS, TOKENS * 4, TOKENS));
}
