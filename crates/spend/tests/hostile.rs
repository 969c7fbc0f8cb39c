//! The shared store and a server that answers wrongly, too much, too slowly or never: nothing is admitted that was not
//! stored, a connection that cannot be trusted is dropped, later callers get right answers, memory stays bounded.

use crate::support::fake::{Acted, Fake, Step, Verb, send};
use crate::support::{client, epoch, eventually, fresh, options, pipelined, pooled};
use postern_spend::memcached::{Client, Memcached, OnLoss, Options, Transport};
use postern_spend::{Epoch, Hint, Spend, SpendStore, Unknown};
use postern_token::{SpentKey, UnixSeconds};
use std::time::Duration;

/// A deadline that the cases which wait for it are done with soon.
const SHORT: Duration = Duration::from_secs(1);

/// Both transports with one connection, so that who comes next comes to the same one.
fn transports() -> [(&'static str, Transport); 2] {
    [("pipelined", pipelined()), ("pooled", pooled(1))]
}

/// A fake, a store on it, and a token that has been spent there.
struct Scene {
    fake: Fake,
    store: Memcached,
    client: Client,
    epoch: Epoch,
    spent: SpentKey,
}

impl Scene {
    async fn set(transport: Transport, change: impl FnOnce(&mut Options)) -> Self {
        let fake = Fake::start();
        // The canaries are read once: what is counted comes from callers alone.
        let mut options = Options {
            canary_interval: Duration::from_secs(3600),
            ..options(vec![fake.address()], transport)
        };
        change(&mut options);
        let store = Memcached::open(options).unwrap();
        let client = client(&store).await;
        let epoch = epoch();
        let spent = fresh(&epoch);
        let scene = Self { fake, store, client, epoch, spent };
        assert_eq!(scene.spend(&spent).await, Ok(Spend::Admitted));
        scene
    }

    async fn spend(&self, key: &SpentKey) -> Result<Spend, Unknown> {
        self.client.spend(key, &self.epoch, UnixSeconds::now()).await
    }

    async fn check(&self, key: &SpentKey) -> Result<Hint, Unknown> {
        self.client.check(key, &self.epoch).await
    }

    /// A spend that waits for a connection to be there; any other doubt is a failure.
    async fn spend_when_up(&self, key: &SpentKey) -> Spend {
        eventually("a spend is answered", || async {
            match self.spend(key).await {
                Ok(verdict) => Some(verdict),
                Err(Unknown::Unavailable(_)) => None,
                Err(other) => panic!("{other}"),
            }
        })
        .await
    }

    /// Later callers get right answers.
    async fn assert_well(&self) {
        let key = fresh(&self.epoch);
        assert_eq!(self.spend_when_up(&key).await, Spend::Admitted);
        assert_eq!(self.spend_when_up(&key).await, Spend::AlreadySpent);
        assert_eq!(self.spend_when_up(&self.spent).await, Spend::AlreadySpent);
        assert_eq!(self.check(&self.spent).await, Ok(Hint::Spent));
        assert_eq!(self.check(&fresh(&self.epoch)).await, Ok(Hint::NotFound));
        self.fake.assert_understood();
    }
}

async fn dropped(acted: &Acted, name: &str) {
    gone(acted, name).await;
    assert!(!acted.reused(), "{name}: a connection was used again that could not be trusted");
}

async fn gone(acted: &Acted, name: &str) {
    eventually(&format!("{name}: the connection is dropped"), || async { acted.dropped().then_some(()) })
        .await;
}

/// A wrong answer, and the reasons for which it may be unknown.
struct Wrong {
    name: &'static str,
    steps: Vec<Step>,
    reasons: &'static [&'static str],
}

const BROKEN: &[&str] = &["unavailable", "garbled"];
const GARBLED: &[&str] = &["garbled"];
const LATE: &[&str] = &["timed_out"];

fn wrong(name: &'static str, reasons: &'static [&'static str], steps: Vec<Step>) -> Wrong {
    Wrong { name, steps, reasons }
}

fn garbled(reply: &'static str) -> Wrong {
    wrong(reply, GARBLED, vec![send(reply.as_bytes())])
}

/// Wrong as a reply to any command.
fn wrong_for_all() -> Vec<Wrong> {
    let endless = |text: &[u8]| vec![Step::Endlessly(text.to_vec())];
    let oversized = [b"SERVER_ERROR ".as_slice(), &[b'x'; 4096], b"\r\n"].concat();
    vec![
        wrong("nothing, then close", BROKEN, vec![Step::Close]),
        wrong("nothing, then reset", BROKEN, vec![Step::Reset]),
        wrong("silence", LATE, vec![]),
        wrong("an oversized line", GARBLED, vec![send(&oversized)]),
        wrong("an endless error", GARBLED, endless(&[b"SERVER_ERROR ".as_slice(), &[b'x'; 4096]].concat())),
        wrong("an endless line", GARBLED, endless(&[b'x'; 4096])),
        wrong("endless zeros", GARBLED, endless(&[0; 4096])),
        wrong("an error cut, then silence", LATE, vec![send(b"SERVER_ERROR out of mem")]),
        wrong("an error cut, then close", BROKEN, vec![send(b"SERVER_ERROR out of mem"), Step::Close]),
        garbled("ERROR\r\n"),
        garbled("CLIENT_ERROR bad data chunk\r\n"),
        garbled("SERVER_ERRORS\r\n"),
        garbled("\r\n"),
        garbled("VERSION 1.6.18\r\n"),
    ]
}

fn wrong_for_add() -> Vec<Wrong> {
    let mut all = wrong_for_all();
    all.extend([
        wrong("STORED cut, then close", BROKEN, vec![send(b"STORED\r"), Step::Close]),
        wrong("STORED cut, then reset", BROKEN, vec![send(b"STOR"), Step::Reset]),
        wrong("STORED cut, then silence", LATE, vec![send(b"STORED")]),
        wrong("STORED too slowly", LATE, vec![Step::Slowly(b"STORED\r\n".to_vec(), SHORT / 2)]),
        wrong("NOT_STORED cut, then close", BROKEN, vec![send(b"NOT_STORED\r"), Step::Close]),
        garbled("STORED \r\n"),
        garbled("STORED\n"),
        garbled("STORED\r\r\n"),
        garbled(" STORED\r\n"),
        garbled("stored\r\n"),
        garbled("OK\r\n"),
        garbled("EXISTS\r\n"),
        garbled("HD\r\n"),
        garbled("END\r\n"),
        garbled("VALUE {key} 0 22\r\nabcdefghijklmnopqrstuv\r\nEND\r\n"),
        garbled("VALUE {key} 0 1000000000000\r\n"),
    ]);
    all
}

fn wrong_for_get() -> Vec<Wrong> {
    const OTHER: &str =
        "VALUE ps1.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA 0 22\r\nabcdefghijklmnopqrstuv\r\nEND\r\n";
    let endless = [b"VALUE {key} 0 22\r\n".as_slice(), &[b'x'; 4096]].concat();
    let mut all = wrong_for_all();
    all.extend([
        wrong("VALUE cut, then close", BROKEN, vec![send(b"VALUE {key} 0 22\r\nabc"), Step::Close]),
        wrong("VALUE cut, then silence", LATE, vec![send(b"VALUE {key} 0 22\r\nabc")]),
        wrong("VALUE without END", LATE, vec![send(b"VALUE {key} 0 22\r\nabcdefghijklmnopqrstuv\r\n")]),
        wrong("an endless value", GARBLED, vec![Step::Endlessly(endless)]),
        wrong("END too slowly", LATE, vec![Step::Slowly(b"END\r\n".to_vec(), SHORT / 2)]),
        garbled(OTHER),
        garbled("VALUE {key} 0 1000000000000\r\n"),
        garbled("VALUE {key} 0 18446744073709551616\r\n"),
        garbled("VALUE {key} 0 -1\r\n"),
        garbled("VALUE {key} 0 23\r\nabcdefghijklmnopqrstuvw\r\nEND\r\n"),
        garbled("VALUE {key} 1 22\r\nabcdefghijklmnopqrstuv\r\nEND\r\n"),
        garbled("VALUE {key} 0 22 7\r\nabcdefghijklmnopqrstuv\r\nEND\r\n"),
        garbled("VALUE {key}\r\n"),
        garbled("END \r\n"),
        garbled("STORED\r\n"),
        garbled("NOT_STORED\r\n"),
    ]);
    all
}

/// What the fake could send before the client closed: the sockets' buffers, and not the 64 MiB it had.
fn assert_bounded(acted: &Acted, name: &str) {
    assert!(acted.pushed() < 16 << 20, "{name}: {} bytes were taken", acted.pushed());
}

/// The most memory this process ever reserved, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

async fn answers_wrongly(transport: Transport, verb: Verb, case: Wrong) {
    let name = case.name.escape_default().to_string();
    let scene = Scene::set(transport, |options| options.timeout = SHORT).await;
    for writes in [true, false] {
        let acted = scene.fake.plan(verb, writes, case.steps.clone());
        let key = fresh(&scene.epoch);
        let reason = match verb {
            Verb::Add => scene.spend(&key).await.map(|verdict| format!("{verdict:?}")),
            _ => scene.check(&key).await.map(|seen| format!("{seen:?}")),
        }
        .map_err(Unknown::reason);
        assert!(acted.begun(), "{name}: the fake received no command");
        assert!(reason.as_ref().is_err_and(|reason| case.reasons.contains(reason)), "{name}: {reason:?}");
        dropped(&acted, &name).await;
        assert_bounded(&acted, &name);
        if verb == Verb::Add {
            let expected = if writes { Spend::AlreadySpent } else { Spend::Admitted };
            assert_eq!(scene.spend_when_up(&key).await, expected, "{name}: the record is what it was");
        }
        scene.assert_well().await;
    }
    assert!(peak() < 64 << 30, "{name}: {} bytes reserved", peak());
}

async fn all_wrong(transport: fn() -> Transport, verb: Verb, cases: Vec<Wrong>) {
    let mut running = tokio::task::JoinSet::new();
    for case in cases {
        running.spawn(answers_wrongly(transport(), verb, case));
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn wrong_answers_to_an_add_over_the_pipelined_transport() {
    all_wrong(pipelined, Verb::Add, wrong_for_add()).await;
}

#[tokio::test]
async fn wrong_answers_to_an_add_over_the_pooled_transport() {
    all_wrong(|| pooled(1), Verb::Add, wrong_for_add()).await;
}

#[tokio::test]
async fn wrong_answers_to_a_get_over_the_pipelined_transport() {
    all_wrong(pipelined, Verb::Get, wrong_for_get()).await;
}

#[tokio::test]
async fn wrong_answers_to_a_get_over_the_pooled_transport() {
    all_wrong(|| pooled(1), Verb::Get, wrong_for_get()).await;
}

/// An error of the server's is an answer: unknown, and the connection is in order.
#[tokio::test]
async fn a_server_error_keeps_the_connection() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        for text in ["SERVER_ERROR\r\n", "SERVER_ERROR out of memory storing object\r\n"] {
            let connections = scene.fake.accepted();
            let acted = scene.fake.plan(Verb::Add, false, vec![send(text.as_bytes())]);
            assert_eq!(scene.spend(&fresh(&scene.epoch)).await, Err(Unknown::Rejected), "{name}");
            let asked = scene.fake.plan(Verb::Get, false, vec![send(text.as_bytes())]);
            assert_eq!(scene.check(&scene.spent).await, Err(Unknown::Rejected), "{name}");
            scene.assert_well().await;
            assert!(acted.reused() && !acted.dropped() && asked.reused() && !asked.dropped(), "{name}");
            assert_eq!(scene.fake.accepted(), connections, "{name}");
        }
    }
}

/// Bytes that come one by one, but in time, are a good answer.
#[tokio::test]
async fn slow_bytes_within_the_deadline_are_an_answer() {
    let slowly = |text: &[u8]| vec![Step::Slowly(text.to_vec(), Duration::from_millis(3))];
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |_| ()).await;
        let connections = scene.fake.accepted();
        scene.fake.plan(Verb::Add, true, slowly(b"STORED\r\n"));
        assert_eq!(scene.spend(&fresh(&scene.epoch)).await, Ok(Spend::Admitted), "{name}");
        scene.fake.plan(Verb::Add, true, slowly(b"NOT_STORED\r\n"));
        assert_eq!(scene.spend(&scene.spent).await, Ok(Spend::AlreadySpent), "{name}");
        let hit = slowly(b"VALUE ");
        let rest = vec![send(b"{key} 0 22\r\nabcdefghijklmnopqrst"), slowly(b"uv\r\nEND\r\n").remove(0)];
        scene.fake.plan(Verb::Get, true, [hit, rest].concat());
        assert_eq!(scene.check(&scene.spent).await, Ok(Hint::Spent), "{name}");
        scene.assert_well().await;
        assert_eq!(scene.fake.accepted(), connections, "{name}: the connection was kept");
    }
}

/// One reply too many would be taken for the answer to the next command, and a replay be admitted.
#[tokio::test]
async fn a_second_reply_is_nobodys() {
    let pause = Step::Pause(Duration::from_millis(20));
    let second = [
        ("at once", vec![send(b"STORED\r\nSTORED\r\n")]),
        ("a part of it", vec![send(b"STORED\r\nS")]),
        ("later", vec![send(b"STORED\r\n"), pause.clone(), send(b"STORED\r\n")]),
        ("later, a part of it", vec![send(b"STORED\r\n"), pause, send(b"STOR")]),
    ];
    for (name, transport) in transports() {
        for (when, steps) in &second {
            let scene = Scene::set(transport.clone(), |options| options.timeout = SHORT).await;
            let last: usize =
                steps.iter().map(|step| if let Step::Send(bytes) = step { bytes.len() } else { 0 }).sum();
            let acted = scene.fake.plan(Verb::Add, true, steps.clone());
            let first = scene.spend(&fresh(&scene.epoch)).await;
            assert!(
                matches!(first, Ok(Spend::Admitted) | Err(Unknown::Garbled)),
                "{name}, {when}: {first:?}"
            );
            let sent = || async { (acted.pushed() == last as u64).then_some(()) };
            eventually("the second reply is sent", sent).await;
            // It has been sent, so it is there: loopback delivers before the sender goes on. And now this runtime
            // looks.
            tokio::task::yield_now().await;
            let replay = scene.spend_when_up(&scene.spent).await;
            assert_eq!(replay, Spend::AlreadySpent, "{name}, {when}: a replay");
            dropped(&acted, &format!("{name}, {when}")).await;
            scene.assert_well().await;
        }
    }
}

/// Of many callers at once, those whose answers came before the nonsense have theirs, the others have none, and no
/// caller gets another's answer.
#[tokio::test]
async fn nonsense_among_many_callers_admits_nobody_else() {
    const CALLERS: usize = 64;
    let steps: [(&str, Vec<Step>); 4] = [
        ("another reply", vec![send(b"END\r\n")]),
        ("cut and closed", vec![send(b"STORE"), Step::Close]),
        ("cut and silent", vec![send(b"STORE")]),
        ("reset", vec![send(b"ST"), Step::Reset]),
    ];
    for (name, transport) in [("pipelined", pipelined()), ("pooled", pooled(8))] {
        for (what, steps) in &steps {
            let scene = Scene::set(transport.clone(), |options| options.timeout = SHORT).await;
            let before = scene.fake.spent();
            let acted = scene.fake.plan_after(20, Verb::Add, false, steps.clone());
            let keys: Vec<SpentKey> = (0..CALLERS).map(|_| fresh(&scene.epoch)).collect();
            let mut callers = tokio::task::JoinSet::new();
            for key in keys.clone() {
                let (client, epoch) = (scene.client.clone(), scene.epoch);
                callers.spawn(async move { client.spend(&key, &epoch, UnixSeconds::now()).await });
            }
            let verdicts = callers.join_all().await;
            let admitted = verdicts.iter().filter(|verdict| **verdict == Ok(Spend::Admitted)).count();
            assert!(!verdicts.contains(&Ok(Spend::AlreadySpent)), "{name}, {what}: all were fresh");
            assert!(admitted > 0 && admitted < CALLERS, "{name}, {what}: {admitted} admitted");
            assert!(admitted <= scene.fake.spent() - before, "{name}, {what}: admitted and not stored");
            gone(&acted, name).await; // the commands of others had been sent on it before
            let mut again = 0;
            for key in &keys {
                again += usize::from(scene.spend_when_up(key).await == Spend::Admitted);
            }
            assert!(admitted + again <= CALLERS, "{name}, {what}: a token was admitted twice");
            scene.assert_well().await;
        }
    }
}

/// The record may be the token's second one.
#[tokio::test]
async fn what_is_stored_while_a_loss_is_noticed_is_not_admitted() {
    for (name, transport) in transports() {
        let scene = Scene::set(transport, |options| {
            (options.canary_interval, options.on_loss) = (Duration::from_millis(100), OnLoss::Refuse);
        })
        .await;
        scene.fake.plan(Verb::Add, true, vec![Step::Wait, Step::Honest]);
        let key = fresh(&scene.epoch);
        let (verdict, ()) = tokio::join!(scene.spend(&key), async {
            // A letter that says: lost, and written again.
            scene.fake.alter(|(key, value)| value[0] = if key.starts_with("pc1.") { b'l' } else { value[0] });
            let noticed = || async { (scene.store.health().lost == [scene.epoch.key]).then_some(()) };
            eventually("the loss is noticed", noticed).await;
            scene.fake.go_on();
        });
        assert_eq!(verdict, Err(Unknown::RecordsLost), "{name}");
    }
}

/// After an `add` without a reply the record is read over another connection. A record of the same attempt is an
/// admission only if the operator configured that a record has one copy; another attempt's is always a replay.
#[tokio::test]
async fn whose_record_it_is_decides_after_an_answer_was_lost() {
    let two = Transport::Pipelined { connections: 2, queue: 64 };
    for (name, transport) in [("pipelined", two), ("pooled", pooled(2))] {
        for ask_whose in [true, false] {
            let scene = Scene::set(transport.clone(), |options| options.ask_whose = ask_whose).await;
            let lost = async |writes, key: SpentKey| {
                let both = || async { (scene.store.health().endpoints[0].connections == 2).then_some(()) };
                eventually("both connections are there", both).await;
                let acted = scene.fake.plan(Verb::Add, writes, vec![Step::Close]);
                let verdict = scene.spend(&key).await;
                dropped(&acted, name).await;
                verdict
            };
            let own = lost(true, fresh(&scene.epoch)).await;
            assert!(if ask_whose { own == Ok(Spend::Admitted) } else { own.is_err() }, "{name}: {own:?}");
            assert_eq!(lost(true, scene.spent).await, Ok(Spend::AlreadySpent), "{name}");
            assert!(lost(false, fresh(&scene.epoch)).await.is_err(), "{name}: it may be on its way");
            scene.assert_well().await;
        }
    }
}
