//! Three replicas that vote: real memcacheds that are away, slow, emptied, one after another.

use crate::support::marked::{Gateway, MarkRecords, Token, ask, delete_sentinels};
use crate::support::{Relay, epoch, eventually, options, pipelined};
use postern_spend::memcached::{Ended, Options, Replicas, Verb};
use postern_spend::{Epoch, ExchangeLog, Hint, Spend, SpendStore, Unknown};
use postern_testkit::memcached::Server;
use postern_token::UnixSeconds;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinSet;

fn three() -> [Server; 3] {
    std::array::from_fn(|_| Server::tcp(&[]))
}

fn replicas(servers: &[Server; 3]) -> Options {
    let replicas = Replicas::Three(servers.each_ref().map(|server| vec![server.address()]));
    Options { replicas, ..options(Vec::new(), pipelined()) }
}

/// One whose connections fail soon.
fn impatient(servers: &[Server; 3]) -> Options {
    let (timeout, connect_timeout) = (Duration::from_millis(300), Duration::from_millis(300));
    Options { timeout, connect_timeout, ..replicas(servers) }
}

async fn spend_all(gateway: &Gateway, tokens: &[Token]) {
    for token in tokens {
        assert_eq!(gateway.spend(token).await, Ok(Spend::Admitted));
    }
}

/// As replays.
async fn admit_none(gateway: &Gateway, tokens: &[Token]) {
    for token in tokens {
        assert_ne!(gateway.spend(token).await, Ok(Spend::Admitted));
    }
}

/// Waits until fresh tokens of this gateway's present mark are admitted, whatever happened.
async fn serves(gateway: &Gateway) {
    eventually("a fresh token is admitted", async || {
        let token = gateway.token(gateway.mark().await);
        (gateway.spend(&token).await == Ok(Spend::Admitted)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_token_is_spent_once_whichever_replica_is_away() {
    let mut servers = three();
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    let mark = gateway.mark().await;
    let [first, second, third, fourth] = [(); 4].map(|()| gateway.token(mark));
    assert_eq!(gateway.spend(&first).await, Ok(Spend::Admitted));
    assert_eq!(gateway.spend(&first).await, Ok(Spend::AlreadySpent));
    servers[2].kill();
    assert_eq!(gateway.spend(&second).await, Ok(Spend::Admitted), "by the other two");
    assert_eq!(gateway.spend(&second).await, Ok(Spend::AlreadySpent));
    assert_eq!(gateway.spend(&first).await, Ok(Spend::AlreadySpent));
    servers[1].kill();
    assert!(gateway.spend(&third).await.is_err(), "one is no majority");
    assert_eq!(gateway.spend(&first).await, Ok(Spend::AlreadySpent), "that one knows it");
    let refused = Err(Unknown::Unavailable(ErrorKind::ConnectionRefused));
    let is_refused = async || (gateway.store.health().ready == refused).then_some(());
    eventually("the store is not ready, for a reason that one of those has that are away", is_refused).await;
    servers[0].kill();
    assert!(gateway.spend(&fourth).await.is_err());
}

/// The case that a majority route lets through: a replica misses writes, comes back with all of its records, and another
/// one is emptied.
#[tokio::test]
async fn a_replica_that_missed_writes_and_one_that_was_emptied_admit_nothing_again() {
    let mut servers = three();
    let gateway = Gateway::start(impatient(&servers), epoch()).await;
    let mark = gateway.mark().await;
    let before = gateway.tokens(50, mark);
    spend_all(&gateway, &before).await;
    servers[0].signal("STOP");
    eventually("nothing is sent to it any more", async || {
        assert_eq!(gateway.spend(&gateway.token(mark)).await, Ok(Spend::Admitted));
        (gateway.store.health().endpoints[0].connections == 0).then_some(())
    })
    .await;
    let during = gateway.tokens(100, mark);
    spend_all(&gateway, &during).await;
    servers[0].signal("CONT");
    eventually("all replicas answer", async || (gateway.store.health().away.is_empty()).then_some(())).await;
    servers[1].restart();
    admit_none(&gateway, &during).await;
    admit_none(&gateway, &before).await;
    let next = gateway.mark_after(mark).await;
    spend_all(&gateway, &gateway.tokens(20, next)).await;
    admit_none(&gateway, &during).await;
}

#[tokio::test]
async fn replicas_may_be_lost_one_after_another() {
    let mut servers = three();
    let gateways = [
        Gateway::start(replicas(&servers), epoch()).await,
        Gateway::start(Options { cache_bytes: 1 << 20, ..replicas(&servers) }, epoch()).await,
    ];
    let epoch = gateways[0].epoch;
    let other = Gateway::start(replicas(&servers), epoch).await;
    let first = gateways[0].mark().await;
    assert_eq!(other.mark().await, first, "gateways agree on the mark of a key");
    assert_ne!(gateways[1].mark().await, first, "keys do not share one");
    let early = gateways[0].tokens(90, first);
    spend_all(&gateways[0], &early).await;
    // A presentation writes the record again, so each third is presented for the first time after another loss.
    for (lost, third) in early.chunks(30).enumerate() {
        servers[lost].restart();
        admit_none(&other, third).await;
        if lost == 0 {
            let next = other.mark_after(first).await;
            assert_eq!(gateways[0].mark_after(first).await, next);
        }
        if lost < 2 {
            serves(&gateways[0]).await;
            serves(&other).await;
        }
    }
    admit_none(&other, &early).await;
}

/// It answers every read, so only its answers to spends show it.
#[tokio::test]
async fn a_replica_that_is_full_counts_as_away_until_it_takes_records_again() {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::tcp(&["-m", "8", "-M"]));
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    let health = || gateway.store.health();
    let rejecting = || health().endpoints.iter().filter(|endpoint| endpoint.rejects).count();
    serves(&gateway).await;
    assert_eq!((health().away, rejecting()), (vec![], 0));
    servers[2].fill();
    let token = gateway.token(gateway.mark().await);
    assert_eq!(gateway.spend(&token).await, Ok(Spend::Admitted), "by the other two");
    eventually("the full one is away", async || {
        let token = gateway.token(gateway.mark().await);
        assert_eq!(gateway.spend(&token).await, Ok(Spend::Admitted));
        ((health().away, rejecting()) == (vec![2], 1)).then_some(())
    })
    .await;
    servers[2].flush();
    eventually("it is back", async || ((health().away, rejecting()) == (vec![], 0)).then_some(())).await;
}

/// One replica lost its witnesses of a mark and another one is away: no token of it can be admitted, and the next mark's can.
#[tokio::test]
async fn tokens_of_the_mark_before_are_void_while_only_one_replica_that_knows_it_answers() {
    let mut servers = three();
    let gateway = Gateway::start(impatient(&servers), epoch()).await;
    let other = Gateway::start(impatient(&servers), gateway.epoch).await;
    let mark = gateway.mark().await;
    let (spent, held, kept) = (gateway.tokens(20, mark), gateway.tokens(20, mark), gateway.tokens(20, mark));
    spend_all(&gateway, &spent).await;
    servers[0].restart();
    admit_none(&other, &spent).await;
    let next = gateway.mark_after(mark).await;
    assert_eq!(other.mark_after(mark).await, next);
    servers[1].signal("STOP");
    for token in &held {
        assert_eq!(gateway.spend(token).await, Ok(Spend::Void));
    }
    spend_all(&gateway, &gateway.tokens(20, next)).await;
    admit_none(&other, &spent).await;
    servers[1].signal("CONT");
    for gateway in [&gateway, &other] {
        eventually("all replicas answer", async || (gateway.store.health().away.is_empty()).then_some(()))
            .await;
    }
    admit_none(&other, &held).await;
    admit_none(&gateway, &spent).await;
    spend_all(&other, &kept).await;
}

/// Two replicas emptied at once: too few know the mark, so its tokens are void, spent or not.
#[tokio::test]
async fn two_losses_at_once_void_what_is_out_and_bring_a_new_mark() {
    let mut servers = three();
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    let mark = gateway.mark().await;
    let (spent, held) = (gateway.tokens(50, mark), gateway.tokens(20, mark));
    spend_all(&gateway, &spent).await;
    servers[0].restart();
    servers[2].restart();
    admit_none(&gateway, &spent).await;
    let next = gateway.mark_after(mark).await;
    let older = || gateway.store.totals().older_marks.load(Relaxed);
    let before = older();
    for token in &held {
        assert_eq!(gateway.spend(token).await, Ok(Spend::Void));
    }
    spend_all(&gateway, &gateway.tokens(25, next)).await;
    assert_eq!(older(), before + 20, "those that were held");
    admit_none(&gateway, &spent).await;
}

/// The verdict does not wait for a replica that hangs, and that replica still gets the record.
#[tokio::test]
async fn a_slow_replica_delays_nobody() {
    let servers = three();
    let long = Duration::from_secs(600); // longer than the test may take: waiting for it once would end it
    let gateway = Gateway::start(Options { timeout: long, ..replicas(&servers) }, epoch()).await;
    let tokens = gateway.tokens(50, gateway.mark().await);
    servers[1].signal("STOP");
    spend_all(&gateway, &tokens).await;
    servers[1].signal("CONT");
    let alone = Options { replicas: Replicas::One(vec![servers[1].address()]), ..replicas(&servers) };
    let alone = Gateway::start(alone, gateway.epoch).await;
    for token in &tokens {
        eventually("it has the record", async || {
            let found = alone.client.check(&token.key, &alone.epoch_of(token)).await;
            (found == Ok(Hint::Spent)).then_some(())
        })
        .await;
    }
}

/// Of racers over several gateways one is admitted at most: each may get one replica, and then none is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn races_have_one_winner_at_most() {
    let servers = three();
    let epoch = epoch();
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(Arc::new(Gateway::start(replicas(&servers), epoch).await));
    }
    let mark = gateways[0].mark().await;
    let mut won = 0;
    for _ in 0..200 {
        let token = Arc::new(gateways[0].token(mark));
        let mut racers = JoinSet::new();
        for racer in 0..9 {
            let (gateway, token) = (Arc::clone(&gateways[racer % 3]), Arc::clone(&token));
            racers.spawn(async move { gateway.spend(&token).await });
        }
        let verdicts = racers.join_all().await;
        let admitted = verdicts.iter().filter(|verdict| **verdict == Ok(Spend::Admitted)).count();
        assert!(admitted <= 1, "{verdicts:?}");
        won += admitted;
    }
    println!("{won} of 200 races had a winner");
    assert!(won > 100, "{won} of 200 races had a winner");
}

#[tokio::test]
async fn a_token_without_a_mark_is_refused() {
    let servers = three();
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    let token = gateway.token(gateway.mark().await);
    let now = UnixSeconds::now();
    assert_eq!(gateway.client.spend(&token.key, &gateway.epoch, now).await, Err(Unknown::Unmarked));
}

/// A record that ended before its witnesses would admit the token again. So a gateway that has learnt an earlier end of the
/// key refuses the first token, and writes records that last as long as those of the others from then on.
#[tokio::test]
async fn a_gateway_with_an_earlier_end_of_the_key_writes_records_that_outlive_their_witnesses() {
    let servers = three();
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    let mark = gateway.mark().await;
    let early = UnixSeconds::now().saturating_add(Duration::from_secs(900));
    let other = Gateway::start(replicas(&servers), Epoch { expires: early, ..gateway.epoch }).await;
    assert_eq!(other.mark().await, mark);
    let [first, second] = [(); 2].map(|()| other.token(mark));
    assert_eq!(other.spend(&first).await, Err(Unknown::Garbled));
    assert_eq!(other.spend(&second).await, Ok(Spend::Admitted));
    for token in [&first, &second] {
        assert_eq!(gateway.spend(token).await, Ok(Spend::AlreadySpent));
    }
}

/// Records that were begun with an earlier end last until the later one from then on.
#[tokio::test]
async fn a_key_whose_end_moves_keeps_its_later_records_for_longer() {
    let servers = three();
    let mut gateway = Gateway::start(replicas(&servers), epoch()).await;
    let mark = gateway.mark().await;
    assert_eq!(gateway.spend(&gateway.token(mark)).await, Ok(Spend::Admitted));
    let after = gateway.epoch.expires;
    gateway.epoch.expires = after.saturating_add(Duration::from_secs(7200));
    let token = gateway.token(mark);
    let spend = async |now| gateway.client.spend(&token.key, &gateway.epoch_of(&token), now).await;
    assert_eq!(spend(after).await, Ok(Spend::Admitted));
    assert_eq!(spend(after).await, Ok(Spend::AlreadySpent));
}

/// Two lists of addresses that lead to one server: its vote would count twice, or refuse every token as spent.
#[tokio::test]
async fn replicas_that_share_servers_are_found_at_the_start() {
    let servers = three();
    let relay = Relay::to(servers[0].port());
    let lists = [vec![servers[0].address()], vec![relay.address()], vec![servers[2].address()]];
    let shared = Options { replicas: Replicas::Three(lists), ..replicas(&servers) };
    let gateway = Gateway::start(shared, epoch()).await;
    eventually("it is found", async || gateway.store.health().overlaps.then_some(())).await;
    assert_eq!(gateway.store.health().ready, Err(Unknown::Astray));
    // Longer than a replica is waited for that is away.
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(gateway.store.health().overlaps);
        assert_eq!(gateway.store.binding(gateway.epoch.key), None);
    }
}

/// A reply that was not waited for is no failure: it is counted, and stands in no exchange log.
#[tokio::test]
async fn what_was_overtaken_is_counted_and_is_no_failure() {
    let servers = three();
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    let tokens = gateway.tokens(30, gateway.mark().await);
    let mut logged = 0;
    for token in &tokens {
        let (mut log, now) = (ExchangeLog::default(), UnixSeconds::now());
        let verdict = gateway.client.spend_with(&token.key, &gateway.epoch_of(token), now, &mut log).await;
        assert_eq!(verdict, Ok(Spend::Admitted));
        assert!(log.exchanges().iter().all(|exchange| exchange.ended == Ended::Stored), "{log:?}");
        logged += log.exchanges().len() as u64;
    }
    let totals = gateway.store.totals();
    let [stored, overtaken] =
        [Ended::Stored, Ended::Overtaken].map(|ended| totals.commands(Verb::Add, ended));
    assert_eq!((stored, stored + overtaken), (logged, 90));
}

/// A store first evicts the least recently read items, and sentinels are read at the age of their mark.
#[tokio::test]
async fn a_restart_makes_no_mark_younger() {
    let servers = three();
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    gateway.mark().await;
    let epoch = gateway.epoch;
    drop(gateway);
    tokio::time::sleep(Duration::from_secs(4)).await; // the first group is read after two
    for server in &servers {
        delete_sentinels(server).await;
    }
    let once = Options { interval: Duration::from_secs(3600), ..replicas(&servers) };
    let restarted = Gateway::start(once, epoch).await;
    eventually("what was evicted is noticed by the first look", async || {
        (restarted.store.health().closed == 3).then_some(())
    })
    .await;
}

/// A mark whose age was evicted, too, is as old as the look at it: its sentinels are read when it has grown from there.
#[tokio::test]
async fn a_mark_without_an_age_is_watched_from_now() {
    let servers = three();
    let gateway = Gateway::start(replicas(&servers), epoch()).await;
    gateway.mark().await;
    let epoch = gateway.epoch;
    drop(gateway);
    for server in &servers {
        for key in MarkRecords::of(server).await.sentinels {
            ask(server, &format!("delete {key}"));
        }
    }
    let restarted = Gateway::start(replicas(&servers), epoch).await;
    eventually("what was evicted is noticed", async || (restarted.store.health().closed == 3).then_some(()))
        .await;
}

/// Otherwise an operator, or a script, would take the next one away.
#[tokio::test]
async fn a_replica_that_comes_back_empty_is_away_until_its_loss_is_known() {
    let mut servers = three();
    let gateway = Gateway::start(impatient(&servers), epoch()).await;
    let mark = gateway.mark().await;
    servers[2].kill();
    eventually("it is away", async || (gateway.store.health().away == [2]).then_some(())).await;
    servers[2].restart();
    let known = eventually("it is back", async || {
        let health = gateway.store.health();
        let is_lacking = health.lacking > 0;
        assert!(!is_lacking || health.lacking_at == [2], "{:?}", health.lacking_at);
        health.away.is_empty().then_some(is_lacking || gateway.mark().await != mark)
    });
    assert!(known.await, "it counts as one that knows the mark");
}
