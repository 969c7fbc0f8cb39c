//! The shared store under restarts and limits.

use crate::support::fake::Fake;
use crate::support::{Server, begun, client, eventually, fresh, options, pipelined, transports};
use postern_spend::memcached::{Memcached, Transport};
use postern_spend::{Spend, SpendStore};
use postern_token::UnixSeconds;
use std::time::{Duration, Instant};

/// A restart closes every connection. Each is detected before it costs a token, even with few callers.
#[tokio::test]
async fn after_a_restart_no_dead_connection_is_used() {
    for (name, transport) in transports() {
        let mut server = Server::tcp(&[]);
        let store = Memcached::open(options(vec![server.address()], transport)).unwrap();
        let (client, epoch) = begun(&store).await;
        let spend = async || client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await;
        assert_eq!(spend().await, Ok(Spend::Admitted), "{name}");
        server.restart();
        for _ in 0..4 {
            tokio::task::yield_now().await; // this runtime sees that they are closed, and so does who holds them
        }
        eventually("the store is ready", || async { client.serving().ok() }).await;
        assert_eq!(spend().await, Ok(Spend::Void), "{name}: the first spend");
        for _ in 0..64 {
            assert_eq!(spend().await, Ok(Spend::Void), "{name}: a connection of before was used");
        }
    }
}

/// A pool that is larger than what the server has left for it uses the connections it has.
#[tokio::test]
async fn a_pool_that_cannot_be_filled_serves_with_what_it_has() {
    let fake = Fake::start();
    let pool = Transport::Pooled { size: 16, checkout_timeout: Duration::from_millis(100) };
    let planter = Memcached::open(options(vec![fake.address()], pipelined())).unwrap();
    let epoch = begun(&planter).await.1;
    fake.limit(8);
    let store = Memcached::open(options(vec![fake.address()], pool)).unwrap();
    eventually("the watch is connected", async || (store.health().round.requested > 0).then_some(())).await;
    let client = client(&store).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let key = fresh(&epoch);
        assert_eq!(client.spend(&key, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
        tokio::task::yield_now().await;
    }
}
