//! The shared store when memcached is away, frozen, restarted empty, full, or another one than it was.

use crate::support::{
    PATIENCE, Relay, Server, begun, client, epoch, eventually, fresh, marked, options, pipelined, pooled,
    ports, transports,
};
use postern_spend::memcached::{Client, Ended, Memcached, Options, Replicas, Transport};
use postern_spend::{Epoch, ExchangeLog, Hint, Spend, SpendStore, Unknown};
use postern_token::{Mark, SpentKey, UnixSeconds};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

async fn spend(client: &Client, key: &SpentKey, epoch: &Epoch) -> Result<Spend, Unknown> {
    client.spend(key, epoch, UnixSeconds::now()).await
}

/// Spends a fresh token, of which nothing is sent.
async fn assert_refused_unsent(client: &Client, epoch: &Epoch, name: &str) {
    let mut log = ExchangeLog::default();
    let verdict = client.spend_with(&fresh(epoch), epoch, UnixSeconds::now(), &mut log).await;
    assert!(verdict.is_err(), "{name}");
    assert!(log.exchanges().iter().all(|exchange| exchange.ended == Ended::Refused), "{name}: {log:?}");
}

/// Deadlines as in production.
fn brisk(server: &Server, transport: Transport) -> Options {
    Options {
        timeout: Duration::from_millis(100),
        connect_timeout: Duration::from_millis(250),
        ..options(vec![server.address()], transport)
    }
}

#[tokio::test]
async fn two_memories_behind_two_endpoints_are_never_served() {
    let (one, other) = (Server::tcp(&[]), Server::tcp(&[]));
    for (name, transport) in transports() {
        let store = Memcached::open(options(vec![one.address(), other.address()], transport)).unwrap();
        let client = store.client();
        eventually(name, || async { (client.serving() == Err(Unknown::Astray)).then_some(()) }).await;
        let epoch = epoch();
        assert_eq!(spend(&client, &fresh(&epoch), &epoch).await, Err(Unknown::Astray), "{name}");
        assert_eq!(client.check(&fresh(&epoch), &epoch).await, Err(Unknown::Astray), "{name}");
        assert_eq!(store.health().ready, Err(Unknown::Astray));
    }
}

/// A worker whose connections are not there yet refuses what comes to it, so the process must not call itself ready.
#[tokio::test]
async fn the_store_is_ready_when_each_of_its_clients_is() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let store = Memcached::open(options(vec![server.address()], transport)).unwrap();
        assert!(store.health().ready.is_err(), "{name}: no request could be served yet");
        let first = client(&store).await;
        eventually(name, || async { store.health().ready.ok() }).await;
        let second = store.client();
        assert!(store.health().ready.is_err(), "{name}: the second client has no connection yet");
        eventually(name, || async { store.health().ready.ok() }).await;
        let epoch = begun(&store).await.1;
        for client in [first, second] {
            assert_eq!(spend(&client, &fresh(&epoch), &epoch).await, Ok(Spend::Admitted), "{name}");
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_opens_later_to_another_memory_ends_the_service() {
    let (one, port) = (Server::tcp(&[]), ports::free());
    for (name, transport) in transports() {
        let endpoints = vec![one.address(), format!("127.0.0.1:{port}").parse().unwrap()];
        let store = Memcached::open(options(endpoints, transport)).unwrap();
        let (client, epoch) = begun(&store).await;
        assert_eq!(
            spend(&client, &fresh(&epoch), &epoch).await,
            Ok(Spend::Admitted),
            "{name}: one endpoint will do"
        );
        let _other = Server::tcp_on(port);
        eventually(name, || async {
            // Until it is noticed the other endpoint does not know the mark.
            match spend(&client, &fresh(&epoch), &epoch).await {
                Err(Unknown::Astray) => Some(()),
                answer => {
                    assert!(matches!(answer, Ok(Spend::Admitted | Spend::Void)), "{name}: {answer:?}");
                    None
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_one_endpoint_cannot_carry_goes_through_the_other() {
    let server = Server::tcp(&[]);
    let mut endpoints = vec![server.address(), ports::closed().to_string().parse().unwrap()];
    for (name, transport) in transports() {
        endpoints.reverse();
        let store = Memcached::open(options(endpoints.clone(), transport)).unwrap();
        let (client, epoch) = begun(&store).await;
        for _ in 0..50 {
            let key = fresh(&epoch);
            assert_eq!(spend(&client, &key, &epoch).await, Ok(Spend::Admitted), "{name}");
            assert_eq!(client.check(&key, &epoch).await, Ok(Hint::Spent), "{name}");
        }
    }
}

#[tokio::test]
async fn a_store_that_is_down_at_the_start_is_used_when_it_is_there() {
    for (name, transport) in transports() {
        let port = ports::free();
        let endpoints = vec![format!("127.0.0.1:{port}").parse().unwrap()];
        let store = Memcached::open(options(endpoints, transport)).unwrap();
        let (client, epoch) = (store.client(), marked::marked(epoch(), Mark::new([7; 16])));
        let refused = Err(Unknown::Unavailable(ErrorKind::ConnectionRefused));
        eventually("the reason", || async { (client.serving() == refused).then_some(()) }).await;
        let unknown = Err(Unknown::Unavailable(ErrorKind::NotConnected));
        assert_eq!(spend(&client, &fresh(&epoch), &epoch).await, unknown, "{name}");
        assert!(store.health().ready.is_err());
        let _server = Server::tcp_on(port);
        let began = Instant::now();
        eventually(name, || async { client.serving().ok() }).await;
        println!("{name}: in use {:?} after it came up", began.elapsed());
        let epoch = begun(&store).await.1;
        assert_eq!(spend(&client, &fresh(&epoch), &epoch).await, Ok(Spend::Admitted), "{name}");
    }
}

#[tokio::test]
async fn a_full_memory_that_does_not_evict_refuses_and_loses_nothing() {
    let server = Server::tcp(&["-m", "4", "-M"]);
    let store = Memcached::open(options(vec![server.address()], pipelined())).unwrap();
    let (client, epoch) = begun(&store).await;
    let first = fresh(&epoch);
    assert_eq!(spend(&client, &first, &epoch).await, Ok(Spend::Admitted));
    let mut full = 0;
    for _ in 0..200_000 {
        match spend(&client, &fresh(&epoch), &epoch).await {
            Ok(Spend::Admitted) => {}
            answer => {
                assert_eq!(answer, Err(Unknown::Rejected));
                full += 1;
                if full == 100 {
                    break;
                }
            }
        }
    }
    assert_eq!(full, 100, "it never was full");
    // memcached makes room for a record before it looks whether there is one.
    assert_eq!(spend(&client, &first, &epoch).await, Err(Unknown::Rejected));
    assert_eq!(client.check(&first, &epoch).await, Ok(Hint::Spent));
}

/// A frozen server: its kernel still accepts connections and bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_store_fails_fast_and_comes_back_by_itself() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let store = Memcached::open(brisk(&server, transport)).unwrap();
        let (client, epoch) = begun(&store).await;
        let key = fresh(&epoch);
        assert_eq!(spend(&client, &key, &epoch).await, Ok(Spend::Admitted), "{name}");
        server.signal("STOP");
        let mut waiting = JoinSet::new();
        for _ in 0..200 {
            let client = client.clone();
            waiting.spawn(async move { spend(&client, &fresh(&epoch), &epoch).await });
        }
        let answers =
            tokio::time::timeout(PATIENCE, waiting.join_all()).await.expect("no caller waits for ever");
        assert!(answers.iter().all(Result::is_err), "{name}: {answers:?}");
        // From here on no caller waits: nothing is sent.
        eventually(name, || async { client.serving().err() }).await;
        for _ in 0..1000 {
            assert_refused_unsent(&client, &epoch, name).await;
        }
        server.signal("CONT");
        let thawed = Instant::now();
        eventually(name, || async { client.serving().ok() }).await;
        println!("{name}: in use {:?} after the thaw", thawed.elapsed());
        assert_eq!(spend(&client, &key, &epoch).await, Ok(Spend::AlreadySpent), "{name}");
        assert_eq!(spend(&client, &fresh(&epoch), &epoch).await, Ok(Spend::Admitted), "{name}");
    }
}

/// Each of a pool's connections to it would cost a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_endpoint_beside_another_one_costs_few_tokens() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let relay = Relay::to(server.port());
        let addresses = vec![relay.address(), server.address()];
        let options = Options { replicas: Replicas::One(addresses), ..brisk(&server, transport) };
        let store = Memcached::open(options).unwrap();
        let (client, epoch) = begun(&store).await;
        eventually(name, || async {
            store.health().endpoints.iter().all(|it| it.connections > 0).then_some(())
        })
        .await;
        let mut used = JoinSet::new(); // as many at once as the pool has connections
        for _ in 0..200 {
            let client = client.clone();
            used.spawn(async move { spend(&client, &fresh(&epoch), &epoch).await });
        }
        used.join_all().await;
        let thaw = relay.freeze();
        let mut lost = 0;
        for _ in 0..200 {
            lost += usize::from(spend(&client, &fresh(&epoch), &epoch).await.is_err());
        }
        assert!(lost <= 3, "{name}: {lost}");
        let frozen = &store.health().endpoints[0];
        assert_eq!((frozen.connections, frozen.failure), (0, Some(Unknown::TimedOut)), "{name}");
        drop(thaw);
        eventually(name, || async {
            store.health().endpoints.iter().all(|it| it.failure.is_none()).then_some(())
        })
        .await;
    }
}

/// The kernel of a frozen server keeps a pool's idle connections open, so that each would take a token.
#[tokio::test]
async fn a_pool_sends_nothing_more_to_a_server_that_is_silent() {
    let server = Server::tcp(&[]);
    let store = Memcached::open(brisk(&server, pooled(16))).unwrap();
    let (client, epoch) = begun(&store).await;
    eventually("the pool is full", || async {
        (store.health().endpoints[0].connections == 16).then_some(())
    })
    .await;
    server.signal("STOP");
    assert_eq!(spend(&client, &fresh(&epoch), &epoch).await, Err(Unknown::TimedOut));
    assert_refused_unsent(&client, &epoch, "pooled").await;
    server.signal("CONT");
    eventually("it is used again", || async { client.serving().ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_admit_nothing_twice() {
    const ROUNDS: usize = 20;
    const KEYS: usize = 500;
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let (relay, also) = (Relay::to(server.port()), Relay::to(server.port()));
        let store = Memcached::open(options(vec![relay.address(), also.address()], transport)).unwrap();
        let (client, epoch) = begun(&store).await;
        let (mut admitted, mut unknown, mut round) = (0, 0, 0);
        // On some machines most cuts come when everything has been answered.
        while round < ROUNDS || unknown == 0 && round < 20 * ROUNDS {
            let connected = || store.health().endpoints.iter().all(|endpoint| endpoint.connections > 0);
            eventually(name, || async { connected().then_some(()) }).await;
            let keys: Vec<_> = (0..KEYS).map(|_| fresh(&epoch)).collect();
            let mut spends = JoinSet::new();
            for number in 0..4 * KEYS {
                let (client, key) = (client.clone(), keys[number % KEYS]);
                spends.spawn(async move { (number % KEYS, spend(&client, &key, &epoch).await) });
            }
            let mut answers = vec![spends.join_next().await.unwrap().unwrap()];
            if round % 2 == 0 {
                relay.cut()
            } else {
                also.cut()
            }
            answers.extend(spends.join_all().await);
            for (index, key) in keys.iter().enumerate() {
                let won = |(of, answer): &&(usize, _)| *of == index && *answer == Ok(Spend::Admitted);
                let winners = answers.iter().filter(won).count();
                assert!(winners <= 1, "{name}: {answers:?}");
                admitted += winners;
                if winners == 1 {
                    assert_ne!(spend(&client, key, &epoch).await, Ok(Spend::Admitted), "{name}");
                }
            }
            unknown += answers.iter().filter(|(_, answer)| answer.is_err()).count();
            round += 1;
        }
        println!("{name}: {admitted} of {} admitted, {unknown} answers unknown", round * KEYS);
        assert!(admitted > round * KEYS / 2 && unknown > 0, "{name}");
    }
}
