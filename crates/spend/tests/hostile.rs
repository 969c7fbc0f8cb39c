//! The shared store and a server that answers wrongly, too much, too slowly or never: nothing is admitted that was not
//! stored, a connection that cannot be trusted is dropped, later callers get right answers, memory stays bounded.

use crate::support::fake::{Acted, Fake, Step, Verb, send};
use crate::support::{begun, eventually, fresh, options, pipelined, pooled};
use postern_spend::memcached::{Client, Memcached, Options, Transport};
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
    _store: Memcached,
    client: Client,
    epoch: Epoch,
    spent: SpentKey,
}

impl Scene {
    async fn set(transport: Transport, change: impl FnOnce(&mut Options)) -> Self {
        let fake = Fake::start();
        // The mark is planted, and the watch is silent from then on: what is counted comes from callers alone.
        let mut options =
            Options { interval: Duration::from_secs(3600), ..options(vec![fake.address()], transport) };
        change(&mut options);
        let store = Memcached::open(options).unwrap();
        let (client, epoch) = begun(&store).await;
        let spent = fresh(&epoch);
        let scene = Self { fake, _store: store, client, epoch, spent };
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
        wrong("silence", LATE, vec![Step::Silence]),
        wrong("an oversized line", GARBLED, vec![send(&oversized)]),
        wrong("an endless error", GARBLED, endless(&[b"SERVER_ERROR ".as_slice(), &[b'x'; 4096]].concat())),
        wrong("an endless line", GARBLED, endless(&[b'x'; 4096])),
        wrong("endless zeros", GARBLED, endless(&[0; 4096])),
        wrong("an error cut, then silence", LATE, vec![send(b"SERVER_ERROR out of mem"), Step::Silence]),
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
        wrong("STORED cut, then silence", LATE, vec![send(b"STORED"), Step::Silence]),
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
        garbled("VALUE {key} 0 7\r\nabcdefg\r\nEND\r\n"),
        garbled("VALUE {key} 0 1000000000000\r\n"),
    ]);
    all
}

fn wrong_for_get() -> Vec<Wrong> {
    const OTHER: &str = "VALUE |AAAA|#|AAAAAAAAAAAAAAAAAAAAAA 0 7\r\nabcdefg\r\nEND\r\n";
    let endless = [b"VALUE {key} 0 7\r\n".as_slice(), &[b'x'; 4096]].concat();
    let mut all = wrong_for_all();
    all.extend([
        wrong("VALUE cut, then close", BROKEN, vec![send(b"VALUE {key} 0 7\r\nabc"), Step::Close]),
        wrong("VALUE cut, then silence", LATE, vec![send(b"VALUE {key} 0 7\r\nabc")]),
        wrong("VALUE without END", LATE, vec![send(b"VALUE {key} 0 7\r\nabcdefg\r\n")]),
        wrong("an endless value", GARBLED, vec![Step::Endlessly(endless)]),
        wrong("END too slowly", LATE, vec![Step::Slowly(b"END\r\n".to_vec(), SHORT / 2)]),
        garbled(OTHER),
        garbled("VALUE {key} 0 1000000000000\r\n"),
        garbled("VALUE {key} 0 18446744073709551616\r\n"),
        garbled("VALUE {key} 0 -1\r\n"),
        garbled("VALUE {key} 0 8\r\nabcdefgh\r\nEND\r\n"),
        garbled("VALUE {key} 1 7\r\nabcdefg\r\nEND\r\n"),
        garbled("VALUE {key} 0 7 7\r\nabcdefg\r\nEND\r\n"),
        garbled("VALUE {key}\r\n"),
        garbled("END \r\n"),
        garbled("STORED\r\n"),
        garbled("NOT_STORED\r\n"),
    ]);
    all
}

/// Asserts that the client took no more than sockets buffer before it closed, of the 64 MiB that the fake had.
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
        let rest = vec![send(b"{key} 0 7\r\nabcde"), slowly(b"fg\r\nEND\r\n").remove(0)];
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
    let before_the_witness = [
        ("at once", vec![send(b"STORED\r\nSTORED\r\n")]),
        ("a part of it", vec![send(b"STORED\r\nS")]),
        ("later", vec![send(b"STORED\r\n"), pause.clone(), send(b"STORED\r\n")]),
        ("later, a part of it", vec![send(b"STORED\r\n"), pause.clone(), send(b"STOR")]),
    ];
    let behind_the_exchange = [
        ("at once", vec![Step::Honest, send(b"STORED\r\n")]),
        ("a part of it", vec![Step::Honest, send(b"S")]),
        ("later", vec![Step::Honest, pause.clone(), send(b"STORED\r\n")]),
        ("later, a part of it", vec![Step::Honest, pause, send(b"STOR")]),
    ];
    for (name, transport) in transports() {
        // A pipeline reads the witness, and what takes it back, by one `get`.
        let last = usize::from(name == "pooled");
        for (verb, after, second) in
            [(Verb::Add, 0, &before_the_witness), (Verb::Get, last, &behind_the_exchange)]
        {
            for (when, steps) in second {
                let name = format!("{name}, behind the {verb:?}, {when}");
                let scene = Scene::set(transport.clone(), |options| options.timeout = SHORT).await;
                let acted = scene.fake.plan_after(after, verb, true, steps.clone());
                let first = scene.spend(&fresh(&scene.epoch)).await;
                // Behind the exchange it may come too late to be seen in it.
                let is_late = verb == Verb::Get && first == Ok(Spend::Admitted);
                assert!(is_late || first == Err(Unknown::Garbled), "{name}: {first:?}");
                eventually("the second reply is sent", || async { acted.done().then_some(()) }).await;
                // Loopback delivers before the sender continues, so the reply is there. Now this runtime looks.
                tokio::task::yield_now().await;
                let replay = scene.spend_when_up(&scene.spent).await;
                assert_eq!(replay, Spend::AlreadySpent, "{name}: a replay");
                dropped(&acted, &name).await;
                scene.assert_well().await;
            }
        }
    }
}

/// Returns replies that are none to a command of this kind.
fn nonsense(verb: Verb) -> [(&'static str, Vec<Step>); 4] {
    let (other, begun) = match verb {
        Verb::Add => (b"END\r\n".as_slice(), b"STORE".as_slice()),
        _ => (b"STORED\r\n".as_slice(), b"VALU".as_slice()),
    };
    [
        ("another reply", vec![send(other)]),
        ("cut and closed", vec![send(begun), Step::Close]),
        ("cut and silent", vec![send(begun), Step::Silence]),
        ("reset", vec![send(begun), Step::Reset]),
    ]
}

/// Of many callers at once, those whose answers came before the nonsense have theirs, the others have none, and no
/// caller gets another's answer.
#[tokio::test]
async fn nonsense_among_many_callers_admits_nobody_else() {
    const CALLERS: usize = 64;
    for (name, transport) in [("pipelined", pipelined()), ("pooled", pooled(8))] {
        // A pipeline sends all records of a burst before its witnesses, and reads those of sixteen callers by one `get`.
        let gets = if name == "pipelined" { 1 } else { 20 };
        for (verb, after) in [(Verb::Add, 20), (Verb::Get, gets)] {
            for (what, steps) in nonsense(verb) {
                let what = format!("{name}, {what} to a {verb:?}");
                let scene = Scene::set(transport.clone(), |options| options.timeout = SHORT).await;
                let acted = scene.fake.plan_after(after, verb, false, steps);
                let mut callers = tokio::task::JoinSet::new();
                for _ in 0..CALLERS {
                    let (client, epoch, key) = (scene.client.clone(), scene.epoch, fresh(&scene.epoch));
                    callers.spawn(async move { (key, client.spend(&key, &epoch, UnixSeconds::now()).await) });
                }
                let verdicts = callers.join_all().await;
                let of = |wanted| verdicts.iter().filter(|(_, verdict)| *verdict == Ok(wanted)).count();
                assert_eq!(of(Spend::AlreadySpent) + of(Spend::Void), 0, "{what}: all were fresh");
                let admitted = of(Spend::Admitted);
                let some = admitted > 0 || (name, verb) == ("pipelined", Verb::Add);
                assert!(some && admitted < CALLERS, "{what}: {admitted} admitted");
                gone(&acted, &what).await; // the commands of others had been sent on it before
                for (key, verdict) in &verdicts {
                    let is_held = scene.fake.holds(key);
                    assert!(is_held || *verdict != Ok(Spend::Admitted), "{what}: admitted and not stored");
                    let again = if is_held { Spend::AlreadySpent } else { Spend::Admitted };
                    assert_eq!(scene.spend_when_up(key).await, again, "{what}: after {verdict:?}");
                }
                scene.assert_well().await;
            }
        }
    }
}
