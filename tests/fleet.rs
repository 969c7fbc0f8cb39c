//! Four gateway processes over one store of spent tokens: tokens, each presented eight times at once at random gateways and once more
//! afterwards, while connections are cut and memcacheds are frozen and killed. A third of the presentations ask for UDP. Never two
//! tunnels for a token. Every answer is written to a file, which a checker reads that had no part in the run; stores that are broken
//! on purpose show that it catches them.

mod blind;
mod broken;
mod checker;
mod driver;
mod emptied;
mod faults;
mod history;
mod loss;
mod lying_store;
mod marks;
mod minted;
mod outage;
mod replicas;
mod seed;

use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::router::{JSON_LIST, Router, with_servers};
use checker::{Claim, Summary};
use driver::{Fleet, Route, four};
use faults::{Deployment, Fault};
use history::{Answer, Line, Presentation};
use minted::{RESERVE, Turn, races};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A run that ends with a server's death for good.
const FOREVER: Duration = Duration::from_secs(86_400);

/// One memcached: it may be slow, connections may break; its death is the end of admissions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_memcached_admits_each_token_once() {
    let (turn, tokens) = (Turn::take().await, races());
    let server = Memcached::start();
    let relays = vec![Relay::to(&[server.port()])];
    let mut deployment = Deployment { relays, servers: vec![server], fallible: 0..1 };
    let fleet =
        Fleet::ready(&turn, TempDir::new().unwrap(), &four(&deployment.endpoints(), ""), tokens + RESERVE)
            .await;
    race_through(&fleet, &mut deployment, &[Fault::Cut, Fault::Cut, Fault::Freeze, Fault::Freeze]).await;

    let from = fleet.history.now();
    deployment.servers[0].kill();
    fleet.history.write_outage(from, FOREVER, "the server is dead");
    fleet.race(tokens..tokens + 50).await;
    let summary = fleet.verdict(0..tokens + 50, Claim::OneWins);
    assert_quiet_runs(summary);
    assert_eq!(opened_after(&fleet, from), 0, "a dead server admitted");
}

/// Three memcacheds behind two twemproxies that never eject a server: its death is the end of admissions for its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_memcacheds_behind_two_twemproxies_admit_each_token_once() {
    let (turn, tokens) = (Turn::take().await, races());
    let home = TempDir::new().unwrap();
    let servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let routers: Vec<_> = (0..2).map(|_| Router::twemproxy(home.path(), &servers)).collect();
    let relays = routers.iter().map(|router| Relay::to(&[router.port()])).collect();
    let mut deployment = Deployment { relays, servers, fallible: 0..3 };
    let fleet = Fleet::ready(&turn, home, &four(&deployment.endpoints(), ""), tokens + RESERVE).await;
    let faults = [Fault::Cut, Fault::Cut, Fault::Freeze, Fault::Freeze];
    race_through(&fleet, &mut deployment, &faults).await;

    let from = fleet.history.now();
    deployment.servers[1].kill();
    fleet.history.write_outage(from, FOREVER, "one of three servers is dead");
    fleet.race(tokens..tokens + 200).await;
    let summary = fleet.verdict(0..tokens + 200, Claim::OneWins);
    assert_quiet_runs(summary);
    let opened = opened_after(&fleet, from);
    println!("{opened} of 200 tokens opened a tunnel with one of three servers dead");
    assert!((1..200).contains(&opened), "its keys are refused, and the others' are not: {opened} of 200");
}

/// Three replicas that vote, of which one at a time freezes or is cut off: no answer is an error, and a race may have no winner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_admit_each_token_once() {
    let (turn, tokens) = (Turn::take().await, races());
    let servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let relays = servers.iter().map(|server| Relay::to(&[server.port()])).collect();
    let mut deployment = Deployment { relays, servers, fallible: 0..3 };
    let routes = vec![Route::voting(&deployment.endpoints(), ""); 4];
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes, tokens + RESERVE).await;
    let faults = [Fault::Cut, Fault::Cut, Fault::Freeze, Fault::Freeze];
    race_through(&fleet, &mut deployment, &faults).await;
    deployment.servers[0].kill();
    fleet.race(tokens..tokens + 200).await;
    let summary = fleet.verdict(0..tokens + 200, Claim::TiesLose);
    println!("{} of {} races had no winner", summary.tied, tokens + 200);
    assert!(summary.opened * 10 > tokens * 8, "{summary:?}");
}

#[test]
fn a_configuration_gets_other_servers() {
    let servers = [Memcached::absent(), Memcached::absent()];
    let [a, b] = [0, 1].map(|index: usize| servers[index].address());
    let config = "{\"a\": {\"servers\": [\"10.0.0.1:1\"], // one\n\"b\": [1]}";
    assert_eq!(
        with_servers(config, JSON_LIST, ']', &servers),
        format!("{{\"a\": {{\"servers\": [\"{a}\", \"{b}\"], // one\n\"b\": [1]}}")
    );
}

/// Presents the race's tokens while the deployment suffers, and each once more when it has recovered.
async fn race_through(fleet: &Arc<Fleet>, deployment: &mut Deployment, faults: &[Fault]) {
    let tokens = races();
    let racing = tokio::spawn({
        let fleet = Arc::clone(fleet);
        async move { fleet.race(0..tokens).await }
    });
    deployment.suffer(fleet, tokens, faults).await;
    racing.await.unwrap();
    let began = Instant::now();
    fleet.sweep(0..tokens).await;
    println!("each once more in {:.1?}", began.elapsed());
}

/// The rule that a 503 falls into an outage tests something only if part of the run has no outage.
fn assert_quiet_runs(summary: Summary) {
    assert!(summary.quiet * 4 > summary.presentations, "nearly all of it was an outage: {summary:?}");
    assert!(summary.unavailable > 0, "the faults met no traffic: {summary:?}");
    assert!(summary.opened * 2 > races(), "{summary:?}");
}

/// Counts the presentations that began after a moment and were answered 200.
fn opened_after(fleet: &Fleet, moment: u64) -> usize {
    answered_after(fleet, moment, Answer::Opened) + answered_after(fleet, moment, Answer::OpenedAndLost)
}

/// Counts the presentations that began after a moment and got this answer.
fn answered_after(fleet: &Fleet, moment: u64, wanted: Answer) -> usize {
    let lines = history::read(&fleet.written()).unwrap();
    let is_one = |line: &&Line| match line {
        Line::Presentation(Presentation { start, answer, .. }) => *start >= moment && *answer == wanted,
        Line::Outage(_) => false,
    };
    lines.iter().filter(is_one).count()
}

const _: () = assert!(RESERVE >= 200, "a race after the death of a server takes as many");
