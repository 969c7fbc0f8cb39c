//! Tokens that a mark binds to the memory which records them: real memcacheds that come back empty, that are other ones,
//! that are away.

use crate::support::marked::{Gateway, MarkRecords, ask, open};
use crate::support::{Relay, epoch, eventually, options, transports};
use postern_spend::memcached::{OnLoss, Options, Transport};
use postern_spend::{Backend, Binding, Epoch, Spend, SpendStore, Unknown};
use postern_testkit::memcached::Server;
use postern_token::{Mark, TokenKeyId};
use std::time::{Duration, Instant};

fn refusing(server: &Server, transport: Transport) -> Options {
    Options { on_loss: OnLoss::Refuse, ..options(vec![server.address()], transport) }
}

#[tokio::test]
async fn a_marked_token_is_spent_once() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let gateway = Gateway::start(refusing(&server, transport), epoch(), true).await;
        let token = gateway.token(gateway.mark().await);
        assert_eq!(gateway.spend(&token).await, Ok(Spend::Admitted), "{name}");
        for _ in 0..3 {
            assert_eq!(gateway.spend(&token).await, Ok(Spend::AlreadySpent), "{name}");
        }
        let other = gateway.token(Mark::new([9; 16]));
        assert_eq!(gateway.spend(&other).await, Ok(Spend::Void), "{name}: a mark that no gateway planted");
        assert_eq!(gateway.store.totals().marks_planted, 1, "{name}");
    }
}

/// The first request after the loss, before any watch could look.
#[tokio::test]
async fn what_was_spent_before_a_loss_is_not_admitted_after_it() {
    for (name, transport) in transports() {
        let mut server = Server::tcp(&[]);
        let gateway = Gateway::start(refusing(&server, transport), epoch(), true).await;
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
    options.canary_interval = Duration::from_millis(100);
    let (epoch, mut planter) = (epoch(), options.clone());
    planter.on_loss = OnLoss::Warn;
    let gateways = [
        Gateway::start(planter, epoch, true).await,
        Gateway::start(options, epoch, false).await, // accepts what others plant
    ];
    let first = gateways[0].mark().await;
    assert_eq!(gateways[1].mark().await, first);
    let spent = gateways[0].token(first);
    assert_eq!(gateways[1].spend(&spent).await, Ok(Spend::Admitted));
    server.restart();
    let second = gateways[0].mark_after(first).await;
    assert_eq!(gateways[1].mark_after(first).await, second);
    for gateway in &gateways {
        eventually("it is connected again", async || gateway.client.ready().await.ok()).await;
        assert_eq!(gateway.spend(&gateway.token(second)).await, Ok(Spend::Admitted));
        assert_ne!(gateway.spend(&spent).await, Ok(Spend::Admitted));
    }
}

/// The store keeps the records of a key for a while after the gateway has dropped it.
#[tokio::test]
async fn a_loss_is_no_alarm_once_the_key_has_retired() {
    let mut server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.canary_interval = Duration::from_millis(100);
    let gateway = Gateway::start(options, epoch(), true).await;
    let first = gateway.mark().await;
    server.restart();
    gateway.mark_after(first).await;
    assert_eq!(gateway.store.health().lost, []);
    gateway.store.offer(&[]);
    assert_eq!(gateway.store.health().lost, []);
}

/// No token of a new key can be requested before it has a mark.
#[tokio::test]
async fn a_new_key_has_a_mark_before_the_next_round_is_due() {
    let server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.canary_interval = Duration::from_secs(3600);
    let mut gateway = Gateway::start(options, epoch(), true).await;
    gateway.mark().await;
    let next = Epoch { key: TokenKeyId([9; 32]), ..epoch() };
    gateway.store.offer(&[gateway.epoch, next]);
    gateway.epoch = next;
    gateway.mark().await;
}

/// A gateway that begins a key without a mark says so, and another one that would have planted does not wait for it.
#[tokio::test]
async fn a_key_that_began_without_a_mark_has_none_at_once_and_everywhere() {
    let server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.canary_interval = Duration::from_millis(100);
    let epoch = epoch();
    let accepts = Gateway::start(options.clone(), epoch, false).await;
    let unmarked = async |gateway: &Gateway| {
        eventually("a key without a mark", async || {
            (gateway.store.binding(gateway.epoch.key) == Binding::Unmarked).then_some(())
        })
        .await;
    };
    unmarked(&accepts).await;
    let began = Instant::now();
    let offers = Gateway::start(options, epoch, true).await;
    unmarked(&offers).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    for gateway in [&accepts, &offers] {
        assert_eq!(gateway.store.binding(gateway.epoch.key), Binding::Unmarked);
    }
}

/// As one that is restarted in the moment in which it begins a key, or killed.
#[tokio::test]
async fn a_mark_that_its_gateway_cannot_plant_is_planted_by_another() {
    let server = Server::tcp(&[]);
    let relay = Relay::without_witnesses_to(server.port());
    let through = |address| options(vec![address], crate::support::pipelined());
    let epoch = epoch();
    let begins = open(through(relay.address()), true);
    begins.offer(&[epoch]);
    let records =
        || ask(&server, "stats").iter().find_map(|line| line.strip_prefix("STAT curr_items ")?.parse().ok());
    let begun = async || (records() >= Some(100)).then_some(()); // its promise and its canaries
    eventually("the key has begun", begun).await;
    let other = Gateway::start(through(server.address()), epoch, true).await;
    let mark = other.mark().await;
    assert_eq!(other.store.totals().marks_planted, 1);
    let adopted = async || (begins.binding(epoch.key) == Binding::Offered(mark)).then_some(());
    eventually("both offer it", adopted).await;
    assert_eq!(begins.totals().marks_planted, 0);
}

/// Where a mark binds every token, each spend reads its own witness, and the watch need not read much.
#[tokio::test]
async fn a_mark_takes_the_place_of_the_canaries() {
    let reads = async |plants: bool| {
        let server = Server::tcp(&[]);
        let mut options = options(vec![server.address()], crate::support::pipelined());
        options.canary_interval = Duration::from_millis(100);
        let gateway = Gateway::start(options, epoch(), plants).await;
        let begun = async || (gateway.store.binding(gateway.epoch.key) != Binding::Unknown).then_some(());
        eventually("a key that has begun", begun).await;
        tokio::time::sleep(Duration::from_secs(1)).await; // a mark is surveyed once
        let before = ["cmd_get", "cmd_set"].map(|name| server.stat(name));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let [gets, rounds] = [server.stat("cmd_get") - before[0], server.stat("cmd_set") - before[1]];
        (100 * gets / rounds, server.stat("curr_items")) // one record a round compares the clocks
    };
    let ((canaries, _), (witnesses, records)) = tokio::join!(reads(false), reads(true));
    assert!(
        witnesses > 0 && witnesses * 10 <= canaries,
        "gets in a hundred rounds: {canaries} without a mark, {witnesses} with one"
    );
    assert!(records < 2_560, "sentinels of the key were written beside those of the mark: {records} records");
}

/// memcached drops what was not read for longest, and each spend reads the witness beside the record.
#[tokio::test]
async fn eviction_is_noticed_although_it_spares_the_witnesses() {
    let server = Server::tcp(&["-m", "4"]);
    let mut options = refusing(&server, crate::support::pipelined());
    options.canary_interval = Duration::from_millis(100);
    let gateway = Gateway::start(options, epoch(), true).await;
    let mark = gateway.mark().await;
    let refused = eventually("eviction", async || {
        for token in gateway.tokens(2_000, mark) {
            match gateway.spend(&token).await {
                Ok(Spend::Admitted) => {}
                other => return Some(other),
            }
        }
        None
    })
    .await;
    assert_eq!(refused, Err(Unknown::RecordsLost));
    assert!(server.stat("evictions") > 0);
    assert_eq!(gateway.store.health().lost, [gateway.epoch.key]);
}

/// As the gateway does it.
#[tokio::test]
async fn a_key_that_the_chosen_store_is_offered_gets_a_mark() {
    let server = Server::tcp(&[]);
    let backend = Backend::Memcached(open(refusing(&server, crate::support::pipelined()), true));
    let epoch = epoch();
    backend.offer(&[epoch]);
    eventually("a mark on offer", async || {
        matches!(backend.binding(epoch.key), Binding::Offered(_)).then_some(())
    })
    .await;
    assert!(backend.ready().await.is_err(), "no runtime is connected");
    let _connected = backend.store();
    eventually("it is ready", async || backend.ready().await.ok()).await;
}

/// No round is due for an hour, and no connection breaks.
#[tokio::test]
async fn a_void_token_brings_the_next_mark_at_once() {
    let server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.canary_interval = Duration::from_secs(3600);
    let gateway = Gateway::start(options, epoch(), true).await;
    let first = gateway.mark().await;
    assert_eq!(gateway.spend(&gateway.token(first)).await, Ok(Spend::Admitted));
    tokio::time::sleep(Duration::from_secs(2)).await; // the first spend of a key wakes the watch, too
    eventually("a void token", async || {
        server.flush(); // which spares what was written in the same second
        (gateway.spend(&gateway.token(first)).await == Ok(Spend::Void)).then_some(())
    })
    .await;
    let next = gateway.mark_after(first).await;
    assert_eq!(gateway.spend(&gateway.token(next)).await, Ok(Spend::Admitted));
}

/// A router that parts buckets, or a server that evicts: spent records are lost, and the witnesses beside them are not.
#[tokio::test]
async fn a_loss_that_spares_witnesses_is_found_with_the_next_one_and_refused() {
    for (on_loss, refusal) in
        [(OnLoss::Refuse, Unknown::RecordsLost), (OnLoss::Retire, Unknown::EpochRetired)]
    {
        let server = Server::tcp(&[]);
        let mut options = options(vec![server.address()], crate::support::pipelined());
        (options.canary_interval, options.on_loss) = (Duration::from_millis(100), on_loss);
        let gateway = Gateway::start(options.clone(), epoch(), true).await;
        let mark = gateway.mark().await;
        let MarkRecords { witnesses, sentinels } = MarkRecords::of(&server).await;
        assert_eq!(gateway.store.health().lost, []);
        let (torn, parted) = (&witnesses[..100], &witnesses[100]);
        let beside = sentinels.iter().find(|key| key[..5] == parted[..5]).unwrap();
        // The sentinel first: the watch may count the loss while this goes on.
        for key in [beside].into_iter().chain(torn) {
            ask(&server, &format!("delete {key}"));
        }
        eventually("it is noticed", async || {
            let verdict = gateway.spend(&gateway.token(mark)).await;
            (verdict == Err(refusal)).then_some(())
        })
        .await;
        assert_eq!(gateway.store.health().lost, [gateway.epoch.key]);

        // A restart does not make it forgotten.
        options.canary_interval = Duration::from_secs(3600);
        let restarted = Gateway::start(options, gateway.epoch, true).await;
        eventually("it is read from the store", async || {
            (restarted.store.health().lost == [gateway.epoch.key]).then_some(())
        })
        .await;
        assert_eq!(restarted.spend(&restarted.token(mark)).await, Err(refusal));
    }
}
