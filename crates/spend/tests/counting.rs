//! Counters that processes share, in a real memcached.

use crate::support::{PATIENCE, Server, options};
use postern_spend::Unknown;
use postern_spend::memcached::{Address, FleetCounters, Increment, Memcached, Transport};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn store(addresses: Vec<Address>) -> Memcached {
    Memcached::open(options(addresses, Transport::Pipelined { queue: 16 })).unwrap()
}

fn increments(range: std::ops::Range<u32>) -> Vec<Increment> {
    range.map(|number| Increment { key: format!("count-{number}"), by: number + 1 }).collect()
}

async fn add(counters: &mut FleetCounters, range: std::ops::Range<u32>) -> Vec<Option<u64>> {
    counters.add(&increments(range), MINUTE, PATIENCE).await.unwrap()
}

fn times(number: u64, range: std::ops::Range<u64>) -> Vec<Option<u64>> {
    range.map(|counter| Some(number * (counter + 1))).collect()
}

#[tokio::test]
async fn what_two_processes_add_is_added() {
    let server = Server::tcp(&[]);
    let stores = [(); 2].map(|()| store(vec![server.address()]));
    let [mut one, mut other] = stores.each_ref().map(Memcached::counters);
    assert_eq!(add(&mut one, 0..100).await, times(1, 0..100), "none was there");
    assert_eq!(add(&mut other, 0..256).await, [times(2, 0..100), times(1, 100..256)].concat(), "some were");
    assert_eq!(add(&mut one, 0..256).await, [times(3, 0..100), times(2, 100..256)].concat());
    assert_eq!(add(&mut one, 0..0).await, []);
}

#[tokio::test]
async fn many_at_once_lose_nothing() {
    let server = Server::tcp(&[]);
    let store = store(vec![server.address()]);
    let adding: Vec<_> = (0..16)
        .map(|_| {
            let mut counters = store.counters();
            tokio::spawn(async move { add(&mut counters, 0..64).await })
        })
        .collect();
    for each in adding {
        each.await.unwrap();
    }
    assert_eq!(add(&mut store.counters(), 0..64).await, times(17, 0..64));
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_deadline_and_replies_that_come_late_are_not_read() {
    let server = Server::tcp(&[]);
    let store = store(vec![server.address()]);
    let mut counters = store.counters();
    add(&mut counters, 0..1).await;
    server.signal("STOP");
    let hanging = counters.add(&increments(5..6), MINUTE, Duration::from_millis(50)).await;
    assert_eq!(hanging, Err(Unknown::TimedOut));
    server.signal("CONT");
    assert_eq!(add(&mut counters, 0..1).await, times(2, 0..1));
}

#[tokio::test]
async fn a_server_that_is_away_is_an_error_and_another_address_is_used_next() {
    let (mut gone, server) = (Server::tcp(&[]), Server::tcp(&[]));
    let store = store(vec![gone.address(), server.address()]);
    let mut counters = store.counters();
    add(&mut counters, 0..1).await;
    gone.kill();
    assert!(counters.add(&increments(0..1), MINUTE, PATIENCE).await.is_err());
    assert_eq!(add(&mut counters, 0..1).await, times(1, 0..1));
}
