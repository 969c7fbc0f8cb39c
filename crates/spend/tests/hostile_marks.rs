//! A server that answers wrongly to the `add` of a token that a mark binds, or to the `get` of the witness behind it:
//! nothing is admitted unless both answers allow it.

use crate::support::fake::{Fake, Step, Verb, send};
use crate::support::marked::{Gateway, Token};
use crate::support::{client, epoch, eventually, options, pooled};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_spend::memcached::{Options, Transport};
use postern_spend::{Spend, SpendStore, Unknown};
use postern_token::{Mark, UnixSeconds};
use std::time::Duration;

fn transports() -> [(&'static str, Transport); 2] {
    [("pipelined", Transport::Pipelined { queue: 64 }), ("pooled", pooled(2))]
}

struct Scene {
    fake: Fake,
    gateway: Gateway,
    mark: Mark,
    connections: usize,
}

impl Scene {
    /// The mark is planted, and the watch is silent from then on: what is planned meets callers alone.
    async fn set(transport: Transport, change: impl FnOnce(&mut Options)) -> Self {
        let fake = Fake::start();
        let connections = if let Transport::Pooled { size, .. } = transport { size } else { 1 };
        let mut options =
            Options { interval: Duration::from_secs(3600), ..options(vec![fake.address()], transport) };
        change(&mut options);
        let gateway = Gateway::start(options, epoch()).await;
        let mark = gateway.mark().await;
        Self { fake, gateway, mark, connections }
    }

    async fn connected(&self) {
        eventually("all connections are there", async || {
            (self.gateway.store.health().endpoints[0].connections == self.connections).then_some(())
        })
        .await;
    }

    /// A spend, of which the next command of this kind is answered so.
    async fn spend(
        &self,
        token: &Token,
        verb: Verb,
        writes: bool,
        steps: Vec<Step>,
    ) -> Result<Spend, Unknown> {
        self.connected().await;
        let acted = self.fake.plan(verb, writes, steps);
        let verdict = self.gateway.spend(token).await;
        assert!(acted.begun(), "the fake received no command");
        verdict
    }
}

/// The record may exist, but it proves nothing about its witness.
#[tokio::test]
async fn a_lost_answer_to_the_add_admits_nothing() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        let [written, spent, lost] = [(); 3].map(|()| scene.gateway.token(scene.mark));
        assert_eq!(scene.gateway.spend(&spent).await, Ok(Spend::Admitted), "{name}");
        for (token, writes) in [(&written, true), (&spent, false), (&lost, false)] {
            let verdict = scene.spend(token, Verb::Add, writes, vec![Step::Close]).await;
            assert!(verdict.is_err(), "{name}: {verdict:?}");
        }
        scene.connected().await;
        for token in [&written, &spent] {
            assert_eq!(scene.gateway.spend(token).await, Ok(Spend::AlreadySpent), "{name}");
        }
        scene.fake.assert_understood();
    }
}

#[tokio::test]
async fn a_stored_record_whose_witness_was_not_read_admits_nothing() {
    let cases: [(&str, Option<Unknown>, Vec<Step>); 5] = [
        ("an error", Some(Unknown::Rejected), vec![send(b"SERVER_ERROR\r\n")]),
        ("another reply", None, vec![send(b"STORED\r\n")]),
        ("a value that says no time", None, vec![send(b"VALUE {key} 0 7\r\n!!!!!!!\r\nEND\r\n")]),
        ("cut", None, vec![send(b"VALUE {key} 0 7\r\nAAA"), Step::Close]),
        ("closed", None, vec![Step::Close]),
    ];
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        for (what, reason, steps) in &cases {
            let token = scene.gateway.token(scene.mark);
            let verdict = scene.spend(&token, Verb::Get, false, steps.clone()).await;
            assert!(verdict.is_err(), "{name}, {what}: {verdict:?}");
            assert!(reason.is_none_or(|reason| verdict == Err(reason)), "{name}, {what}: {verdict:?}");
            scene.connected().await;
            assert_eq!(scene.gateway.spend(&token).await, Ok(Spend::AlreadySpent), "{name}, {what}");
        }
        let token = scene.gateway.token(scene.mark);
        let verdict = scene.spend(&token, Verb::Get, false, vec![send(b"END\r\n")]).await;
        assert_eq!(verdict, Ok(Spend::Void), "{name}: the server does not know the mark");
    }
}

#[tokio::test]
async fn a_witness_that_is_not_read_in_time_admits_nothing() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |options| options.timeout = Duration::from_secs(1)).await;
        let verdict = scene.spend(&scene.gateway.token(scene.mark), Verb::Get, false, vec![]).await;
        assert_eq!(verdict, Err(Unknown::TimedOut), "{name}");
    }
}

/// A record that ends before its witness would admit the token again.
#[tokio::test]
async fn a_witness_that_does_not_end_before_the_record_admits_nothing() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        assert_eq!(
            scene.gateway.spend(&scene.gateway.token(scene.mark)).await,
            Ok(Spend::Admitted),
            "{name}"
        );
        let with_it = scene.gateway.epoch.expires.0;
        for (end, expected) in [
            (with_it - 1, Ok(Spend::Admitted)),
            (with_it, Err(Unknown::Garbled)),
            (with_it, Ok(Spend::Admitted)), // records last for longer from then on
        ] {
            let value = URL_SAFE_NO_PAD.encode(&end.to_be_bytes()[3..]);
            scene.fake.alter(|(key, record)| {
                if key.starts_with('|') {
                    *record = value.clone().into_bytes();
                }
            });
            let verdict = scene.gateway.spend(&scene.gateway.token(scene.mark)).await;
            assert_eq!(verdict, expected, "{name}: {end}, records end at {with_it}");
        }
    }
}

/// Tokens of the buckets that do not know a mark would be void, so it is offered once all know it, or after ten seconds.
#[tokio::test]
async fn a_mark_that_some_buckets_do_not_know_waits() {
    let fake = Fake::start();
    fake.lose(|key| key.starts_with('|') && key.bytes().map(u32::from).sum::<u32>() % 4 == 0);
    let gateway = Gateway::start(options(vec![fake.address()], pooled(2)), epoch()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(gateway.store.binding(gateway.epoch.key), None);
    fake.lose(|_| false);
    gateway.mark().await;
    assert_eq!(gateway.store.health().torn, 0);
}

/// Behind a router whose servers are all down the connection stays, and each command is answered.
#[tokio::test]
async fn a_store_that_takes_no_record_ends_the_service_until_it_does() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        let spend = async || scene.gateway.spend(&scene.gateway.token(scene.mark)).await;
        assert_eq!(spend().await, Ok(Spend::Admitted), "{name}");
        scene.fake.lose(|_| true);
        eventually("no token is read", async || {
            assert_ne!(spend().await, Ok(Spend::Admitted), "{name}");
            scene.gateway.client.serving().err()
        })
        .await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await; // the watch tries to write
            assert!(scene.gateway.client.serving().is_err(), "{name}");
        }
        scene.fake.lose(|_| false);
        eventually("tokens are read", async || scene.gateway.client.serving().ok()).await;
        assert_eq!(spend().await, Ok(Spend::Admitted), "{name}");
    }
}

/// Whether the store takes any record is tried at once, whenever the next round is due: until then it counts as away.
#[tokio::test]
async fn a_rejected_record_wakes_the_watch() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        let full = vec![send(b"SERVER_ERROR out of memory storing object\r\n")];
        let verdict = scene.spend(&scene.gateway.token(scene.mark), Verb::Add, false, full).await;
        assert_eq!(verdict, Err(Unknown::Rejected), "{name}");
        let rejects = || scene.gateway.store.health().endpoints[0].rejects;
        eventually("a record was taken", async || (!rejects()).then_some(())).await;
    }
}

/// The watch was connected all the time, and no round is due for an hour: what it saw while clients were away is of no use when
/// they are back.
#[tokio::test]
async fn a_store_that_was_lost_is_looked_at_before_it_serves_again() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        let ready = async || scene.gateway.store.health().ready;
        eventually("it is ready", async || ready().await.ok()).await;
        scene.connected().await;
        scene.fake.limit(1); // the watch has it
        while ready().await.is_ok() {
            scene.fake.plan(Verb::Add, false, vec![Step::Close]);
            let verdict = scene.gateway.spend(&scene.gateway.token(scene.mark)).await;
            assert!(verdict.is_err(), "{name}: {verdict:?}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await; // the watch looks, and not again until it is woken
        scene.fake.empty();
        scene.fake.limit(usize::MAX);
        eventually("clients are back", async || scene.gateway.client.serving().ok()).await;
        eventually("it is ready again", async || ready().await.ok()).await;
        assert_ne!(scene.gateway.store.binding(scene.gateway.epoch.key), Some(scene.mark), "{name}");
    }
}

/// A server that sends one `STORED` too many, at a random place among the commands of 64 callers of two runtimes: the replies
/// behind it belong to other commands. Nothing is admitted or called spent by a reply that is not its own.
#[tokio::test]
async fn a_stored_too_many_shifts_no_verdict() {
    const CALLERS: usize = 64;
    for (name, transport) in [("pipelined", Transport::Pipelined { queue: 256 }), ("pooled", pooled(8))] {
        let scene = Scene::set(transport, |_| ()).await;
        let clients = [scene.gateway.client.clone(), client(&scene.gateway.store).await];
        let (mut right, mut unknown) = (0, 0);
        for _ in 0..40 {
            // Every second one has been spent before.
            let tokens = scene.gateway.tokens(CALLERS, scene.mark);
            for token in tokens.iter().step_by(2) {
                let spent = || async { scene.gateway.spend(token).await.ok() };
                assert_eq!(eventually("a token is spent", spent).await, Spend::Admitted, "{name}");
            }
            for client in &clients {
                eventually("each client is connected", async || client.serving().ok()).await;
            }
            let surplus = [vec![Step::Honest, send(b"STORED\r\n")], vec![send(b"STORED\r\n"), Step::Honest]];
            let steps = surplus[rand::random_range(0..2)].clone();
            scene.fake.plan_after(rand::random_range(0..CALLERS), Verb::Add, true, steps);
            let spends: Vec<_> = tokens
                .iter()
                .enumerate()
                .map(|(index, token)| {
                    let client = clients[index / 2 % 2].clone();
                    let (key, epoch) = (token.key, scene.gateway.epoch_of(token));
                    tokio::spawn(async move { client.spend(&key, &epoch, UnixSeconds::now()).await })
                })
                .collect();
            for (index, spend) in spends.into_iter().enumerate() {
                match spend.await.unwrap() {
                    Err(_) => unknown += 1,
                    Ok(verdict) => {
                        let own = if index % 2 == 0 { Spend::AlreadySpent } else { Spend::Admitted };
                        assert_eq!(verdict, own, "{name}: caller {index}, after {right} right verdicts");
                        right += 1;
                    }
                }
            }
        }
        println!("{name}: {right} verdicts were right, {unknown} unknown, none wrong");
        assert!(right > 0 && unknown > 0, "{name}: {right} right, {unknown} unknown");
    }
}
