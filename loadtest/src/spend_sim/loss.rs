//! The cost of a loss: what many agents with full wallets pay for a fault of one fixed deployment, in tunnels and tokens.

use super::deployment::{Deployment, GatewayPlan, Kind, Latency, Node, RouterPlan, Shape};
use super::fault::{Fault, Micros, Millis, What};
use super::history::{Happening, Sums};
use super::plan::{Plan, Theme};
use super::run::run;
use super::token::KeyPlan;
use anyhow::{Result, ensure};

/// The first fault, and the time after it.
const BEGINS: Millis = 60_000;
const AFTER: Millis = 20 * 60_000;
/// A tunnel of an agent each ten seconds on average, and no strangers.
const PAUSE: Millis = 20_000;
/// Wallet level at which an agent mints, and level up to which it mints.
const WATERS: (usize, usize) = (32, 128);

/// Runs each fault, and prints a table of its cost.
pub(crate) fn print_costs(agents: usize) -> Result<()> {
    let restart = |after, server| Fault { at: BEGINS + after, lasts: 400, what: What::Restart { server } };
    let away = Fault { at: BEGINS, lasts: 75_000, what: What::Refuse { server: 0 } };
    let cases = [
        ("nothing happens", Shape::Pool, vec![]),
        ("one set: one server emptied", Shape::Pool, vec![restart(0, 0)]),
        ("one set: one server away for 75 s", Shape::Pool, vec![away]),
        ("voted: one replica emptied", Shape::Voted, vec![restart(0, 0)]),
        ("voted: a second one emptied a minute later", Shape::Voted, vec![restart(0, 0), restart(60_000, 1)]),
    ];
    println!("{agents} agents, {} minutes after the fault\n", AFTER / 60_000);
    println!(
        "| | tunnels | requests without one | the last of them after | void | other lost | held | issued |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, shape, faults) in cases {
        let outcome = run(&plan(agents, shape, faults))?;
        let unserved = outcome.history.iter().filter(|event| event.happening == Happening::Unserved);
        let times: Vec<Micros> = unserved.map(|event| event.at).collect();
        let last = times.last().map(|last| format!("{:.1} s", *last as f64 / 1e6 - BEGINS as f64 / 1e3));
        let sums = &outcome.judgement.sums;
        let Sums { issued, spent, held, lost } = sums;
        let void = lost.get("void").copied().unwrap_or_default();
        println!(
            "| {name} | {spent} | {} | {} | {void} | {} | {held} | {issued} |",
            times.len(),
            last.unwrap_or_default(),
            sums.all_lost() - void
        );
        let findings = &outcome.judgement.findings;
        ensure!(sums.add_up() && findings.is_empty(), "{sums:?}: {findings:?}");
    }
    println!(
        "\nissued = tunnels + void + other lost + held, in each row, by the agents' own sums and by the history"
    );
    Ok(())
}

fn plan(agents: usize, shape: Shape, faults: Vec<Fault>) -> Plan {
    let length = BEGINS + AFTER;
    Plan {
        seed: 1,
        theme: Theme::Long,
        length,
        deployment: deployment(shape),
        keys: vec![KeyPlan { from: 0, ends: 86_400 }],
        faults,
        pause: PAUSE,
        pace: length,
        agents,
        waters: WATERS,
        leaves: 0,
    }
}

/// Returns three gateways before three memcacheds: behind one twemproxy, or as replicas that vote.
fn deployment(shape: Shape) -> Deployment {
    let twemproxy = RouterPlan {
        kind: Kind::Twemproxy,
        list: vec![0, 1, 2],
        timeout: 50,
        probe_first: 100,
        probe_longest: 500,
        misses: false,
        closes: false,
    };
    let (routers, addresses, ports) = match shape {
        Shape::Voted => {
            let servers = (0..3).map(|server| vec![Node::Server(server)]).collect();
            (Vec::new(), servers, vec![vec![1], vec![2], vec![3]])
        }
        _ => (vec![twemproxy], vec![vec![Node::Router(0)]], vec![vec![1]]),
    };
    let gateway = GatewayPlan {
        ports,
        is_pooled: false,
        workers: 2,
        timeout: 100,
        interval: 1_000,
        cache_bytes: 1 << 20,
        hint: true,
    };
    let latency = Latency { least: 50, most: 1_000, spikes: 0, spike: 0 };
    Deployment { shape, servers: vec![0; 3], routers, addresses, gateways: vec![gateway; 3], latency }
}
