//! The exchange log of a call: every exchange is in it, with its times in order, and a slow one names what it waited
//! for.

use crate::support::fake::{self, Fake, Step};
use crate::support::{
    Relay, Server, begun, client, epoch, eventually, fresh, options, pipelined, pooled, ports, transports,
    trusting,
};
use postern_spend::memcached::{Client, Ended, Memcached, Options, Transport, Verb};
use postern_spend::{Epoch, Exchange, ExchangeLog, Hint, Spend, SpendStore, Stall, Unknown};
use postern_token::{SpentKey, UnixSeconds};
use std::time::Duration;
use tokio::task::JoinSet;

/// Above it an exchange is slow.
const SLOW: Duration = Duration::from_millis(10);
/// Between the write and the reply where an acknowledgement was delayed.
const DELAYED_ACK: std::ops::RangeInclusive<Duration> = Duration::from_millis(35)..=Duration::from_millis(60);

fn open(address: postern_spend::memcached::Address, transport: Transport) -> Memcached {
    Memcached::open(Options { slow: SLOW, ..options(vec![address], transport) }).unwrap()
}

async fn spend(client: &Client, key: &SpentKey, epoch: &Epoch) -> (Result<Spend, Unknown>, Vec<Exchange>) {
    let mut log = ExchangeLog::default();
    let verdict = client.spend_with(key, epoch, UnixSeconds::now(), &mut log).await;
    (verdict, log.exchanges().to_vec())
}

/// Spends a fresh token, and returns its one exchange.
async fn admitted(client: &Client, epoch: &Epoch) -> Exchange {
    let (verdict, exchanges) = spend(client, &fresh(epoch), epoch).await;
    assert_eq!(verdict, Ok(Spend::Admitted));
    let [exchange] = exchanges[..] else { panic!("{exchanges:?}") };
    exchange
}

/// From the write to the reply.
fn answered_in(exchange: &Exchange) -> Duration {
    exchange.first_byte.unwrap() - exchange.written.unwrap()
}

#[track_caller]
fn assert_in_order(exchange: &Exchange) {
    let written = exchange.written.unwrap();
    let first_byte = exchange.first_byte.unwrap();
    assert!(exchange.began <= written, "written before it was requested: {exchange:?}");
    assert!(written <= first_byte && first_byte <= exchange.finished, "{exchange:?}");
}

#[tokio::test]
async fn each_exchange_is_listed_with_its_moments_in_order() {
    let server = Server::tcp(&[]);
    for (_, transport) in transports() {
        let store = open(server.address(), transport);
        let (client, epoch) = begun(&store).await;
        let mut callers = JoinSet::new();
        for _ in 0..64 {
            let client = client.clone();
            callers.spawn(async move {
                for _ in 0..50 {
                    let (key, mut one) = (fresh(&epoch), ExchangeLog::default());
                    assert_eq!(client.check_with(&key, &epoch, &mut one).await, Ok(Hint::NotFound));
                    let now = UnixSeconds::now();
                    assert_eq!(client.spend_with(&key, &epoch, now, &mut one).await, Ok(Spend::Admitted));
                    let ended: Vec<_> =
                        one.exchanges().iter().map(|one| (one.verb, one.ended, one.endpoint)).collect();
                    let (get, add) = ((Verb::Get, Ended::Miss), (Verb::Add, Ended::Stored));
                    assert_eq!(ended, [(get.0, get.1, Some(0)), (add.0, add.1, Some(0))]);
                    for exchange in one.exchanges() {
                        assert_in_order(exchange);
                    }
                }
            });
        }
        callers.join_all().await;
    }
}

/// The real one: a proxy between this process and memcached writes commands in two pieces.
#[tokio::test]
async fn a_delayed_acknowledgement_is_told_from_a_slow_server() {
    let server = Server::tcp(&[]);
    let relay = Relay::in_two_writes_to(server.port());
    for (name, transport) in [("pipelined", pipelined()), ("pooled", pooled(1))] {
        let store = open(relay.address(), transport);
        let (client, epoch) = begun(&store).await;
        // The first commands of a connection are acknowledged at once.
        let stalled = eventually("an acknowledgement is delayed", || async {
            let exchange = admitted(&client, &epoch).await;
            assert_in_order(&exchange);
            DELAYED_ACK.contains(&answered_in(&exchange)).then_some(exchange)
        });
        let stalled = stalled.await;
        assert_eq!(stalled.stall(SLOW), Some(Stall::DelayedAck), "{name}: {stalled:?}");
        // It lasts: the smoothed round trip grows with the delays, and does not hide them.
        let again = async || {
            let exchange = admitted(&client, &epoch).await;
            let delayed =
                DELAYED_ACK.contains(&answered_in(&exchange)) && exchange.took() < *DELAYED_ACK.end();
            assert!(!delayed || exchange.stall(SLOW) == Some(Stall::DelayedAck), "{name}: {exchange:?}");
            delayed.then_some(())
        };
        for _ in 0..20 {
            again().await;
        }
        eventually("it is delayed again", again).await;
    }
}

#[tokio::test]
async fn a_server_that_sleeps_is_the_server() {
    for (name, transport) in [("pipelined", pipelined()), ("pooled", pooled(1))] {
        let fake = Fake::start();
        let store = open(fake.address(), transport);
        let (client, epoch) = begun(&store).await;
        eventually("a reply after 20 ms and not much later", || async {
            fake.plan(fake::Verb::Add, true, vec![Step::Pause(Duration::from_millis(20)), Step::Honest]);
            let exchange = admitted(&client, &epoch).await;
            assert_in_order(&exchange);
            assert!(answered_in(&exchange) > SLOW && exchange.tcp.is_some(), "{name}: {exchange:?}");
            let soon = exchange.took() < *DELAYED_ACK.start();
            assert!(!soon || exchange.stall(SLOW) == Some(Stall::Server), "{name}: {exchange:?}");
            soon.then_some(())
        })
        .await;
        // Not slow, and not made slow: no facts.
        eventually("a quick reply", || async {
            let exchange = admitted(&client, &epoch).await;
            let quick = exchange.took() < SLOW;
            assert!(
                !quick || (exchange.tcp.is_none() && exchange.stall(SLOW).is_none()),
                "{name}: {exchange:?}"
            );
            quick.then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_frozen_server_leaves_what_is_known() {
    let server = Server::tcp(&[]);
    for (name, transport) in transports() {
        let options = options(vec![server.address()], transport.clone());
        let store = Memcached::open(Options { timeout: Duration::from_millis(500), ..options }).unwrap();
        let (client, epoch) = begun(&store).await;
        admitted(&client, &epoch).await;
        server.signal("STOP");
        let (verdict, exchanges) = spend(&client, &fresh(&epoch), &epoch).await;
        server.signal("CONT");
        assert_eq!(verdict, Err(Unknown::TimedOut), "{name}");
        let [add] = &exchanges[..] else { panic!("{name}: {exchanges:?}") };
        assert_eq!((add.verb, add.ended, add.endpoint), (Verb::Add, Ended::TimedOut, Some(0)), "{name}");
        assert!(add.written.unwrap() >= add.began && add.first_byte.is_none(), "{name}: {add:?}");
        assert!(add.tcp.is_some(), "{name}: {add:?}");
        assert_eq!(add.stall(SLOW), Some(Stall::Server), "{name}: {add:?}");
    }
}

#[tokio::test]
async fn what_is_not_sent_is_listed_and_what_is_remembered_is_not() {
    let nowhere = open(ports::closed().to_string().parse().unwrap(), pipelined());
    let (down, epoch, mut log) = (nowhere.client(), epoch(), ExchangeLog::default());
    assert!(down.check_with(&fresh(&epoch), &epoch, &mut log).await.is_err());
    let [exchange] = log.exchanges() else { panic!("{log:?}") };
    assert_eq!((exchange.verb, exchange.ended, exchange.endpoint), (Verb::Get, Ended::Refused, None));
    assert!(exchange.written.is_none() && exchange.first_byte.is_none());

    let server = Server::tcp(&[]);
    let options = options(vec![server.address()], pipelined());
    let store = Memcached::open(Options { cache_bytes: 1 << 20, ..options }).unwrap();
    let (client, epoch) = begun(&store).await;
    let key = fresh(&epoch);
    assert_eq!(spend(&client, &key, &epoch).await.1.len(), 1);
    let (verdict, exchanges) = spend(&client, &key, &epoch).await;
    assert_eq!((verdict, exchanges.len()), (Ok(Spend::AlreadySpent), 0));
}

/// Facts are read through TLS, and there are none of a Unix socket.
#[tokio::test]
async fn facts_are_those_of_tcp() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, tcp) = (Server::unix(directory.path()), Server::tcp(&[]));
    let (tls, roots) = Server::tls(directory.path());
    let name = Some("memcached.example".to_owned());
    let secured = postern_spend::memcached::Tls { config: trusting(roots), server_name: name };
    for (server, tls, expected) in [(&unix, None, false), (&tcp, None, true), (&tls, Some(secured), true)] {
        for (name, transport) in transports() {
            let options = options(vec![server.address()], transport);
            let always = Options { slow: Duration::ZERO, tls: tls.clone(), ..options };
            let store = Memcached::open(always).unwrap();
            let (client, epoch) = begun(&store).await;
            let exchange = admitted(&client, &epoch).await;
            assert_in_order(&exchange);
            assert_eq!(exchange.tcp.is_some(), expected, "{name}: {exchange:?}");
            assert!(exchange.tcp.is_none_or(|facts| facts.rtt > Duration::ZERO), "{name}: {exchange:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_its_entry_and_no_trace_in_others() {
    for (name, transport) in transports() {
        let fake = Fake::start();
        let store = open(fake.address(), transport);
        let (client, epoch) = begun(&store).await;
        admitted(&client, &epoch).await;
        let outstanding = || store.health().endpoints[0].outstanding;
        let acted = fake.plan(fake::Verb::Add, true, vec![Step::Wait, Step::Honest]);
        let (key, mut log) = (fresh(&epoch), ExchangeLog::default());
        tokio::select! {
            verdict = client.spend_with(&key, &epoch, UnixSeconds::now(), &mut log) => panic!("{verdict:?}"),
            () = eventually("the command arrives", || async { acted.begun().then_some(()) }) => {}
        }
        let [dropped] = log.exchanges() else { panic!("{name}: {log:?}") };
        assert_eq!(
            (dropped.verb, dropped.ended, dropped.endpoint),
            (Verb::Add, Ended::TimedOut, Some(0)),
            "{name}"
        );
        assert!(
            dropped.written.unwrap() >= dropped.began && dropped.first_byte.is_none(),
            "{name}: {dropped:?}"
        );
        fake.go_on();
        assert_eq!(spend(&client, &key, &epoch).await.0, Ok(Spend::AlreadySpent), "{name}");
        assert_in_order(&admitted(&client, &epoch).await);
        eventually("nothing is under way", || async { (outstanding() == 0).then_some(()) }).await;
        fake.assert_understood();
    }
}

#[tokio::test]
async fn an_endpoint_tells_how_much_is_under_way_of_how_much() {
    for (name, transport, capacity) in
        [("pipelined", Transport::Pipelined { queue: 64 }, 64), ("pooled", pooled(3), 3)]
    {
        let fake = Fake::start();
        let store = open(fake.address(), transport);
        let endpoint = || store.health().endpoints[0].clone();
        assert_eq!((endpoint().outstanding, endpoint().capacity), (0, 0), "{name}");
        let (first, (second, epoch)) = (client(&store).await, begun(&store).await);
        assert_eq!(endpoint().capacity, 2 * capacity, "{name}");
        admitted(&first, &epoch).await;
        let mut callers = JoinSet::new();
        for client in [&first, &second] {
            let acted = fake.plan(fake::Verb::Add, true, vec![Step::Wait, Step::Honest]);
            let (client, key) = (client.clone(), fresh(&epoch));
            callers.spawn(async move {
                client.spend_with(&key, &epoch, UnixSeconds::now(), &mut ExchangeLog::default()).await
            });
            eventually("the command arrives", || async { acted.begun().then_some(()) }).await;
        }
        // A spend is three commands, and of a pool one connection.
        let under_way = if name == "pooled" { 2 } else { 6 };
        assert_eq!(endpoint().outstanding, under_way, "{name}");
        fake.go_on();
        assert_eq!(callers.join_all().await, [Ok(Spend::Admitted); 2], "{name}");
        eventually("nothing is under way", || async { (endpoint().outstanding == 0).then_some(()) }).await;
        assert_eq!(endpoint().connect_failures, 0, "{name}");
        drop(second);
        eventually("one client is gone", || async { (endpoint().capacity == capacity).then_some(()) }).await;
        assert_eq!(admitted(&first, &epoch).await.endpoint, Some(0), "{name}");
    }
}

#[tokio::test]
async fn an_endpoint_that_nobody_opens_counts_failures() {
    let server = Server::tcp(&[]);
    for (name, transport) in transports() {
        let closed = ports::closed().to_string().parse().unwrap();
        let store = Memcached::open(options(vec![server.address(), closed], transport)).unwrap();
        let _client = client(&store).await;
        let failures = || async { (store.health().endpoints[1].connect_failures >= 3).then_some(()) };
        eventually("some attempts have failed", failures).await;
        assert_eq!(store.health().endpoints[0].connect_failures, 0, "{name}");
    }
}
