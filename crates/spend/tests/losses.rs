//! Losses and faults that the watch reports, and their ends: what is over is reported no longer.

use crate::support::fake::Fake;
use crate::support::marked::{Gateway, delete_sentinels, is_in_first_bucket};
use crate::support::{Relay, epoch, eventually, options, pipelined, transports};
use postern_spend::memcached::{Options, Replicas, Unfit};
use postern_spend::{Spend, SpendStore, Unknown};
use postern_testkit::memcached::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::time::Duration;

/// The name of the store leads to another memcached for a while, which is empty and unfit for a mark. Connections that are open
/// stay, as those of a name that moves do.
#[tokio::test]
async fn a_store_that_is_back_with_all_of_its_records_has_lost_nothing() {
    for (name, transport) in transports() {
        let (server, other) = (Server::tcp(&[]), Server::evicting(&[]));
        let port = Arc::new(AtomicU16::new(server.port()));
        let relay = Relay::to_either(Arc::clone(&port));
        let gateway = Gateway::start(options(vec![relay.address()], transport), epoch()).await;
        let mark = gateway.mark().await;
        let (spent, held) = (gateway.tokens(50, mark), gateway.tokens(20, mark));
        for token in &spent {
            assert_eq!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        port.store(other.port(), SeqCst);
        for token in &spent {
            assert_ne!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        relay.cut();
        eventually("the loss is reported, and why no mark follows", async || {
            let health = gateway.store.health();
            let is_unfit = health.endpoints[0].unfit == Some(Unfit::Evicts);
            (health.torn == 1024 && health.lacking_at == [0] && is_unfit).then_some(())
        })
        .await;
        assert_eq!(gateway.store.binding(gateway.epoch.key), None, "{name}");
        for token in &spent {
            assert_ne!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        port.store(server.port(), SeqCst);
        relay.cut();
        eventually("nothing of the loss is reported", async || {
            let health = gateway.store.health();
            let is_fit = health.endpoints[0].unfit.is_none();
            ((health.torn, health.lacking, health.closed) == (0, 0, 0) && is_fit).then_some(())
        })
        .await;
        assert!(gateway.store.health().lacking_at.is_empty(), "{name}");
        for token in &held {
            eventually("it is connected again", async || gateway.client.serving().ok()).await;
            assert_eq!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        for token in spent.iter().chain(&held) {
            assert_eq!(gateway.spend(token).await, Ok(Spend::AlreadySpent), "{name}");
        }
    }
}

/// This gateway has seen the fault, and not its end.
#[tokio::test]
async fn a_fault_is_forgotten_where_another_gateway_has_planted_the_mark() {
    let (server, unfit) = (Server::tcp(&[]), Server::evicting(&[]));
    let port = Arc::new(AtomicU16::new(unfit.port()));
    let relay = Relay::to_either(Arc::clone(&port));
    let every = |seconds| Options {
        interval: Duration::from_secs(seconds),
        ..options(vec![relay.address()], pipelined())
    };
    let gateway = Gateway::start(every(5), epoch()).await;
    let reported = || gateway.store.health().endpoints[0].unfit;
    eventually("it is seen", async || (reported() == Some(Unfit::Evicts)).then_some(())).await;
    port.store(server.port(), SeqCst);
    relay.cut();
    let other = Gateway::start(every(1), gateway.epoch).await;
    assert_eq!(gateway.mark().await, other.mark().await);
    eventually("the fault is not reported any more", async || reported().is_none().then_some(())).await;
}

/// No witness is missing, and no token of the mark is admitted any more.
#[tokio::test]
async fn a_mark_that_is_closed_in_all_buckets_is_followed_by_the_next() {
    let server = Server::tcp(&[]);
    let gateway = Gateway::start(options(vec![server.address()], pipelined()), epoch()).await;
    let mark = gateway.mark().await;
    let held = gateway.token(mark);
    delete_sentinels(&server).await;
    let next = gateway.mark_after(mark).await;
    assert_eq!(gateway.spend(&held).await, Ok(Spend::Void));
    assert_eq!(gateway.spend(&gateway.token(next)).await, Ok(Spend::Admitted));
    assert_eq!(gateway.store.health().closed, 1);
}

/// `true` for the keys of a quarter of the buckets.
fn is_in_a_quarter(key: &str) -> bool {
    key.starts_with('|') && key.bytes().take(8).map(u32::from).sum::<u32>() % 4 == 0
}

/// The records that close a mark are written until they are everywhere.
#[tokio::test]
async fn a_mark_is_closed_on_servers_that_were_down_when_the_loss_was_found() {
    let fake = Fake::start();
    let gateway = Gateway::start(options(vec![fake.address()], pipelined()), epoch()).await;
    let mark = gateway.mark().await;
    fake.lose(is_in_a_quarter);
    fake.lose_sentinels(|key| !is_in_a_quarter(key) && !is_in_first_bucket(key));
    eventually("the loss is found", async || (gateway.store.health().closed == 1).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(500)).await; // some rounds of the watch
    fake.lose(|_| false);
    eventually("no token of the mark is good in any bucket", async || {
        let mut verdicts = Vec::new();
        for token in gateway.tokens(100, mark) {
            verdicts.push(gateway.spend(&token).await);
        }
        verdicts.iter().all(|verdict| *verdict == Ok(Spend::Void)).then_some(())
    })
    .await;
}

/// A router tells misses for a server that is down, and stores nothing there.
#[tokio::test]
async fn misses_of_a_server_that_is_down_are_no_loss() {
    let fake = Fake::start();
    let gateway = Gateway::start(options(vec![fake.address()], pipelined()), epoch()).await;
    let mark = gateway.mark().await;
    fake.lose(is_in_a_quarter);
    eventually("records cannot be read", async || (gateway.store.health().round.unclear > 0).then_some(()))
        .await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let health = gateway.store.health();
        assert_eq!((health.torn, health.lacking), (0, 0));
    }
    fake.lose(|_| false);
    eventually("all can be read", async || (gateway.store.health().round.unclear == 0).then_some(())).await;
    assert_eq!(gateway.mark().await, mark);
}

/// Its connections stay, and no caller is there to find out.
#[tokio::test]
async fn a_router_whose_servers_are_all_down_is_known_before_a_token_is_spent() {
    for (name, transport) in transports() {
        let fake = Fake::start();
        let gateway = Gateway::start(options(vec![fake.address()], transport), epoch()).await;
        gateway.mark().await;
        fake.fail(true);
        eventually("no token is read", async || {
            (gateway.client.serving() == Err(Unknown::Rejected)).then_some(())
        })
        .await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await; // a round of the watch
            assert_eq!(gateway.store.health().ready, Err(Unknown::Rejected), "{name}");
        }
        fake.fail(false);
        eventually("tokens are read", async || gateway.store.health().ready.ok()).await;
    }
}

/// The other two replicas know the mark and have lost nothing.
#[tokio::test]
async fn a_mark_that_is_closed_at_one_replica_is_good_at_the_other_two() {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::tcp(&[]));
    let lists = servers.each_ref().map(|server| vec![server.address()]);
    let three = Options { replicas: Replicas::Three(lists), ..options(Vec::new(), pipelined()) };
    let gateway = Gateway::start(three, epoch()).await;
    let mark = gateway.mark().await;
    delete_sentinels(&servers[1]).await;
    gateway.mark_after(mark).await; // as a precaution
    assert_eq!(gateway.store.health().closed, 1);
    for token in gateway.tokens(50, mark) {
        assert_eq!(gateway.spend(&token).await, Ok(Spend::Admitted));
    }
}
