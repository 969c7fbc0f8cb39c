//! Several endpoints to the same records: which of them a command takes, and what follows when one cannot take it.

use crate::support::fake::{Fake, Step, Verb, send};
use crate::support::marked::Gateway;
use crate::support::{begun, client, epoch, eventually, fresh, options, pipelined, pooled};
use postern_spend::memcached::{Ended, Memcached, Options, Transport};
use postern_spend::{ExchangeLog, Hint, Spend, SpendStore, Unknown};
use postern_token::UnixSeconds;
use std::time::Duration;

/// Two endpoints to one set of records, and nothing of the watch after its first round.
fn two(transport: Transport) -> ([Fake; 2], Options) {
    let first = Fake::start();
    let second = first.sharing(|_| true);
    let addresses = vec![first.address(), second.address()];
    let options = Options { interval: Duration::from_secs(3600), ..options(addresses, transport) };
    ([first, second], options)
}

/// One connection an endpoint, which is not waited for long.
fn one_each() -> Transport {
    Transport::Pooled { size: 1, checkout_timeout: Duration::from_millis(100) }
}

/// The endpoints that were tried, and how that ended.
fn tried(log: &ExchangeLog) -> Vec<(Option<u8>, Ended)> {
    let mut tried: Vec<_> =
        log.exchanges().iter().map(|exchange| (exchange.endpoint, exchange.ended)).collect();
    tried.sort_by_key(|(endpoint, _)| *endpoint);
    tried
}

#[tokio::test]
async fn idle_endpoints_take_turns() {
    let (_fakes, options) = two(pipelined());
    let store = Memcached::open(options).unwrap();
    let (client, epoch) = begun(&store).await;
    assert_eq!(client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
    eventually("both are up", async || {
        store.health().endpoints.iter().all(|endpoint| endpoint.connections > 0).then_some(())
    })
    .await;
    let mut taken = Vec::new();
    for _ in 0..10 {
        let mut log = ExchangeLog::default();
        let verdict = client.spend_with(&fresh(&epoch), &epoch, UnixSeconds::now(), &mut log).await;
        assert_eq!(verdict, Ok(Spend::Admitted));
        taken.extend(tried(&log));
    }
    let by_the_first = taken.iter().filter(|(endpoint, _)| *endpoint == Some(0)).count();
    assert_eq!((taken.len(), by_the_first), (10, 5), "{taken:?}");
}

#[tokio::test]
async fn the_endpoint_with_less_under_way_comes_first() {
    for transport in [pipelined(), pooled(4)] {
        let (fakes, options) = two(transport);
        let store = Memcached::open(options).unwrap();
        let (client, epoch) = begun(&store).await;
        let spend = async |log: &mut ExchangeLog| {
            let verdict = client.spend_with(&fresh(&epoch), &epoch, UnixSeconds::now(), log).await;
            assert_eq!(verdict, Ok(Spend::Admitted));
        };
        spend(&mut ExchangeLog::default()).await;
        eventually("both are up", async || {
            store.health().endpoints.iter().all(|endpoint| endpoint.connections > 0).then_some(())
        })
        .await;
        let held = fakes[0].plan(Verb::Add, true, vec![Step::Wait, Step::Honest]);
        let (mut one, mut other) = (ExchangeLog::default(), ExchangeLog::default());
        tokio::join!(spend(&mut one), spend(&mut other), async {
            eventually("one is busy", async || held.begun().then_some(())).await;
            eventually("the other is idle", async || {
                (store.health().endpoints[1].outstanding == 0).then_some(())
            })
            .await;
            for _ in 0..6 {
                let mut log = ExchangeLog::default();
                spend(&mut log).await;
                assert_eq!(tried(&log), [(Some(1), Ended::Stored)]);
            }
            fakes[0].go_on();
        });
    }
}

/// Each runtime has its own client.
#[tokio::test]
async fn a_client_that_is_gone_leaves_the_others_ready() {
    let (_fakes, options) = two(pipelined());
    let store = Memcached::open(options).unwrap();
    let first = client(&store).await;
    let second = client(&store).await;
    eventually("both are ready", async || store.health().ready.ok()).await;
    drop(second);
    assert_eq!(store.health().ready, Ok(()));
    drop(first);
    assert!(store.health().ready.is_err(), "none is left");
}

/// Reading twice does no harm, so a lookup is retried where an `add` would have to end.
#[tokio::test]
async fn a_lookup_that_fails_at_one_endpoint_is_repeated_at_the_other() {
    for transport in [pipelined(), pooled(1)] {
        let (fakes, options) = two(transport);
        let store = Memcached::open(options).unwrap();
        let (client, epoch) = begun(&store).await;
        let spent = fresh(&epoch);
        assert_eq!(client.spend(&spent, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
        for fake in &fakes {
            eventually("both are up", async || {
                store.health().endpoints.iter().all(|endpoint| endpoint.connections > 0).then_some(())
            })
            .await;
            let acted = fake.plan(Verb::Get, false, vec![send(b"VAL"), Step::Close]);
            eventually("the endpoint's turn", async || {
                assert_eq!(client.check(&spent, &epoch).await, Ok(Hint::Spent));
                acted.begun().then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn each_endpoint_is_tried_once_when_none_has_a_free_connection() {
    let (fakes, options) = two(one_each());
    let gateway = Gateway::start(options, epoch()).await;
    let mark = gateway.mark().await;
    let spend = async |log: &mut ExchangeLog| {
        let token = gateway.token(mark);
        gateway.client.spend_with(&token.key, &gateway.epoch_of(&token), UnixSeconds::now(), log).await
    };
    assert_eq!(spend(&mut ExchangeLog::default()).await, Ok(Spend::Admitted));
    eventually("both are up", async || {
        gateway.store.health().endpoints.iter().all(|endpoint| endpoint.connections > 0).then_some(())
    })
    .await;
    let held = [&fakes[0], &fakes[1]].map(|fake| fake.plan(Verb::Add, true, vec![Step::Wait, Step::Honest]));
    let (mut first, mut second) = (ExchangeLog::default(), ExchangeLog::default());
    let (one, other, ()) = tokio::join!(spend(&mut first), spend(&mut second), async {
        eventually("both are busy", async || held.iter().all(|acted| acted.begun()).then_some(())).await;
        let mut log = ExchangeLog::default();
        assert_eq!(spend(&mut log).await, Err(Unknown::Overloaded));
        let expected = [(Some(0), Ended::Refused), (Some(1), Ended::Refused)];
        assert_eq!(tried(&log), expected);
        fakes.iter().for_each(Fake::go_on);
    });
    assert_eq!((one, other), (Ok(Spend::Admitted), Ok(Spend::Admitted)));
    drop(fakes);
    eventually("no endpoint is up", async || {
        let mut log = ExchangeLog::default();
        assert!(spend(&mut log).await.is_err());
        (tried(&log) == [(None, Ended::Refused)]).then_some(())
    })
    .await;
}
