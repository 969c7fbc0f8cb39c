//! An outage of the store costs its time. It does not cost wallets and quotas: a gateway that knows that its store is
//! down reports it before it reads a token, and agents keep theirs.

use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::site::{AgentPlan, Plan, Site};
use crate::support::target;
use crate::support::unit::{Readiness, Unit};
use crate::support::users::{Attempt, Got, Users};
use crate::support::windows::Windows;
use std::time::{Duration, Instant};

/// Length of the store's outage.
const OUTAGE: Duration = Duration::from_secs(6);
/// Concurrent programs, and therefore the tokens that may be in flight when the outage begins.
const PROGRAMS: usize = 16;
const PAUSE: Duration = Duration::from_millis(40);
/// Tokens that may be lost besides those: each request under way may have been tried once more before the outage was
/// known.
const BOUND: u64 = PROGRAMS as u64;
const AGENT: AgentPlan = AgentPlan { name: "busy", gateways: &[0], low: 32, high: 128 };
/// Time after the outage until users are served again, on a busy machine too.
const SOON: Duration = Duration::from_secs(5);

/// Time until an outage is reported: a spend waits a second for the store, and several of them have to fail.
const KNOWN: Duration = Duration::from_secs(4);

/// A way to stop the store, and to start it again with all its records.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It keeps its connections and answers nothing.
    Frozen,
    /// Its connections break, and no other can be made.
    Unreachable,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_store_costs_no_more_tokens_than_were_under_way() {
    outage(Fault::Frozen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_store_costs_no_more_tokens_than_were_under_way() {
    outage(Fault::Unreachable).await;
}

async fn outage(fault: Fault) {
    let store = Memcached::start();
    let relay = Relay::to(&[store.port()]);
    let plan = Plan {
        quota: Some("100000/3650d"),
        store: vec![relay.address()],
        agents: vec![AGENT],
        ..Plan::default()
    };
    let site = Site::started(plan).await;
    let (agent, gateway) = (&site.agents[0], &site.gateways[0]);
    let (users, windows) = (Users::of(target::echo().await), Windows::default());
    let programs: Vec<_> = (0..PROGRAMS).map(|_| users.program(agent, PAUSE)).collect();
    tokio::time::sleep(Duration::from_secs(2)).await;

    // ---- Away ----
    let began = users.now();
    let opened = windows.open(format!("{fault:?}"), [agent.name.clone()], began, SOON);
    match fault {
        Fault::Frozen => store.freeze(),
        Fault::Unreachable => relay.close(),
    }
    let (gateway_says, agent_says) = tokio::join!(said_soon(gateway), said_soon(agent));
    tokio::time::sleep(OUTAGE.saturating_sub(users.now() - began)).await;
    match fault {
        Fault::Frozen => store.thaw(),
        Fault::Unreachable => relay.open(),
    }
    let ended = users.now();
    windows.close(opened, ended);

    // ---- Back ----
    served_since(&users, ended).await;
    for unit in [gateway, agent] {
        unit.plainly_ready().await;
    }
    for program in programs {
        program.stop().await;
    }
    let (issued, held) = settled(&site).await;
    let attempts = users.attempts();
    let refused = attempts.iter().filter(|attempt| attempt.got != Got::Tunnel).count();
    let spent = users.tunnels(&agent.name) as u64;
    let lost = issued - spent - held;
    println!(
        "{fault:?} for {OUTAGE:?}: {refused} of {} requests refused; issued {issued} = spent {spent} + held {held} + \
         lost {lost}\ngateway: {gateway_says:?}\nagent: {agent_says:?}",
        attempts.len()
    );
    let first = first_served(&attempts, ended).expect("users are served again");
    println!("the first tunnel {:.2?} after the end of the outage", first - ended);
    assert!(refused > 0, "the outage met no traffic");
    assert!(lost <= PROGRAMS as u64 + BOUND, "the outage cost {lost} tokens, and {PROGRAMS} were under way");
    windows.assert_only_unavoidable(&attempts, "around an outage of the store");
    assert!(first - ended <= SOON, "users were served again only after {:?}", first - ended);
    for (unit, says) in [(gateway, gateway_says), (agent, agent_says)] {
        let says =
            says.unwrap_or_else(|| panic!("{} reported \"ready\" for {KNOWN:?} of the outage", unit.name));
        assert!(says.body.contains("store"), "{} does not name the cause: {says:?}", unit.name);
    }
    site.terminate();
}

/// A daemon's answer other than "ready" alone, within [`KNOWN`].
async fn said_soon(unit: &Unit) -> Option<Readiness> {
    let began = Instant::now();
    while began.elapsed() < KNOWN {
        let readiness = unit.readiness().await;
        if !readiness.is_plain() {
            return Some(readiness);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

fn first_served(attempts: &[Attempt], since: Duration) -> Option<Duration> {
    let served = attempts.iter().filter(|attempt| attempt.got == Got::Tunnel && attempt.ended > since);
    served.map(|attempt| attempt.ended).min()
}

async fn served_since(users: &Users, since: Duration) {
    crate::support::eventually("a user is served again", || async { first_served(&users.attempts(), since) })
        .await;
}

/// Returns the tokens issued and held when nothing is minted any more: the same at two looks a second apart.
async fn settled(site: &Site) -> (u64, u64) {
    let look = || async {
        let issued = site.issuer.metrics().await.unwrap().sum("postern_tokens_issued_total", &[]);
        (issued, site.agents[0].metrics().await.unwrap().sum("postern_wallet_tokens", &[]))
    };
    let mut before = look().await;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = look().await;
        if now == before {
            return now;
        }
        before = now;
    }
}
