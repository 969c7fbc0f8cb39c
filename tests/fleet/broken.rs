//! Stores that are broken on purpose: the checker must catch what the gateways cannot prevent.

use super::checker::Claim;
use super::driver::{Fleet, Route, four};
use super::lying_store;
use super::minted::Turn;
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use std::io::{Read, Write};
use std::net::TcpStream;
use tempfile::TempDir;

const TOKENS: usize = 300;

fn assert_caught(fleet: &Fleet) {
    let violation = fleet.judged(0..TOKENS, Claim::OneWins).expect_err("a broken store passed the checker");
    assert!(violation.0.contains("was answered 200 more than once"), "{violation}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lies_once_in_fifty_is_caught() {
    let turn = Turn::take().await;
    let endpoint = lying_store::start(50);
    let routes = four(&[endpoint], "hint = \"off\"\nspent_cache = \"0B\"");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    fleet.race(0..TOKENS).await;
    assert_caught(&fleet);
}

/// The same store passes when it does not lie, so the checker catches the lies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_store_without_lies_passes() {
    let turn = Turn::take().await;
    let endpoint = lying_store::start(usize::MAX);
    let routes = four(&[endpoint], "hint = \"off\"\nspent_cache = \"0B\"");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    fleet.race(0..TOKENS).await;
    assert_eq!(fleet.verdict(0..TOKENS, Claim::OneWins).opened, TOKENS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_flushed_is_caught() {
    let turn = Turn::take().await;
    let server = Memcached::start();
    let routes = four(&[server.address()], "on_loss = \"warn\"\nspent_cache = \"0B\"");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    for tokens in [0..TOKENS / 2, TOKENS / 2..TOKENS] {
        fleet.race(tokens).await;
        flush(&server);
    }
    fleet.sweep(0..TOKENS).await;
    assert_caught(&fleet);
}

/// Each gateway proves that its own connections lead to one store. That a whole fleet is configured for one, it
/// cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_is_configured_for_two_stores_is_caught() {
    let turn = Turn::take().await;
    let servers = [Memcached::start(), Memcached::start()];
    let route =
        |server: &Memcached| Route { addresses: vec![server.address()], transport: "pipelined", more: "" };
    let routes = servers.each_ref().map(route);
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes).await;
    fleet.race(0..TOKENS).await;
    assert_caught(&fleet);
}

/// An address whose connections lead to two stores in turn: the gateway uses those to one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_behind_one_address_do_not_admit_twice() {
    let turn = Turn::take().await;
    for transport in ["pipelined", "pooled"] {
        let servers = [Memcached::start(), Memcached::start()];
        let relay = Relay::to(&servers.each_ref().map(Memcached::port));
        // Many connections, so that it is unlikely that all lead to the same store.
        let route = Route { addresses: vec![relay.address()], transport, more: "connections = 4" };
        let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &[route]).await;
        fleet.race(0..TOKENS).await;
        fleet.sweep(0..TOKENS).await;
        let from = 0; // a pool may take its time to find connections that it can use
        fleet.history.write_outage(from, super::FOREVER, "half of the connections are refused");
        let summary = fleet.verdict(0..TOKENS, Claim::OneWins);
        assert!(summary.opened > TOKENS / 2, "{transport}: {summary:?}");
        let records = servers.each_ref().map(|server| stat(server, "cmd_set"));
        println!("{transport}: records written to the two stores: {records:?}");
    }
}

fn flush(server: &Memcached) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"flush_all\r\nquit\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "OK\r\n");
}

fn stat(server: &Memcached, name: &str) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let line = reply.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} "))).unwrap();
    line.parse().unwrap()
}
