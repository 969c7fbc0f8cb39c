//! Endpoints of stores that share some of their servers: routers with two versions of a configuration. Most keys lie in
//! one place for both, and good tokens of the others would be void, through the endpoint that finds no witness for them.

use crate::support::fake::Fake;
use crate::support::{
    Relay, Server, begun, client, epoch, eventually, fresh, options, pipelined, transports,
};
use postern_spend::memcached::Memcached;
use postern_spend::{Spend, SpendStore, Unknown};
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::time::Duration;

/// Three quarters of all keys.
fn shared(key: &str) -> bool {
    key.bytes().map(u32::from).sum::<u32>() % 4 != 0
}

#[tokio::test]
async fn endpoints_that_share_a_part_are_refused() {
    for (name, transport) in transports() {
        let first = Fake::start();
        let second = first.sharing(shared);
        for addresses in [[first.address(), second.address()], [second.address(), first.address()]] {
            let store = Memcached::open(options(addresses.to_vec(), transport.clone())).unwrap();
            let client = store.client();
            let refused = || async { (client.serving() == Err(Unknown::Astray)).then_some(()) };
            eventually("the endpoints are found out", refused).await;
            let epoch = epoch();
            let verdict = client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await;
            assert_eq!(verdict, Err(Unknown::Astray), "{name}");
            // And they stay so.
            for _ in 0..5 {
                tokio::time::sleep(std::time::Duration::from_millis(150)).await; // longer than a round of the watch
                assert_eq!(client.serving(), Err(Unknown::Astray), "{name}");
            }
        }
    }
}

/// Several addresses are meant for two endpoints of one store.
#[tokio::test]
async fn endpoints_to_one_memory_are_not_refused() {
    for (name, transport) in transports() {
        let first = Fake::start();
        let second = first.sharing(|_| true);
        let store = Memcached::open(options(vec![first.address(), second.address()], transport)).unwrap();
        let (client, epoch) = begun(&store).await;
        for _ in 0..20 {
            let key = fresh(&epoch);
            assert_eq!(client.spend(&key, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted), "{name}");
            assert_eq!(
                client.spend(&key, &epoch, UnixSeconds::now()).await,
                Ok(Spend::AlreadySpent),
                "{name}"
            );
        }
    }
}

/// A router may tell a miss for a server that is down. It cannot write there, so the two do not contradict each other.
#[tokio::test]
async fn a_miss_where_nothing_can_be_written_is_no_contradiction() {
    for (name, transport) in transports() {
        let first = Fake::start();
        let second = first.sharing(|_| true);
        second.lose(|key| !shared(key));
        let store = Memcached::open(options(vec![first.address(), second.address()], transport)).unwrap();
        let client = client(&store).await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await; // a round of the watch
            assert_eq!(client.serving(), Ok(()), "{name}");
        }
    }
}

/// Addresses that were found to contradict each other are compared in each round, or the refusals would last for minutes.
#[tokio::test]
async fn endpoints_that_agree_again_are_served() {
    for (name, transport) in transports() {
        let (one, other) = (Fake::start(), Fake::start());
        let port = Arc::new(AtomicU16::new(other.port()));
        let relay = Relay::to_either(Arc::clone(&port));
        let store = Memcached::open(options(vec![one.address(), relay.address()], transport)).unwrap();
        let client = store.client();
        eventually("they are found out", || async {
            (client.serving() == Err(Unknown::Astray)).then_some(())
        })
        .await;
        port.store(one.port(), SeqCst);
        relay.cut();
        eventually(name, || async { client.serving().ok() }).await;
    }
}

/// What addresses are compared by is written when others answer, and every few minutes; all witnesses are read when a token was
/// void. Neither happens in each round, nor after a token that was admitted.
#[tokio::test]
async fn a_store_that_is_well_is_neither_written_to_nor_surveyed() {
    let mut server = Server::tcp(&[]);
    let relay = Relay::to(server.port());
    let store = Memcached::open(options(vec![server.address(), relay.address()], pipelined())).unwrap();
    let (client, epoch) = begun(&store).await;
    eventually("both are used", || async {
        store.health().endpoints.iter().all(|endpoint| endpoint.connections > 0).then_some(())
    })
    .await;
    settles(&store, &server).await;
    let [written, read] = ["cmd_set", "cmd_get"].map(|name| server.stat(name));
    let verdict = client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await;
    assert_eq!(verdict, Ok(Spend::Admitted));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.stat("cmd_set"), written + 1);
    let read = server.stat("cmd_get") - read;
    assert!(read < 1024, "{read}");
    // Nor after a loss, once all was read.
    let mark = store.binding(epoch.key);
    server.restart();
    eventually("the next mark", || async { store.binding(epoch.key).filter(|next| Some(*next) != mark) })
        .await;
    settles(&store, &server).await;
    let read = server.stat("cmd_get");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let read = server.stat("cmd_get") - read;
    assert!(read < 1024, "{read} after a loss");
}

/// Waits, after a mark was planted, until the last ten rounds of the watch were plain ones, through both addresses: what these are
/// compared by is written in the first round in which both answer.
async fn settles(store: &Memcached, server: &Server) {
    // Records that a plain round reads through each of two addresses, and buckets of which it reads the witness.
    const PLAIN: usize = 2 * 8 + 4;
    // The round that planted the mark reads no more, and is counted when the next one reads. Clients that connect read a few, too.
    let planted = server.stat("cmd_get");
    eventually("the next rounds", || async { (server.stat("cmd_get") > planted + 64).then_some(()) }).await;
    eventually("ten plain rounds", || async { (store.health().round.requested == 10 * PLAIN).then_some(()) })
        .await;
}
