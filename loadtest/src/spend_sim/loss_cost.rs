//! What a loss of records costs agents and the issuer: many agents with wallets, one fault, and what follows.

use super::agent::{Agent, Habits, Opened, Surroundings};
use super::chance::Chance;
use super::checker::Judgement;
use super::deployment::{Deployment, GatewayPlan, Kind, Latency, Node, RouterPlan, Shape};
use super::fault::{Fault, Millis, What};
use super::issuer::Signatures;
use super::plan::{Plan, Theme};
use super::run::run_with;
use super::token::KeyPlan;
use anyhow::{Result, ensure};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// When the first fault begins. Wallets are filled by then.
const BEGINS: Millis = 120_000;
/// Agents wait ten minutes before they mint ahead for a new mark, and then need some to fill their wallets.
const AFTERWARDS: Millis = 20 * 60_000;
/// A tunnel of each agent every ten seconds on average.
const PAUSE: Duration = Duration::from_secs(20);
/// As the agent has them by default.
const WATERS: (usize, usize) = (32, 128);

/// One line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Three replicas that vote, and not one set of records on three servers.
    pub(crate) votes: bool,
    pub(crate) faults: Vec<Fault>,
}

/// What a scenario came to, from its first fault on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    /// Requests for a tunnel, and those that had none.
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    /// From the first fault to the last request without a tunnel.
    pub(crate) until_all_tunnel: Duration,
    /// Agents without any tunnel since.
    pub(crate) without: usize,
    pub(crate) signatures: Signatures,
    pub(crate) judgement: Judgement,
}

impl Cost {
    pub(crate) fn lost(&self, reasons: &[&str]) -> u64 {
        reasons.iter().filter_map(|reason| self.judgement.sums.lost.get(reason)).sum()
    }
}

/// The scenarios of the table.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let restart = |at, server| Fault { at: BEGINS + at, lasts: 1_000, what: What::Restart { server } };
    let away = |lasts| vec![Fault { at: BEGINS, lasts, what: What::Refuse { server: 0 } }];
    let scenario = |name, votes, faults| Scenario { name, votes, faults };
    let minute = 60_000;
    vec![
        scenario("one set: nothing happens", false, vec![]),
        scenario("one set: one of three servers emptied", false, vec![restart(0, 0)]),
        scenario("one set: one of three away for 12 s", false, away(12_000)),
        scenario("one set: one of three away for 75 s", false, away(75_000)),
        scenario("voted: nothing happens", true, vec![]),
        scenario("voted: one replica emptied", true, vec![restart(0, 0)]),
        scenario("voted: a second one a minute later", true, vec![restart(0, 0), restart(minute, 1)]),
        scenario("voted: a second one 30 min later", true, vec![restart(0, 0), restart(30 * minute, 1)]),
        scenario("voted: one replica away for 12 s", true, away(12_000)),
        scenario("voted: one replica away for 75 s", true, away(75_000)),
    ]
}

/// Carries out every scenario, two at a time, and prints the table.
pub(crate) fn print(agents: usize) -> Result<()> {
    println!(
        "{agents} agents, a tunnel each every 10 s, from the first fault on:\n\n| | requests | without a tunnel | the last of \
         them after | tokens void | dropped with their mark | without a verdict | signatures | in the busiest second |\n\
         |---|---|---|---|---|---|---|---|---|"
    );
    let all = scenarios();
    for some in all.chunks(2) {
        let costs = std::thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|scenario| scope.spawn(|| scenario.run(agents))).collect();
            running.into_iter().map(|run| run.join()).collect::<Vec<_>>()
        });
        for (scenario, cost) in some.iter().zip(costs) {
            let cost = cost.map_err(|_| anyhow::anyhow!("{}: the run panicked", scenario.name))??;
            print_line(scenario, &cost);
            let (name, findings) = (scenario.name, &cost.judgement.findings);
            ensure!(findings.is_empty(), "{name}: {:?}", findings.first());
            ensure!(cost.without == 0, "{name}: {} agents had no tunnel again", cost.without);
            let void = cost.lost(&["void", "superseded"]);
            ensure!(void == 0 || !scenario.is_false_alarm(), "{name}: {void} tokens were void");
        }
    }
    Ok(())
}

fn print_line(scenario: &Scenario, cost: &Cost) {
    let Signatures { all, most, at } = cost.signatures;
    let (void, dropped) = (cost.lost(&["void"]), cost.lost(&["superseded"]));
    let verdicts = cost.judgement.sums.all_lost() - void - dropped;
    let last = if cost.refused > 0 {
        format!("{:.1} s", cost.until_all_tunnel.as_secs_f64())
    } else {
        String::new()
    };
    println!(
        "| {} | {} | {} | {last} | {void} | {dropped} | {verdicts} | {} | {}, after {} s |",
        scenario.name, cost.requests, cost.refused, all, most, at
    );
}

impl Scenario {
    /// Whether no record is lost.
    pub(crate) fn is_false_alarm(&self) -> bool {
        !self.faults.iter().any(|fault| fault.what.loses())
    }

    pub(crate) fn run(&self, agents: usize) -> std::io::Result<Cost> {
        let plan = self.plan(agents);
        let (seen, until) = (Arc::new(Mutex::new(Seen::new(agents))), Duration::from_millis(plan.length));
        let mut signed = Signatures::default();
        let outcome = run_with(&plan, |around| {
            let (seen, signed) = (Arc::clone(&seen), &mut signed);
            async move {
                live(agents, &around, until, &seen).await;
                *signed = around.issuer.since(BEGINS / 1_000);
            }
        })?;
        let seen = seen.lock();
        let first = Duration::from_millis(BEGINS);
        Ok(Cost {
            requests: seen.requests,
            refused: seen.refused,
            until_all_tunnel: seen.last_refused.saturating_sub(first),
            without: seen.has_tunnelled.iter().filter(|has| !**has).count(),
            signatures: signed,
            judgement: outcome.judgement,
        })
    }

    fn plan(&self, agents: usize) -> Plan {
        let last = self.faults.iter().map(|fault| fault.at + fault.lasts).max().unwrap_or(BEGINS);
        Plan {
            seed: 1,
            theme: Theme::Loss,
            length: last + AFTERWARDS,
            deployment: deployment(self.votes),
            keys: vec![KeyPlan { from: 0, ends: 86_400 }],
            faults: self.faults.clone(),
            agents,
            pause: PAUSE.as_millis() as Millis,
            pace: 0,
        }
    }
}

/// What agents' users see, from the first fault on.
struct Seen {
    requests: u64,
    refused: u64,
    last_refused: Duration,
    has_tunnelled: Vec<bool>,
}

impl Seen {
    fn new(agents: usize) -> Self {
        Self { requests: 0, refused: 0, last_refused: Duration::ZERO, has_tunnelled: vec![false; agents] }
    }

    fn see(&mut self, agent: usize, opened: Opened, at: Duration) {
        if at < Duration::from_millis(BEGINS) {
            return;
        }
        self.requests += 1;
        match opened {
            Opened::Tunnel => self.has_tunnelled[agent] = true,
            Opened::Refused => (self.refused, self.last_refused) = (self.refused + 1, at),
        }
    }
}

async fn live(agents: usize, around: &Surroundings, until: Duration, seen: &Arc<Mutex<Seen>>) {
    let (began, mut tasks) = (Instant::now(), JoinSet::new());
    for number in 0..agents {
        let mut chance = Chance::new(1, 100 + number as u64);
        let (low, high) = WATERS;
        // Wallets are anywhere between the two when the fault comes.
        let first = chance.within(low as u64, high as u64) as usize;
        let habits = Habits { low, high, first, pause: PAUSE, leaves: 0 };
        let agent = Agent::new(number + 1, habits, around, chance);
        let seen = Arc::clone(seen);
        let see = move |opened| seen.lock().see(number, opened, began.elapsed());
        tasks.spawn(async move { drop(agent.live(began + until, see).await) });
    }
    while tasks.join_next().await.is_some() {}
}

/// Three gateways before three memcacheds, each its own replica or all one set behind a twemproxy.
fn deployment(votes: bool) -> Deployment {
    let router = RouterPlan {
        kind: Kind::Twemproxy,
        list: vec![0, 1, 2],
        timeout: 100,
        probe_first: 100,
        probe_longest: 500,
        misses: false,
        closes: false,
    };
    let gateway = GatewayPlan {
        ports: if votes { vec![vec![1], vec![2], vec![3]] } else { vec![vec![1]] },
        is_pooled: false,
        connections: 2,
        timeout: 250,
        interval: 1_000,
        cache_bytes: 1 << 20,
        hint: false,
    };
    Deployment {
        shape: if votes { Shape::Voted } else { Shape::Pool },
        servers: vec![0; 3],
        routers: if votes { Vec::new() } else { vec![router] },
        addresses: match votes {
            true => (0..3).map(|server| vec![Node::Server(server)]).collect(),
            false => vec![vec![Node::Router(0)]],
        },
        gateways: vec![gateway; 3],
        latency: Latency { least: 50, most: 300, spikes: 0, spike: 0 },
    }
}
