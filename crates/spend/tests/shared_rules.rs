//! What the shared store promises beyond the conformance suite: one expiry for a fleet, replays answered from the
//! cache, the verdict after a write without a reply, TLS, a pool that reports when it is too small.

use crate::support::{Server, Swallower, client, epoch, fresh, options, pipelined, pooled, transports};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_spend::memcached::{Ended, Memcached, Options, Tls, Transport, Verb};
use postern_spend::{Epoch, Hint, Spend, SpendStore, Unknown};
use postern_token::UnixSeconds;
use std::collections::HashSet;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::rustls::RootCertStore;

#[tokio::test]
async fn a_fleet_keeps_to_the_expiry_that_the_memory_heard_first() {
    let server = Server::tcp(&[]);
    let (one, other) = (
        Memcached::open(options(vec![server.address()], pipelined())).unwrap(),
        Memcached::open(options(vec![server.address()], pooled(2))).unwrap(),
    );
    let (one, other) = (client(&one).await, client(&other).await);
    let (first, now) = (epoch(), UnixSeconds::now());
    let later = Epoch { expires: first.expires.saturating_add(Duration::from_secs(86_400)), ..first };
    let (key, fresh_key) = (fresh(&first), fresh(&first));
    assert_eq!(one.spend(&key, &first, now).await, Ok(Spend::Admitted));
    assert_eq!(other.spend(&key, &later, now).await, Ok(Spend::AlreadySpent));
    let last = UnixSeconds(first.expires.0 - 1);
    assert_eq!(other.spend(&key, &later, last).await, Ok(Spend::AlreadySpent));
    // The record of the first spend may be gone from here on, whichever expiry the second gateway has.
    for key in [key, fresh_key] {
        assert_eq!(other.spend(&key, &later, first.expires).await, Err(Unknown::EpochRetired));
    }
}

#[tokio::test]
async fn an_epoch_that_was_forgotten_here_is_still_remembered_there() {
    let server = Server::tcp(&[]);
    let store = Memcached::open(options(vec![server.address()], pipelined())).unwrap();
    let (client, first) = (client(&store).await, epoch());
    let now = UnixSeconds::now();
    assert_eq!(client.spend(&fresh(&first), &first, now).await, Ok(Spend::Admitted));
    assert_eq!(store.drop_expired(first.expires), 1);
    let later = Epoch { expires: first.expires.saturating_add(Duration::from_secs(86_400)), ..first };
    assert_eq!(client.spend(&fresh(&first), &later, first.expires).await, Err(Unknown::EpochRetired));
}

#[tokio::test]
async fn replays_are_answered_from_memory_even_when_the_store_is_gone() {
    for (name, transport) in transports() {
        let mut server = Server::tcp(&[]);
        let options = Options { cache_bytes: 1 << 20, ..options(vec![server.address()], transport) };
        let store = Memcached::open(options).unwrap();
        let (client, epoch, now) = (client(&store).await, epoch(), UnixSeconds::now());
        let key = fresh(&epoch);
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::Admitted), "{name}");
        let asked = store.totals();
        assert_eq!(client.check(&key, &epoch).await, Ok(Hint::Spent), "{name}");
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");
        let after = store.totals();
        assert_eq!(after.cache_hits, 2, "{name}");
        assert_eq!(after.commands(Verb::Add, Ended::Stored), asked.commands(Verb::Add, Ended::Stored));
        assert_eq!(after.commands(Verb::Get, Ended::Hit), 0, "{name}");
        server.kill();
        assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");
        assert_eq!(store.health().remembered, 1, "{name}");
    }
}

/// The write arrives, its answer does not.
#[tokio::test]
async fn an_unanswered_write_is_unknown_unless_the_operator_lets_us_ask() {
    for ask_whose in [false, true] {
        for (name, transport) in transports() {
            let server = Server::tcp(&[]);
            let swallower = Swallower::to(server.port());
            // The second endpoint is used to read the record.
            let endpoints = vec![swallower.address(), server.address()];
            let options = Options { ask_whose, ..options(endpoints, transport) };
            let store = Memcached::open(options).unwrap();
            let (client, epoch, now) = (client(&store).await, epoch(), UnixSeconds::now());
            assert_eq!(client.spend(&fresh(&epoch), &epoch, now).await, Ok(Spend::Admitted));
            swallower.arm();
            let mut answers = Vec::new();
            while !swallower.has_swallowed() {
                let key = fresh(&epoch);
                answers.push((key, client.spend(&key, &epoch, now).await));
            }
            let (last, swallowed) = answers.pop().unwrap();
            assert!(answers.iter().all(|(_, answer)| *answer == Ok(Spend::Admitted)), "{name}: {answers:?}");
            if ask_whose {
                assert_eq!(swallowed, Ok(Spend::Admitted), "{name}");
            } else {
                assert!(swallowed.is_err(), "{name}: {swallowed:?}");
            }
            assert_eq!(client.spend(&last, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");
        }
    }
}

#[tokio::test]
async fn a_record_of_somebody_else_is_never_taken_for_ones_own() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let swallower = Swallower::to(server.port());
        let all = options(vec![server.address()], pipelined());
        let other = Memcached::open(all).unwrap();
        let other = client(&other).await;
        let options =
            Options { ask_whose: true, ..options(vec![swallower.address(), server.address()], transport) };
        let store = Memcached::open(options).unwrap();
        let (client, epoch, now) = (client(&store).await, epoch(), UnixSeconds::now());
        assert_eq!(client.spend(&fresh(&epoch), &epoch, now).await, Ok(Spend::Admitted));
        swallower.arm();
        while !swallower.has_swallowed() {
            let key = fresh(&epoch);
            assert_eq!(other.spend(&key, &epoch, now).await, Ok(Spend::Admitted), "{name}");
            assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::AlreadySpent), "{name}");
        }
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
        let (client, epoch, now) = (client(&store).await, epoch(), UnixSeconds::now());
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
                (client.ready().await == refused).then_some(())
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
    let (client, epoch) = (client(&store).await, epoch());
    let spent: Vec<_> = (0..10).map(|_| fresh(&epoch)).collect();
    for key in &spent {
        assert_eq!(client.spend(key, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
    }
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", server.port())).await.unwrap());
    stream.write_all(b"lru_crawler metadump all\r\n").await.unwrap();
    let (mut found, mut others) = (HashSet::new(), 0);
    let mut line = String::new();
    while stream.read_line(&mut line).await.unwrap() > 0 && line.trim_end() != "END" {
        let field =
            |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)).unwrap().to_owned();
        match field("key=").split_once('.').unwrap() {
            ("ps1", digest) => {
                assert_eq!(field("exp="), epoch.expires.0.to_string());
                found.insert(digest.to_owned());
            }
            ("pc1" | "pp1", name) if name.len() == 43 => others += 1,
            key => panic!("{key:?}"),
        }
        line.clear();
    }
    let expected = spent.iter().map(|key| URL_SAFE_NO_PAD.encode(key.as_bytes())).collect::<HashSet<_>>();
    assert_eq!(found, expected);
    assert!(others >= 64, "{others} canaries and probes");
    let mut values = HashSet::new();
    for digest in &expected {
        stream.write_all(format!("get ps1.{digest}\r\n").as_bytes()).await.unwrap();
        let mut reply = String::new();
        while !reply.ends_with("END\r\n") {
            stream.read_line(&mut reply).await.unwrap();
        }
        let value = reply.lines().nth(1).unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(value).unwrap().len(), 16);
        values.insert(value.to_owned());
    }
    assert_eq!(values.len(), spent.len(), "no two attempts have one id");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_too_small_says_so_and_serves_everyone_in_turn() {
    let server = Server::tcp(&[]);
    let store = Memcached::open(options(vec![server.address()], pooled(2))).unwrap();
    let (client, epoch) = (client(&store).await, epoch());
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
    assert!(store.totals().pool_waits > 100, "{:?}", store.totals());
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let server = Server::tcp(&[]);
    let options = options(vec![server.address()], Transport::Pipelined { connections: 1, queue: 8 });
    let store = Memcached::open(options).unwrap();
    let (client, epoch) = (client(&store).await, epoch());
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
