//! One run: executes a plan in simulated time.

use super::agent::Surroundings;
use super::agents::Agents;
use super::chance::Chance;
use super::checker::{Judgement, judge};
use super::claim::Claim;
use super::fault::{Millis, What};
use super::gateway::Gateway;
use super::history::{Event, Happening, History};
use super::issuer::Issuer;
use super::ledger::Kind;
use super::network::Network;
use super::plan::Plan;
use super::world::Fabric;
use postern_spend::memcached;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, sleep_until};

/// Interval of the gateways' inspection.
const LOOK: Duration = Duration::from_millis(100);

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) claim: Claim,
    pub(crate) judgement: Judgement,
    pub(crate) history: Vec<Event>,
}

/// Executes a plan.
pub(crate) fn run(plan: &Plan) -> io::Result<Outcome> {
    memcached::seed(plan.seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let history = History::default();
    runtime.block_on(async { Agents::new(plan, start(plan, history.clone())).run().await });
    drop(runtime);
    let (claim, history) = (Claim::of(plan), history.take());
    let judgement = judge(&history, &claim, plan.deployment.gateways.len());
    Ok(Outcome { claim, judgement, history })
}

/// Shrinks a failing plan: drops faults, one at a time, while the plan still fails. Returns the smallest plan that was found, and
/// its run.
pub(crate) fn shrink(plan: &Plan, kind: Kind) -> io::Result<(Plan, Outcome)> {
    let fails = |outcome: &Outcome| outcome.judgement.findings.iter().any(|finding| finding.kind == kind);
    let mut smallest = (plan.clone(), run(plan)?);
    if !fails(&smallest.1) {
        return Err(io::Error::other("the run does not fail again, so its seed does not determine it"));
    }
    // Repeats until no fault can go: a fault may become dispensable after a later one was dropped.
    loop {
        let (before, mut index) = (smallest.0.faults.len(), 0);
        while index < smallest.0.faults.len() {
            let mut smaller = smallest.0.clone();
            smaller.faults.remove(index);
            let outcome = run(&smaller)?;
            if fails(&outcome) {
                smallest = (smaller, outcome);
            } else {
                index += 1;
            }
        }
        if smallest.0.faults.len() == before {
            return Ok(smallest);
        }
    }
}

/// Starts everything in a plan except its callers.
fn start(plan: &Plan, history: History) -> Surroundings {
    let network = Network::new(&plan.deployment, Chance::new(plan.seed, 2), history);
    let (fabric, attempts) = (Fabric::start(network), Arc::new(AtomicUsize::new(0)));
    let start = |number| Arc::new(Gateway::start(number, plan, fabric.clone(), Arc::clone(&attempts)));
    let gateways: Vec<Arc<Gateway>> = (0..plan.deployment.gateways.len()).map(start).collect();
    tokio::spawn(go_wrong(plan.clone(), fabric.clone(), gateways.clone()));
    tokio::spawn(look(plan.clone(), fabric.clone(), gateways.clone()));
    let issuer = Arc::new(Issuer::new(plan.keys.clone(), fabric.clone()));
    Surroundings { fabric, gateways, issuer, tap: Arc::default() }
}

/// Records changes of the keys that gateways refuse, and of the gateways' readiness.
async fn look(plan: Plan, fabric: Fabric, gateways: Vec<Arc<Gateway>>) {
    let mut said = vec![vec![None; plan.keys.len()]; gateways.len()];
    let mut ready = vec![Some("starting"); gateways.len()];
    loop {
        sleep(LOOK).await;
        for (number, gateway) in gateways.iter().enumerate() {
            for (key, known) in said[number].iter_mut().enumerate() {
                let refuses = gateway.refuses(plan.keys[key].epoch(key).key);
                if std::mem::replace(known, refuses) != refuses {
                    fabric.change(|network| network.note(Happening::Says { gateway: number, key, refuses }));
                }
            }
            let refuses = gateway.unready();
            if std::mem::replace(&mut ready[number], refuses) != refuses {
                fabric.change(|network| network.note(Happening::Serves { gateway: number, refuses }));
            }
        }
    }
}

/// Begins and ends the plan's faults.
async fn go_wrong(plan: Plan, fabric: Fabric, gateways: Vec<Arc<Gateway>>) {
    let mut steps: Vec<(Millis, bool, usize)> = Vec::new();
    for (number, fault) in plan.faults.iter().enumerate() {
        steps.push((fault.at, true, number));
        steps.push((fault.at + fault.lasts, false, number));
    }
    steps.sort_by_key(|(at, begins, _)| (*at, !*begins));
    let began = Instant::now();
    for (at, begins, number) in steps {
        sleep_until(began + Duration::from_millis(at)).await;
        let fault = &plan.faults[number];
        let server = fault.what.server();
        let happening = if begins {
            Happening::Fault { number, server, text: fault.to_string() }
        } else {
            Happening::Healed { number, server }
        };
        fabric.change(|network| {
            if begins || fault.lasts > 0 {
                network.note(happening);
            }
        });
        match (&fault.what, begins) {
            (What::GatewayRestart { gateway }, true) => gateways[*gateway].stop_process(),
            (What::GatewayRestart { gateway }, false) => gateways[*gateway].start_process(),
            (What::Clock { gateway, by }, true) => gateways[*gateway].set_clock(*by),
            (What::Clock { gateway, .. }, false) => gateways[*gateway].set_clock(0),
            (what, true) => fabric.change(|network| network.begin(what, fault.lasts)),
            (what, false) => fabric.change(|network| network.heal(what)),
        }
        // A server that restarts misses its records once it is back; evicted and moved ones are missing at once.
        if fault.what.loses() && begins != matches!(fault.what, What::Restart { .. }) {
            fabric.change(|network| network.note(Happening::Lost { server }));
        }
    }
}
