//! What the shared store makes of restarts and limits.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use postern_spend::memcached::{Memcached, Transport};
use postern_spend::{Spend, SpendStore};
use postern_token::UnixSeconds;
use std::time::{Duration, Instant};
use support::fake::Fake;
use support::{Server, client, epoch, eventually, fresh, options, pooled, transports};

/// A restart closes every connection. Each is found out before it costs anybody a token, however few the callers are.
#[tokio::test]
async fn after_a_restart_no_dead_connection_is_used() {
    for (name, transport) in transports() {
        let mut server = Server::tcp(&[]);
        let store = Memcached::open(options(vec![server.address()], transport)).unwrap();
        let (client, epoch) = (client(&store).await, epoch());
        let spend = async || client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await;
        assert_eq!(spend().await, Ok(Spend::Admitted), "{name}");
        server.restart();
        let back = Instant::now();
        let answered = || async { spend().await.ok() };
        assert_eq!(eventually("a spend is answered", answered).await, Spend::Admitted, "{name}");
        assert!(back.elapsed() < Duration::from_secs(1), "{name}: back after {:?}", back.elapsed());
        for _ in 0..64 {
            assert_eq!(spend().await, Ok(Spend::Admitted), "{name}: a connection of before was used");
        }
    }
}

/// A pool that is larger than what the server has left for it uses the connections it has.
#[tokio::test]
async fn a_pool_that_cannot_be_filled_serves_with_what_it_has() {
    let fake = Fake::start();
    let Transport::Pooled(mut pool) = pooled(16) else { unreachable!() };
    pool.checkout_timeout = Duration::from_millis(100);
    fake.limit(8);
    let store = Memcached::open(options(vec![fake.address()], Transport::Pooled(pool))).unwrap();
    let (client, epoch) = (client(&store).await, epoch());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let key = fresh(&epoch);
        assert_eq!(client.spend(&key, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
        tokio::task::yield_now().await;
    }
}
