//! Stores that come back empty, and gateways of two stores. No gateway remembers what it has spent, so that each answer is the
//! store's.

use super::checker::Claim;
use super::driver::{Fleet, PRESENTERS, Route, config, four};
use super::history::{self, Answer, Line, Presentation};
use super::marks::{challenge, present};
use super::minted::Turn;
use super::{FOREVER, answered_after, opened_after};
use crate::support::daemon::Daemon;
use crate::support::memcached::Memcached;
use crate::support::router::Router;
use crate::support::target;
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use tempfile::TempDir;

const FORGETFUL: &str = "spent_cache = \"0B\"";

/// Presents these tokens once more, after a loss that all gateways have noticed. None opens a tunnel, and some are refused
/// because their record was lost.
async fn sweep_after_loss(fleet: &Arc<Fleet>, tokens: usize) {
    let noticed = fleet.history.now();
    fleet.sweep(0..tokens).await;
    assert_eq!(opened_after(fleet, noticed), 0, "a token was admitted by a store that has forgotten");
    let void = answered_after(fleet, noticed, Answer::Void);
    println!("{void} of {tokens} tokens are void");
    assert!(void > 0, "no token met the loss");
}

/// One memcached that comes back empty in the middle of a race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_comes_back_empty_admits_nothing_more() {
    let turn = Turn::take().await;
    let mut server = Memcached::start();
    let routes = four(&[server.address()], FORGETFUL);
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    let before = challenge(&fleet.gateways[0]).await;
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
    fleet.is_back(&turn, &before).await;
    sweep_after_loss(&fleet, 400).await;
    let summary = fleet.verdict(0..400, Claim::OneWins);
    assert!(summary.opened >= 150, "{summary:?}");
    assert_eq!(opened_after(&fleet, back), 0, "a token was admitted by a store that has forgotten");
}

/// One of three behind twemproxy: no connection of a gateway breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_behind_twemproxy_admits_nothing_again() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let mut servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let router = Router::twemproxy(home.path(), &servers);
    let endpoint = format!("127.0.0.1:{}", router.port());
    let fleet = Fleet::ready(&turn, home, &four(&[endpoint], FORGETFUL)).await;
    fleet.race(0..400).await;
    assert_eq!(fleet.verdict(0..400, Claim::OneWins).opened, 400);
    let before = challenge(&fleet.gateways[0]).await;
    servers[0].kill();
    servers[0].launch();
    // Until then the router may answer for that server by an error, and would hide what it admits.
    fleet.is_back(&turn, &before).await;
    sweep_after_loss(&fleet, 400).await;
}

/// It forgets while all connections stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_flushed_admits_nothing_again() {
    let turn = Turn::take().await;
    let server = Memcached::start();
    let routes = four(&[server.address()], FORGETFUL);
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    fleet.race(0..150).await;
    assert_eq!(fleet.verdict(0..150, Claim::OneWins).opened, 150);
    let before = challenge(&fleet.gateways[0]).await;
    let from = fleet.history.now();
    flush(&server);
    let flushed = fleet.history.now();
    fleet.history.write_outage(from, FOREVER, "the tokens' mark is void");
    fleet.race(150..300).await;
    fleet.is_back(&turn, &before).await;
    sweep_after_loss(&fleet, 300).await;
    assert_eq!(fleet.verdict(0..300, Claim::OneWins).opened, 150);
    assert_eq!(opened_after(&fleet, flushed), 0, "a token of the void mark was admitted");
}

/// A gateway that is started after the loss finds no offer and plants a mark. The others' tokens are void there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_started_after_a_loss_admits_nothing_again() {
    let turn = Turn::take().await;
    let mut server = Memcached::start();
    let routes = four(&[server.address()], "");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    fleet.race(0..100).await;
    assert_eq!(fleet.verdict(0..100, Claim::OneWins).opened, 100);
    server.kill();
    server.launch();
    let route = Route { addresses: vec![server.address()], transport: "pipelined", more: "" };
    let late = Daemon::ready("gateway", &config(&turn, fleet.home.path(), 4, &route)).await;
    for token in 0..100 {
        assert_eq!(fleet.exchange(late.address, token, None).await, Answer::Void, "token {token}");
    }
    let fresh = turn.mint(&late, 1).remove(0);
    let target = target::echo().await.to_string();
    assert_eq!(present(&late, &target, &fresh).await, 200, "a token of its own mark");
}

/// Each store has a mark of its own, and tokens of one are void at the other's gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_is_configured_for_two_stores_admits_each_token_once() {
    let turn = Turn::take().await;
    let servers = [Memcached::start(), Memcached::start()];
    let route = |server: &Memcached| Route {
        addresses: vec![server.address()],
        transport: "pipelined",
        more: FORGETFUL,
    };
    let routes = servers.each_ref().map(route);
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    fleet.history.write_outage(0, FOREVER, "the other gateway asks for another mark");
    fleet.race(0..300).await;
    let summary = fleet.verdict(0..300, Claim::OneWins);
    let lines = history::read(&fleet.written()).unwrap();
    let at_its_own = |line: &Line| match line {
        Line::Presentation(Presentation { token, gateway: 0, .. }) => Some(*token),
        _ => None,
    };
    let owned: HashSet<usize> = lines.iter().filter_map(at_its_own).collect();
    assert_eq!(summary.opened, owned.len(), "what was presented at the gateway that asked for it, too");
    assert!(summary.opened > 200, "eight presenters each choose between two gateways: {summary:?}");
    assert!(answered_after(&fleet, 0, Answer::Void) > 0, "{summary:?}");
}

fn flush(server: &Memcached) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"flush_all\r\nquit\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "OK\r\n");
}
