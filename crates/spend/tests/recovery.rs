//! What the shared store makes of restarts, limits and gateways that disagree.

use crate::support::fake::Fake;
use crate::support::{Server, client, epoch, eventually, fresh, options, pipelined, pooled, transports};
use postern_spend::memcached::{Memcached, OnLoss, Options, Transport};
use postern_spend::{Epoch, Spend, SpendStore, Unknown};
use postern_token::UnixSeconds;
use std::time::{Duration, Instant};

/// A restart closes every connection. Each is detected before it costs a token, even with few callers.
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
        for _ in 0..4 {
            tokio::task::yield_now().await; // this runtime sees that they are closed, and so does who holds them
        }
        eventually("the store is ready", || async { client.ready().await.ok() }).await;
        assert_eq!(spend().await, Ok(Spend::Admitted), "{name}: the first spend");
        assert!(back.elapsed() < Duration::from_secs(1), "{name}: back after {:?}", back.elapsed());
        for _ in 0..64 {
            assert_eq!(spend().await, Ok(Spend::Admitted), "{name}: a connection of before was used");
        }
    }
}

/// The gateway that is started after everything was lost takes the store for new; the one that ran before reports the
/// loss.
#[tokio::test]
async fn a_gateway_that_begins_an_epoch_again_is_told_of_the_loss() {
    let server = Server::tcp(&[]);
    // The old gateway looks rarely, so that the new one is first.
    let old = Options {
        canary_interval: Duration::from_millis(1500),
        on_loss: OnLoss::Refuse,
        ..options(vec![server.address()], pipelined())
    };
    let old = Memcached::open(old).unwrap();
    let (before, epoch, now) = (client(&old).await, epoch(), UnixSeconds::now());
    assert_eq!(before.spend(&fresh(&epoch), &epoch, now).await, Ok(Spend::Admitted));
    tokio::time::sleep(Duration::from_millis(1100)).await; // epochs begin at whole seconds
    server.flush();
    let new = Options { on_loss: OnLoss::Refuse, ..options(vec![server.address()], pipelined()) };
    let new = Memcached::open(new).unwrap();
    let after = client(&new).await;
    let _ = after.spend(&fresh(&epoch), &epoch, now).await; // begins the epoch anew, or learns of the loss already
    eventually("both know", || async {
        (old.health().lost == [epoch.key] && new.health().lost == [epoch.key]).then_some(())
    })
    .await;
    assert_eq!(after.spend(&fresh(&epoch), &epoch, now).await, Err(Unknown::RecordsLost));
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

/// A process that has forgotten an expired epoch learns of it again at the next use, as fast as the first time.
#[tokio::test]
async fn an_expired_epoch_that_was_forgotten_is_refused_at_once() {
    let server = Server::tcp(&[]);
    let now = UnixSeconds::now();
    let store = Memcached::open(Options {
        canary_interval: Duration::from_secs(3600),
        timeout: Duration::from_millis(500),
        connect_timeout: Duration::from_millis(500),
        ..options(vec![server.address()], pipelined())
    })
    .unwrap();
    let client = client(&store).await;
    let first = Epoch { expires: now.saturating_add(Duration::from_secs(600)), ..epoch() };
    let later = Epoch { expires: now.saturating_add(Duration::from_secs(6000)), ..first };
    let key = fresh(&first);
    assert_eq!(client.spend(&key, &first, now).await, Ok(Spend::Admitted));
    // A directory that moves the expiry does not move the store's.
    let over = now.saturating_add(Duration::from_secs(601));
    assert_eq!(client.spend(&key, &later, over).await, Err(Unknown::EpochRetired));
    assert_eq!(store.drop_expired(over), 1);
    assert_eq!(client.spend(&key, &later, over).await, Err(Unknown::EpochRetired));
}

/// Two gateways that begin an epoch while a server is away can each see other canaries. As soon as they see the same
/// ones, both keep to the first expiry: records written under it are gone afterwards.
#[tokio::test]
async fn the_first_expiry_holds_even_when_it_is_learned_later() {
    let fake = Fake::start();
    let store = Memcached::open(options(vec![fake.address()], pipelined())).unwrap();
    let (client, epoch) = (client(&store).await, epoch());
    let now = UnixSeconds::now();
    let later = now.saturating_add(Duration::from_secs(100));
    assert_eq!(client.spend(&fresh(&epoch), &epoch, later).await, Ok(Spend::Admitted));
    let earlier = format!("w{:010}.{:010}", later.0, now.0);
    let mut altered = false;
    fake.alter(|(key, value)| {
        if key.starts_with("pc1.") {
            *value = earlier.clone().into_bytes();
            altered = true;
        }
    });
    assert!(altered);
    let refused = || async {
        let verdict = client.spend(&fresh(&epoch), &epoch, later).await;
        (verdict == Err(Unknown::EpochRetired)).then_some(())
    };
    eventually("the earlier expiry holds", refused).await;
    let before = UnixSeconds(later.0 - 1);
    assert_eq!(client.spend(&fresh(&epoch), &epoch, before).await, Ok(Spend::Admitted));
}
