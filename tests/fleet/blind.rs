//! Faults that no watch sees in time: a clock that is ahead, a server that hangs and so hides another one, two stores behind
//! one address. Each once let spent tokens in again while readiness was green.

use super::driver::{Fleet, Route};
use super::history::Answer;
use super::marks::{challenge, config_with};
use super::minted::Turn;
use crate::support::daemon::{Daemon, gateway_config, issuer_config, with_memcacheds};
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::router::Router;
use crate::support::tokens::present;
use crate::support::{admin, eventually, proxy, target, tokens};
use std::time::Duration;
use tempfile::TempDir;

/// Waits until a gateway is not ready, for a reason that contains `why`.
async fn not_ready(gateway: &Daemon, why: &str) {
    eventually(&format!("the gateway is not ready: {why}"), || async {
        let (status, page) = admin::get(gateway.admin, "/readyz").await?;
        (status == 503 && page.contains(why)).then_some(())
    })
    .await;
}

fn route(address: String, more: &'static str) -> Route {
    Route::to(&[address], "pipelined", more)
}

/// memcached answers STORED to an `add` whose expiry has passed by its own clock, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_ahead_admits_nothing() {
    let home = TempDir::new().unwrap();
    let keys = "rotate_every = \"10m\"\npublish_ahead = \"1m\"\nredeem_for = \"5m\"\n";
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), keys)).await;
    let minting = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let server = Memcached::with_clock("+2h");
    with_memcacheds(&minting, &[server.address()]);
    let text = std::fs::read_to_string(&minting).unwrap();
    let text = text.replace("workers = 8\n", "workers = 2\npatience = \"0s\"\n");
    std::fs::write(&minting, text).unwrap();
    let gateway = Daemon::start("gateway", &minting);
    not_ready(&gateway, "no mark yet").await;
    not_ready(&gateway, &format!("the clock of {} is ", server.address())).await;
    let target = target::echo().await.to_string();
    let mut stream = proxy::dial(gateway.address).await.unwrap();
    let head = proxy::connect(&mut stream, &target, None).await.unwrap();
    assert_eq!(head.status, 503, "a witness that is written has already expired, so no token is requested");
}

/// The witnesses of a key that lasts for weeks stand there: a clock that is ahead by more than the margin shortens the key's
/// last hour, and nothing before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_clock_is_an_hour_ahead_admits_each_token_once() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let server = Memcached::with_clock("+1h");
    let store = format!("memcached.addresses = [\"{}\"]\nmemcached.spent_cache = \"0B\"\n", server.address());
    let gateway = Daemon::ready("gateway", &config_with(home.path(), "gateway", &issuer, &store, "")).await;
    let target = target::echo().await.to_string();
    for token in tokens::mint(&issuer.http(), &gateway.http(), 20) {
        assert_eq!(present(gateway.address, &target, &token).await.status, 200);
        assert_eq!(present(gateway.address, &target, &token).await.status, 407);
    }
    gateway.readyz(200, &["degraded: ", &format!("the clock of {} is ", server.address()), "by NTP"]).await;
}

/// Of three replicas the other two decide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_clock_is_ahead_counts_as_lost() {
    let home = TempDir::new().unwrap();
    let keys = "rotate_every = \"10m\"\npublish_ahead = \"1m\"\nredeem_for = \"5m\"\n";
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), keys)).await;
    let servers = [Memcached::start(), Memcached::with_clock("+2h"), Memcached::start()];
    let [a, b, c] = servers.each_ref().map(Memcached::address);
    let store =
        format!("memcached.replicas = [[\"{a}\"], [\"{b}\"], [\"{c}\"]]\nmemcached.spent_cache = \"0B\"\n");
    let gateway = Daemon::ready("gateway", &config_with(home.path(), "gateway", &issuer, &store, "")).await;
    let target = target::echo().await.to_string();
    for token in tokens::mint(&issuer.http(), &gateway.http(), 20) {
        assert_eq!(present(gateway.address, &target, &token).await.status, 200);
        assert_eq!(present(gateway.address, &target, &token).await.status, 407);
    }
    eventually("no bucket of that replica knows the mark", || async {
        let metrics = admin::Metrics::of(gateway.admin).await;
        (metrics.value("postern_store_buckets_lacking") == 1024).then_some(())
    })
    .await;
}

/// Behind a router one server hangs, and each exchange of the watch waits for it. The next mark is not asserted before it moves
/// again: a server that does not answer is waited for, before a mark is offered without its buckets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_hides_no_other_that_came_back_empty() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let mut servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let router = Router::twemproxy(home.path(), &servers); // it waits 400 ms for a server
    // Each answer is the store's, and waits once for the server that hangs.
    let more = "hint = \"off\"\nspent_cache = \"0B\"";
    let endpoint = route(format!("127.0.0.1:{}", router.port()), more);
    let fleet = Fleet::ready(&turn, home, &[endpoint], 200).await;
    let gateway = &fleet.gateways[0];
    for token in 0..90 {
        assert_eq!(fleet.exchange(gateway.address, token, None).await, Answer::Opened);
    }
    let before = challenge(gateway).await;
    servers[0].freeze();
    servers[1].kill();
    servers[1].launch();
    eventually("the gateway reports the loss", || async {
        let (_, page) = admin::get(gateway.admin, "/readyz").await?;
        page.contains("the store has lost records").then_some(())
    })
    .await;
    let mut void = 0;
    for token in 0..90 {
        match fleet.exchange(gateway.address, token, None).await {
            Answer::Opened | Answer::OpenedAndLost => panic!("token {token} was admitted again"),
            Answer::Void => void += 1,
            // It waited for the server that hangs. Where the connection was lost, the next one would test nothing.
            Answer::Unavailable => tokio::time::sleep(Duration::from_secs(1)).await,
            _ => {}
        }
        if void == 10 {
            break;
        }
    }
    assert_eq!(void, 10, "tokens whose record was lost");
    servers[0].thaw();
    fleet.is_back(&turn, &before).await;
}

/// A balancer sends each connection to one of two routers, of which one has a server more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_behind_one_address_admit_each_token_once() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let servers: Vec<_> = (0..4).map(|_| Memcached::start()).collect();
    let three = Router::twemproxy(home.path(), &servers[..3]);
    let four = Router::twemproxy(home.path(), &servers);
    let balancer = Relay::to(&[three.port(), four.port()]);
    // Pooled, so that there are connections through both.
    let endpoint = Route::to(&[balancer.address()], "pooled", "spent_cache = \"0B\"");
    let fleet = Fleet::ready(&turn, home, &[endpoint], 200).await;
    let gateway = &fleet.gateways[0];
    let mut opened = [0; 200];
    for token in (0..200).chain(0..200) {
        let answer = fleet.exchange(gateway.address, token, None).await;
        opened[token] += usize::from(matches!(answer, Answer::Opened | Answer::OpenedAndLost));
    }
    let times = |wanted| opened.iter().filter(|times| **times == wanted).count();
    println!("{} of 200 were admitted", times(1));
    assert_eq!(times(0) + times(1), 200, "spent tokens were admitted again");
    assert!(times(1) > 0, "one of the two is used");
}
