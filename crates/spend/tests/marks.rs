//! Tokens that a mark binds to the memory which records them: real memcacheds that come back empty, that are other ones,
//! that are away.

use crate::support::marked::{Gateway, MarkRecords, ask};
use crate::support::{epoch, eventually, options, transports};
use postern_spend::memcached::{Memcached, Options, Replicas, Transport, Unfit};
use postern_spend::{Backend, Epoch, Spend, SpendStore};
use postern_testkit::memcached::Server;
use postern_token::{Mark, TokenKeyId};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn at(server: &Server, transport: Transport) -> Options {
    options(vec![server.address()], transport)
}

#[tokio::test]
async fn a_marked_token_is_spent_once() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let gateway = Gateway::start(at(&server, transport), epoch()).await;
        let token = gateway.token(gateway.mark().await);
        assert_eq!(gateway.spend(&token).await, Ok(Spend::Admitted), "{name}");
        for _ in 0..3 {
            assert_eq!(gateway.spend(&token).await, Ok(Spend::AlreadySpent), "{name}");
        }
        let other = gateway.token(Mark::new([9; 16]));
        assert_eq!(gateway.spend(&other).await, Ok(Spend::Void), "{name}: a mark that no gateway planted");
        assert_eq!(gateway.store.totals().marks_planted.load(Relaxed), 1, "{name}");
    }
}

/// The first request after the loss, before any watch could look.
#[tokio::test]
async fn what_was_spent_before_a_loss_is_not_admitted_after_it() {
    for (name, transport) in transports() {
        let mut server = Server::tcp(&[]);
        let gateway = Gateway::start(at(&server, transport), epoch()).await;
        let mark = gateway.mark().await;
        let tokens: Vec<_> = (0..100).map(|_| gateway.token(mark)).collect();
        for token in &tokens {
            assert_eq!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        server.restart();
        for token in tokens.iter().cycle().take(300) {
            assert_ne!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        let fresh = eventually("a verdict", async || gateway.spend(&gateway.token(mark)).await.ok()).await;
        assert_eq!(fresh, Spend::Void, "{name}: it could be one of those that were spent");
    }
}

#[tokio::test]
async fn a_loss_brings_a_new_mark_and_service() {
    let mut server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.interval = Duration::from_millis(100);
    let epoch = epoch();
    let gateways = [Gateway::start(options.clone(), epoch).await, Gateway::start(options, epoch).await];
    let first = gateways[0].mark().await;
    assert_eq!(gateways[1].mark().await, first);
    let spent = gateways[0].token(first);
    assert_eq!(gateways[1].spend(&spent).await, Ok(Spend::Admitted));
    server.restart();
    let second = gateways[0].mark_after(first).await;
    assert_eq!(gateways[1].mark_after(first).await, second);
    for gateway in &gateways {
        eventually("it is connected again", async || gateway.client.serving().ok()).await;
        assert_eq!(gateway.spend(&gateway.token(second)).await, Ok(Spend::Admitted));
        assert_ne!(gateway.spend(&spent).await, Ok(Spend::Admitted));
    }
}

/// The store keeps the records of a key for a while after the gateway has dropped it.
#[tokio::test]
async fn a_loss_is_no_alarm_once_the_key_has_retired() {
    let mut server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.interval = Duration::from_millis(100);
    let gateway = Gateway::start(options, epoch()).await;
    let first = gateway.mark().await;
    server.restart();
    gateway.mark_after(first).await;
    server.flush();
    gateway.store.offer(&[]);
    assert_eq!(gateway.store.health().torn, 0);
}

/// No token of a new key can be requested before it has a mark.
#[tokio::test]
async fn a_new_key_has_a_mark_before_the_next_round_is_due() {
    let server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.interval = Duration::from_secs(3600);
    let mut gateway = Gateway::start(options, epoch()).await;
    gateway.mark().await;
    let next = Epoch { key: TokenKeyId([9; 32]), ..epoch() };
    gateway.store.offer(&[gateway.epoch, next]);
    gateway.epoch = next;
    let began = Instant::now();
    gateway.mark().await;
    assert!(began.elapsed() < Duration::from_secs(8), "as long as one that not every bucket knows");
}

/// No other gateway sees the loss for minutes, as its watch reads a few buckets in each round.
#[tokio::test]
async fn the_next_mark_of_another_gateway_is_adopted() {
    let server = Server::tcp(&[]);
    let after = |seconds| Options {
        interval: Duration::from_secs(seconds),
        ..options(vec![server.address()], crate::support::pipelined())
    };
    let gateway = Gateway::start(after(3600), epoch()).await;
    let mark = gateway.mark().await;
    let other = Gateway::start(after(5), gateway.epoch).await;
    assert_eq!(other.mark().await, mark);
    let witness = &MarkRecords::of(&server).await.witnesses[0];
    ask(&server, &format!("delete {witness}"));
    while gateway.spend(&gateway.token(mark)).await != Ok(Spend::Void) {}
    let next = gateway.mark_after(mark).await;
    assert_eq!(other.mark_after(mark).await, next);
}

/// Between two rounds of the watch: it has forgotten the mark on offer without having seen the key go.
#[tokio::test]
async fn a_key_that_leaves_and_comes_back_at_once_has_its_mark() {
    let server = Server::tcp(&[]);
    let gateway = Gateway::start(options(vec![server.address()], crate::support::pipelined()), epoch()).await;
    let mark = gateway.mark().await;
    for _ in 0..5 {
        gateway.store.offer(&[]);
        assert_eq!(gateway.store.binding(gateway.epoch.key), None);
        gateway.store.offer(&[gateway.epoch]);
        assert_eq!(gateway.mark().await, mark);
    }
}

/// memcached evicts the least recently read items, and each spend reads the record's witness: so no mark is planted on a
/// memcached that evicts.
#[tokio::test]
async fn a_memcached_without_m_is_given_no_mark() {
    let server = Server::evicting(&["-m", "4"]);
    let gateway = Gateway::start(at(&server, crate::support::pipelined()), epoch()).await;
    eventually("it is seen", async || {
        (gateway.store.health().endpoints[0].unfit == Some(Unfit::Evicts)).then_some(())
    })
    .await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(gateway.store.binding(gateway.epoch.key), None);
    }
    assert_eq!(server.stat("curr_items"), 0, "nothing was planted");
}

/// As the gateway does it.
#[tokio::test]
async fn a_key_that_the_chosen_store_is_offered_gets_a_mark() {
    let server = Server::tcp(&[]);
    let backend = Backend::Memcached(Memcached::open(at(&server, crate::support::pipelined())).unwrap());
    let epoch = epoch();
    backend.offer(&[epoch]);
    eventually("a mark on offer", async || backend.binding(epoch.key).map(drop)).await;
    assert!(backend.ready().is_err(), "no runtime is connected");
    let _connected = backend.store();
    eventually("it is ready", async || backend.ready().ok()).await;
}

/// No round is due for an hour, and no connection breaks.
#[tokio::test]
async fn a_void_token_brings_the_next_mark_at_once() {
    let server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.interval = Duration::from_secs(3600);
    let gateway = Gateway::start(options, epoch()).await;
    let first = gateway.mark().await;
    assert_eq!(gateway.spend(&gateway.token(first)).await, Ok(Spend::Admitted));
    eventually("a void token", async || {
        server.flush(); // which spares what was written in the same second
        (gateway.spend(&gateway.token(first)).await == Ok(Spend::Void)).then_some(())
    })
    .await;
    let next = gateway.mark_after(first).await;
    assert_eq!(gateway.spend(&gateway.token(next)).await, Ok(Spend::Admitted));
}

/// A router that splits buckets, or moved slabs: a spent record is lost, and its witness is not.
#[tokio::test]
async fn a_loss_that_spares_witnesses_closes_the_mark_for_good_and_for_all() {
    let server = Server::tcp(&[]);
    let options =
        Options { interval: Duration::from_millis(100), ..at(&server, crate::support::pipelined()) };
    let gateway = Gateway::start(options.clone(), epoch()).await;
    gateway.mark().await;
    let silent = Options { interval: Duration::from_secs(3600), ..options };
    let other = Gateway::start(silent, gateway.epoch).await;
    let mark = gateway.mark().await;
    assert_eq!(other.mark().await, mark);
    let MarkRecords { witnesses, sentinels } = MarkRecords::of(&server).await;
    assert_eq!(other.spend(&other.token(mark)).await, Ok(Spend::Admitted));
    assert_eq!(gateway.store.health().closed, 0);
    let (torn, parted) = (&witnesses[..100], &witnesses[100]);
    let sentinel = sentinels.iter().find(|key| key[..5] == parted[..5]).unwrap();
    // The sentinel first: the watch may count the loss during the loop.
    for key in [sentinel].into_iter().chain(torn) {
        ask(&server, &format!("delete {key}"));
    }
    let next = gateway.mark_after(mark).await;
    for token in other.tokens(200, mark) {
        assert_eq!(
            other.spend(&token).await,
            Ok(Spend::Void),
            "in every bucket, in the spend's own exchange"
        );
    }
    assert_eq!(gateway.store.health().closed, 1);
    assert_eq!(gateway.spend(&gateway.token(next)).await, Ok(Spend::Admitted));
}

/// A fleet that is changed from one replica to three, gateway by gateway: no fault at all.
#[tokio::test]
async fn gateways_of_one_replica_and_of_three_share_no_mark() {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::tcp(&[]));
    let epoch = epoch();
    let replicas = Replicas::Three(servers.each_ref().map(|server| vec![server.address()]));
    let one = Gateway::start(at(&servers[0], crate::support::pipelined()), epoch).await;
    let first = one.mark().await;
    let three = Options { replicas, ..options(Vec::new(), crate::support::pipelined()) };
    let three = Gateway::start(three, epoch).await;
    let second = three.mark().await;
    assert_ne!(first, second);
    let (of_one, of_three) = (one.tokens(100, first), one.tokens(100, second));
    for (token, expected) in of_one.iter().map(|token| (token, Ok(Spend::Admitted))) {
        assert_eq!(one.spend(token).await, expected);
        assert_ne!(three.spend(token).await, Ok(Spend::Admitted));
    }
    for token in &of_three {
        assert_eq!(three.spend(token).await, Ok(Spend::Admitted));
        assert_ne!(one.spend(token).await, Ok(Spend::Admitted));
    }
    for token in one.tokens(50, second).iter().chain(&one.tokens(50, first)) {
        let verdicts = [one.spend(token).await, three.spend(token).await];
        let admitted = verdicts.iter().filter(|verdict| **verdict == Ok(Spend::Admitted)).count();
        assert!(admitted <= 1, "{verdicts:?}");
    }
}

/// Four times, each as soon as it is back: back again within seconds, though the pauses grow.
#[tokio::test]
async fn a_store_that_is_emptied_again_and_again_is_back_each_time() {
    let mut server = Server::tcp(&[]);
    let gateway = Gateway::start(at(&server, crate::support::pipelined()), epoch()).await;
    let mut mark = gateway.mark().await;
    let mut spent = Vec::new();
    for time in 0..4 {
        let token = gateway.token(mark);
        eventually("it serves", async || match gateway.spend(&token).await {
            Ok(Spend::Admitted) => Some(()),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        })
        .await;
        spent.push(token);
        server.restart();
        let began = Instant::now();
        mark = gateway.mark_after(mark).await;
        println!("loss {time}: the next mark after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(15), "loss {time}: {:?}", began.elapsed());
        for token in &spent {
            assert_ne!(gateway.spend(token).await, Ok(Spend::Admitted));
        }
    }
}

/// A loss of everything: no token is requested, and none is read, before the next mark stands.
#[tokio::test]
async fn no_token_is_requested_while_every_one_is_void() {
    let server = Server::tcp(&[]);
    let gateway = Gateway::start(at(&server, crate::support::pipelined()), epoch()).await;
    let mark = gateway.mark().await;
    tokio::time::sleep(Duration::from_millis(1_100)).await; // a flush spares what was written in the same second
    server.flush();
    eventually("nothing is on offer", async || {
        let _ = gateway.spend(&gateway.token(mark)).await;
        gateway.store.binding(gateway.epoch.key).is_none().then_some(())
    })
    .await;
    assert_ne!(gateway.mark().await, mark);
}
