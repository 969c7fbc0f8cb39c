//! Faults that the watch does not see by itself: a clock that is ahead, a server that hangs and so hides another one, two
//! stores behind one address. Each once let spent tokens in again while readiness was green.

use super::driver::{Fleet, Route, config};
use super::history::Answer;
use super::minted::Turn;
use crate::support::daemon::{Daemon, gateway_config, issuer_config, with_memcacheds};
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::router::Router;
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
    Route { addresses: vec![address], transport: "pipelined", more }
}

/// memcached answers STORED to an `add` whose expiry has passed by its own clock, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_ahead_admits_nothing() {
    let home = TempDir::new().unwrap();
    let keys = "rotate_every = \"10m\"\npublish_ahead = \"1m\"\nredeem_for = \"5m\"\n";
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), keys)).await;
    let minting = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let values = {
        let gateway = Daemon::ready("gateway", &minting).await;
        tokens::mint(&issuer.http(), &gateway.http(), 20)
    };

    let server = Memcached::with_clock("+2h");
    with_memcacheds(&minting, &[server.address()]);
    let text = std::fs::read_to_string(&minting).unwrap();
    let text = text.replace("workers = 8\n", "workers = 2\npatience = \"0s\"\n");
    std::fs::write(&minting, text).unwrap();
    let gateway = Daemon::start("gateway", &minting);
    not_ready(&gateway, "clock").await;
    let target = target::echo().await.to_string();
    for value in values.iter().chain(&values) {
        let mut stream = proxy::dial(gateway.address).await.unwrap();
        let head = proxy::connect(&mut stream, &target, Some(value)).await.unwrap();
        assert_eq!(head.status, 503, "a record that is written has already expired");
    }
    let (_, page) = admin::get(gateway.admin, "/readyz").await.unwrap();
    assert!(page.contains("between 1 h and 3 h ahead"), "it names the difference: {page}");
}

/// Behind a router one server hangs for longer than the watch waits, so no round of it comes to an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_hides_no_other_that_came_back_empty() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let mut servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let router = Router::twemproxy(home.path(), &servers); // it waits 400 ms for a server
    let more = "on_loss = \"refuse\"";
    let endpoint = route(format!("127.0.0.1:{}", router.port()), more);
    let text = std::fs::read_to_string(config(&turn, home.path(), 0, &endpoint)).unwrap();
    let text = text.replace(
        "timeout = \"500ms\"\nconnect_timeout = \"1s\"",
        "timeout = \"1s\"\nconnect_timeout = \"250ms\"",
    );
    let path = home.path().join("patient.toml");
    std::fs::write(&path, text).unwrap();
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &[]).await;
    let gateway = Daemon::ready("gateway", &path).await;
    let mut opened = Vec::new();
    for token in 0..300 {
        assert_eq!(fleet.exchange(gateway.address, token, None).await, Answer::Opened);
        opened.push(token);
    }
    servers[0].freeze();
    servers[1].kill();
    servers[1].launch();
    not_ready(&gateway, "were lost").await;
    let mut again = 0;
    for token in opened {
        let answer = fleet.exchange(gateway.address, token, None).await;
        again += usize::from(matches!(answer, Answer::Opened | Answer::OpenedAndLost));
    }
    assert_eq!(again, 0, "spent tokens were admitted again");
}

/// A server that is away when a key begins has lost nothing: it is given its canaries when it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_when_a_key_begins_is_not_taken_for_a_loss() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let mut servers = vec![Memcached::start(), Memcached::start(), Memcached::absent()];
    let router = Router::twemproxy(home.path(), &servers);
    let endpoint = route(format!("127.0.0.1:{}", router.port()), "on_loss = \"refuse\"");
    let fleet = Fleet::ready(&turn, home, &[]).await;
    let first = Daemon::ready("gateway", &config(&turn, fleet.home.path(), 0, &endpoint)).await;
    for token in 0..20 {
        fleet.exchange(first.address, token, None).await;
    }
    tokio::time::sleep(Duration::from_secs(12)).await; // several groups of sentinels come due
    servers[2].launch();
    let second = Daemon::ready("gateway", &config(&turn, fleet.home.path(), 1, &endpoint)).await;
    eventually("the third server's share of tokens is admitted", || async {
        let page = admin::page(first.admin, "/readyz").await;
        assert!(!page.contains("were lost"), "{page}");
        (!page.contains("got no verdict") && !page.contains("cannot be read")).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await; // more rounds, with everything there
    for gateway in [&first, &second] {
        let page = admin::page(gateway.admin, "/readyz").await;
        assert!(!page.contains("were lost"), "{page}");
        let metrics = admin::page(gateway.admin, "/metrics").await;
        assert!(metrics.contains("postern_store_canaries_lost_total 0"), "no canary was lost");
    }
    for token in 20..60 {
        let gateway = if token % 2 == 0 { &first } else { &second };
        assert_eq!(fleet.exchange(gateway.address, token, None).await, Answer::Opened);
    }
    // From now on an absence is a loss, for both.
    servers[2].kill();
    servers[2].launch();
    for gateway in [&first, &second] {
        not_ready(gateway, "were lost").await;
    }
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
    let fleet = Fleet::ready(&turn, home, &[]).await;
    // Pooled, so that there are connections through both.
    let more = "on_loss = \"refuse\"\nspent_cache = \"0B\"";
    let endpoint = Route { transport: "pooled", ..route(balancer.address(), more) };
    let gateway = Daemon::ready("gateway", &config(&turn, fleet.home.path(), 0, &endpoint)).await;
    let mut opened = [0; 2];
    for count in &mut opened {
        for token in 0..200 {
            let answer = fleet.exchange(gateway.address, token, None).await;
            *count += usize::from(matches!(answer, Answer::Opened | Answer::OpenedAndLost));
        }
    }
    println!("{opened:?} of 200 were admitted at first, and again");
    assert_eq!(opened[1], 0, "spent tokens were admitted again");
    assert!(opened[0] > 0, "one of the two is used");
    eventually("readiness says that the address leads to several stores", || async {
        let (_, page) = admin::get(gateway.admin, "/readyz").await?;
        page.contains("lead to other records than the rest").then_some(())
    })
    .await;
}
