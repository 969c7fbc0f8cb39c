//! Stores that come back empty, and gateways of two stores. No gateway remembers what it has spent, so that each answer is the
//! store's.

use super::checker::Claim;
use super::driver::{Fleet, PRESENTERS, Route, config, four};
use super::history::{self, Answer, Line, Presentation};
use super::marks::challenge;
use super::minted::Turn;
use super::{FOREVER, answered_after, opened_after};
use crate::support::daemon::Daemon;
use crate::support::memcached::Memcached;
use crate::support::router::Router;
use crate::support::tokens::present;
use crate::support::{proxy, target};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
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
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes, 400).await;
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
    let fleet = Fleet::ready(&turn, home, &four(&[endpoint], FORGETFUL), 400).await;
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
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes, 400).await;
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
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes, 400).await;
    fleet.race(0..100).await;
    assert_eq!(fleet.verdict(0..100, Claim::OneWins).opened, 100);
    server.kill();
    server.launch();
    let route = Route::to(&[server.address()], "pipelined", "");
    let late = Daemon::ready("gateway", &config(&turn, fleet.home.path(), 4, &route)).await;
    for token in 0..100 {
        assert_eq!(fleet.exchange(late.address, token, None).await, Answer::Void, "token {token}");
    }
    let fresh = turn.mint(&late, 1).remove(0);
    let target = target::echo().await.to_string();
    assert_eq!(present(late.address, &target, &fresh).await.status, 200, "a token of its own mark");
}

/// Each store has its own mark, and tokens of one are void at the other's gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_is_configured_for_two_stores_admits_each_token_once() {
    let turn = Turn::take().await;
    let servers = [Memcached::start(), Memcached::start()];
    let routes = servers.each_ref().map(|server| Route::to(&[server.address()], "pipelined", FORGETFUL));
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes, 400).await;
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

/// The server of the one is a replica of the other, and freezes. Neither gateway takes the mark of the other for its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_of_one_replica_and_of_three_admit_each_token_once() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let addresses: Vec<_> = servers.iter().map(Memcached::address).collect();
    let one = Route::to(&addresses[..1], "pipelined", FORGETFUL);
    let three = Route::voting(&addresses, FORGETFUL);
    let one = Daemon::ready("gateway", &config(&turn, home.path(), 0, &one)).await;
    let three = Daemon::ready("gateway", &config(&turn, home.path(), 1, &three)).await;
    let target = target::echo().await.to_string();
    let tokens = [turn.mint(&one, 60), turn.mint(&three, 60)];
    let mut opened = [[0; 60]; 2];
    for phase in ["at rest", "frozen", "thawed"] {
        match phase {
            "frozen" => servers[0].freeze(),
            "thawed" => servers[0].thaw(),
            _ => {}
        }
        // The second half of the tokens is new to a frozen server.
        let presented = if phase == "at rest" { 0..30 } else { 0..60 };
        for (own, tokens) in tokens.iter().enumerate() {
            if phase == "thawed" && own == 1 {
                // Its own tokens came while it found its store again. From here on, its refusals are verdicts.
                one.readyz(200, &[]).await;
            }
            for index in presented.clone() {
                for (at, gateway) in [&one, &three].into_iter().enumerate() {
                    let status = present(gateway.address, &target, &tokens[index]).await.status;
                    opened[own][index] += usize::from(status == 200);
                    // It asks for a token of its own mark, or has no verdict.
                    let refuses = if at == 0 && phase == "frozen" { 503 } else { 407 };
                    assert!(at == own || status == refuses, "{phase}: {status} at gateway {at}");
                }
            }
        }
        if phase == "frozen" {
            one.readyz(503, &["every request is refused with 503", "Check that the store's servers run"])
                .await;
            three.readyz(200, &["degraded: ", "the other two decide", &addresses[0]]).await;
        }
        let most = opened.iter().flatten().max();
        assert!(most <= Some(&1), "{phase}: a token opened {most:?} tunnels");
    }
    assert_eq!(opened[1], [1; 60], "two of the three replicas decide");
    assert_eq!(opened[0][..30], [1; 30]);
}

/// Two routers of one replica that disagree about its servers, while a server of only one of them is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routers_that_disagree_admit_each_token_once() {
    let turn = Turn::take().await;
    let home = TempDir::new().unwrap();
    let mut servers: Vec<_> = (0..4).map(|_| Memcached::start()).collect();
    let last = servers.pop().unwrap();
    let first_router = Router::twemproxy(home.path(), &servers);
    let mut other = vec![last];
    other.extend(servers.drain(1..));
    let second_router = Router::twemproxy(home.path(), &other);
    other[0].kill();
    let address = |router: &Router| format!("127.0.0.1:{}", router.port());
    let (there, back) = (
        [address(&first_router), address(&second_router)],
        [address(&second_router), address(&first_router)],
    );
    let gateways = [there, back].map(|addresses| Route::to(&addresses, "pipelined", FORGETFUL));
    let gateways: Vec<_> = (0..2)
        .map(|index| Daemon::start("gateway", &config(&turn, home.path(), index, &gateways[index])))
        .collect();
    let target = target::echo().await.to_string();
    // Such a gateway listens and offers a mark as soon as it serves, and not before the servers are all there.
    let mut opened = HashMap::<String, usize>::new();
    for round in 0..30 {
        if round == 15 {
            other[0].launch();
        }
        let gateway = &gateways[round % 2];
        if proxy::dial(gateway.address).await.is_ok() && !challenge(gateway).await.is_empty() {
            opened.extend(turn.mint(gateway, 10).into_iter().map(|token| (token, 0)));
        }
        for (token, times) in &mut opened {
            for gateway in &gateways {
                if proxy::dial(gateway.address).await.is_err() {
                    continue;
                }
                *times += usize::from(present(gateway.address, &target, token).await.status == 200);
            }
        }
        assert!(opened.values().all(|times| *times <= 1), "a token opened two tunnels");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{} of {} tokens opened a tunnel", opened.values().sum::<usize>(), opened.len());
}

fn flush(server: &Memcached) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"flush_all\r\nquit\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "OK\r\n");
}
