//! The shared store's guarantees beyond the conformance suite: replays answered from the cache, no verdict after a write
//! without a reply, TLS, a pool that reports when it is too small.

use crate::support::marked::ask;
use crate::support::{Server, Swallower, begun, fresh, options, pipelined, pooled, transports};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_spend::memcached::{Ended, Memcached, Options, Tls, Transport, Verb};
use postern_spend::{Hint, Spend, SpendStore, Unknown};
use postern_token::UnixSeconds;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use tokio::task::JoinSet;
use tokio_rustls::rustls::RootCertStore;

#[tokio::test]
async fn replays_are_answered_from_memory_even_when_the_store_is_gone() {
    for (name, transport) in transports() {
        let mut server = Server::tcp(&[]);
        let options = Options { cache_bytes: 1 << 20, ..options(vec![server.address()], transport) };
        let store = Memcached::open(options).unwrap();
        let ((client, epoch), now) = (begun(&store).await, UnixSeconds::now());
        let key = fresh(&epoch);
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::Admitted), "{name}");
        let count = || {
            [(Verb::Add, Ended::Stored), (Verb::Get, Ended::Hit)]
                .map(|(verb, ended)| store.totals().commands(verb, ended))
        };
        let asked = count();
        assert_eq!(client.check(&key, &epoch).await, Ok(Hint::Spent), "{name}");
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");
        assert_eq!(store.totals().cache_hits.load(Relaxed), 2, "{name}");
        assert_eq!(count(), asked, "{name}");
        server.kill();
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");
        assert_eq!(store.health().remembered, 1, "{name}");
    }
}

/// The write arrives, its answer does not.
#[tokio::test]
async fn an_unanswered_write_is_unknown() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let swallower = Swallower::to(server.port());
        let store = Memcached::open(options(vec![swallower.address(), server.address()], transport)).unwrap();
        let ((client, epoch), now) = (begun(&store).await, UnixSeconds::now());
        assert_eq!(client.spend(&fresh(&epoch), &epoch, now).await, Ok(Spend::Admitted));
        swallower.arm();
        let mut answers = Vec::new();
        while !swallower.has_swallowed() {
            let key = fresh(&epoch);
            answers.push((key, client.spend(&key, &epoch, now).await));
        }
        let (last, swallowed) = answers.pop().unwrap();
        assert!(answers.iter().all(|(_, answer)| *answer == Ok(Spend::Admitted)), "{name}: {answers:?}");
        assert!(swallowed.is_err(), "{name}: {swallowed:?}");
        assert_eq!(client.spend(&last, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");
    }
}

#[tokio::test]
async fn the_store_is_reached_over_tls_and_only_with_a_certificate_that_is_trusted() {
    let home = tempfile::tempdir().unwrap();
    let (server, roots) = Server::tls(home.path());
    for (name, transport) in transports() {
        let with = |roots: RootCertStore, name: &str| Options {
            tls: Some(Tls { config: crate::support::trusting(roots), server_name: Some(name.into()) }),
            ..options(vec![server.address()], transport.clone())
        };
        let store = Memcached::open(with(roots.clone(), "memcached.example")).unwrap();
        let ((client, epoch), now) = (begun(&store).await, UnixSeconds::now());
        let key = fresh(&epoch);
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::Admitted), "{name}");
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");

        let no_roots = RootCertStore::empty();
        for wrong in [with(no_roots, "memcached.example"), with(roots.clone(), "another.example")] {
            let store = Memcached::open(wrong).unwrap();
            let client = store.client();
            // A handshake that fails is bytes that are not understood.
            let refused = Err(Unknown::Garbled);
            crate::support::eventually("the reason", || async {
                (client.serving() == refused).then_some(())
            })
            .await;
            let spent = client.spend(&fresh(&epoch), &epoch, now).await;
            assert_eq!(spent, Err(Unknown::Unavailable(std::io::ErrorKind::NotConnected)), "{name}");
        }
    }
}

/// All that anyone who reads the store can learn: digests of spent tokens, random numbers, and how many there are.
#[tokio::test]
async fn what_is_stored_is_a_digest_and_a_random_number() {
    let server = Server::tcp(&[]);
    let store = Memcached::open(options(vec![server.address()], pipelined())).unwrap();
    let (client, epoch) = begun(&store).await;
    let spent: Vec<_> = (0..10).map(|_| fresh(&epoch)).collect();
    for key in &spent {
        assert_eq!(client.spend(key, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
    }
    let dump = ask(&server, "lru_crawler metadump all");
    let mut values = HashSet::new();
    for key in &spent {
        let name = URL_SAFE_NO_PAD.encode(&key.as_bytes()[..16]);
        let line = dump.iter().find(|line| line.contains(&name)).unwrap();
        assert!(line.contains(&format!(" exp={} ", epoch.expires.0)), "{line}");
        let key = line.strip_prefix("key=").unwrap().split(' ').next().unwrap();
        let key = key.replace("%7C", "|").replace("%23", "#");
        assert!(key.len() == 30 && key.ends_with(&name), "{key}");
        let value = ask(&server, &format!("get {key}")).pop().unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(&value).unwrap().len(), 5);
        values.insert(value);
    }
    assert_eq!(values.len(), spent.len(), "no two attempts have one id");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_too_small_says_so_and_serves_everyone_in_turn() {
    let server = Server::tcp(&[]);
    let store = Memcached::open(options(vec![server.address()], pooled(2))).unwrap();
    let (client, epoch) = begun(&store).await;
    assert_eq!(client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
    let mut callers = JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        callers.spawn(async move {
            for _ in 0..50 {
                let spent = client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await;
                assert_eq!(spent, Ok(Spend::Admitted));
            }
        });
    }
    callers.join_all().await;
    assert!(store.totals().pool_waits.load(Relaxed) > 100, "{:?}", store.totals());
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let server = Server::tcp(&[]);
    let options = options(vec![server.address()], Transport::Pipelined { queue: 24 });
    let store = Memcached::open(options).unwrap();
    let (client, epoch) = begun(&store).await;
    assert_eq!(client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
    server.signal("STOP");
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        callers.spawn(async move { client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await });
    }
    for _ in 0..12 {
        assert_eq!(callers.join_next().await.unwrap().unwrap(), Err(Unknown::Overloaded));
    }
    server.signal("CONT");
    let rest = callers.join_all().await;
    assert_eq!(rest, vec![Ok(Spend::Admitted); 8]);
}
