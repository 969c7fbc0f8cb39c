//! Stores that come back empty, and gateways that refuse then.

use super::checker::Claim;
use super::driver::{Fleet, PRESENTERS, Route, config, four};
use super::history::Answer;
use super::minted::{TOKENS, Turn};
use super::{FOREVER, opened_after};
use crate::support::daemon::Daemon;
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::router::Router;
use crate::support::{admin, eventually};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What the gateway promises is about a second; a busy machine may take longer.
const SOON: Duration = Duration::from_secs(5);

/// One memcached that comes back empty in the middle of a race. No gateway uses a new connection before it has noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_comes_back_empty_admits_nothing_more() {
    let turn = Turn::take().await;
    let mut server = Memcached::start();
    let routes = four(&[server.address()], "on_loss = \"refuse\"");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    let racing = tokio::spawn({
        let fleet = Arc::clone(&fleet);
        async move { fleet.race(0..400).await }
    });
    fleet.history.written(200 * PRESENTERS).await;
    let from = fleet.history.now();
    server.kill();
    let back = fleet.history.now();
    server.launch();
    racing.await.unwrap();
    fleet.history.write_outage(from, FOREVER, "the store came back empty");
    fleet.sweep(0..400).await;
    let summary = fleet.verdict(0..400, Claim::OneWins);
    assert!(summary.opened >= 150, "{summary:?}");
    assert_eq!(opened_after(&fleet, back), 0, "a token was admitted by a store that has forgotten");
}

/// One of three behind twemproxy: no connection of a gateway breaks, so only the canaries show it. Until they are read,
/// within `canary_interval`, a token may be spent again, which is why nothing is claimed of that time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_behind_twemproxy_is_noticed() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let mut servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let router = Router::twemproxy(home.path(), &servers);
    let endpoint = format!("127.0.0.1:{}", router.port());
    let fleet = Fleet::ready(&turn, home, &four(&[endpoint], "on_loss = \"refuse\"")).await;
    fleet.race(0..400).await;
    assert_eq!(fleet.verdict(0..400, Claim::OneWins).opened, 400);

    servers[0].kill();
    servers[0].launch();
    let back = Instant::now();
    all_notice(&fleet.gateways).await;
    println!("all gateways report it {:.2?} after the server's return", back.elapsed());
    assert!(back.elapsed() < SOON, "the canaries are read every second");
    let noticed = fleet.history.now();
    fleet.sweep(0..400).await;
    fleet.race(TOKENS..TOKENS + 50).await;
    assert_eq!(
        opened_after(&fleet, noticed),
        0,
        "a token of the key was admitted after its records were lost"
    );
}

/// A gateway that is started after the loss takes the store for new and begins it anew. The others know better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_started_after_a_loss_does_not_hide_it() {
    let turn = Turn::take().await;
    let mut server = Memcached::start();
    let relay = Relay::to(&[server.port()]);
    let routes = four(&[relay.address()], "on_loss = \"refuse\"");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    fleet.race(0..100).await;
    assert_eq!(fleet.verdict(0..100, Claim::OneWins).opened, 100);

    // The store's clock counts seconds: it begins anew in a later one.
    let began = Instant::now();
    relay.close();
    server.kill();
    server.launch();
    let route = Route { addresses: vec![server.address()], transport: "pipelined", more: "" };
    let late = Daemon::ready("gateway", &config(&turn, fleet.home.path(), 4, &route)).await;
    tokio::time::sleep(Duration::from_millis(1100).saturating_sub(began.elapsed())).await;
    assert_eq!(fleet.exchange(late.address, TOKENS, None).await, Answer::Opened);
    relay.open();
    all_notice(&fleet.gateways).await;
    let noticed = fleet.history.now();
    fleet.sweep(0..100).await;
    assert_eq!(opened_after(&fleet, noticed), 0, "a token was admitted by a store that has forgotten");
}

async fn all_notice(gateways: &[Daemon]) {
    for gateway in gateways {
        eventually("a gateway notices that records were lost", || async {
            let (_, page) = admin::get(gateway.admin, "/readyz").await?;
            page.contains("store: records of 1 token key were lost, of every one in use").then_some(())
        })
        .await;
    }
}
