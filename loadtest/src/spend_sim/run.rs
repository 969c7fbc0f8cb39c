//! One run: a plan carried out in simulated time.

use super::agent::Surroundings;
use super::agents::Agents;
use super::chance::Chance;
use super::checker::{Judgement, judge};
use super::claim::Claim;
use super::fault::{Millis, What};
use super::gateway::Gateway;
use super::history::{Event, Happening, History};
use super::issuer::Issuer;
use super::network::Network;
use super::plan::Plan;
use super::world::Fabric;
use postern_spend::memcached;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, sleep_until};

/// How often gateways are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) claim: Claim,
    pub(crate) judgement: Judgement,
    pub(crate) history: Vec<Event>,
}

/// Carries out a plan.
pub(crate) fn run(plan: &Plan) -> std::io::Result<Outcome> {
    run_with(plan, |around| Agents::new(plan, around).run())
}

/// Carries out a plan with these callers.
pub(crate) fn run_with<F: Future<Output = ()>>(
    plan: &Plan,
    callers: impl FnOnce(Surroundings) -> F,
) -> std::io::Result<Outcome> {
    memcached::seed(plan.seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let history = History::default();
    runtime.block_on(async { callers(start(plan, history.clone())).await });
    drop(runtime);
    let (claim, history) = (Claim::of(plan), history.take());
    let judgement = judge(&history, &claim, plan.deployment.gateways.len());
    Ok(Outcome { claim, judgement, history })
}

/// Starts everything of a plan but its callers.
pub(crate) fn start(plan: &Plan, history: History) -> Surroundings {
    let network = Network::new(&plan.deployment, Chance::new(plan.seed, 2), history);
    let (fabric, attempts) = (Fabric::start(network), Arc::new(AtomicUsize::new(0)));
    let start = |number| Arc::new(Gateway::start(number, plan, fabric.clone(), Arc::clone(&attempts)));
    let gateways: Vec<Arc<Gateway>> = (0..plan.deployment.gateways.len()).map(start).collect();
    tokio::spawn(go_wrong(plan.clone(), fabric.clone(), gateways.clone()));
    tokio::spawn(look(plan.clone(), fabric.clone(), gateways.clone()));
    let issuer = Arc::new(Issuer::new(plan.keys.clone(), fabric.clone()));
    Surroundings { fabric, gateways, issuer, tap: Arc::default() }
}

/// Writes down what gateways say of themselves, when it changes.
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
            let refuses = gateway.is_ready();
            if std::mem::replace(&mut ready[number], refuses) != refuses {
                fabric.change(|network| network.note(Happening::Serves { gateway: number, refuses }));
            }
        }
    }
}

/// Lets everything go wrong that the plan has, and come right again.
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
        // What a server has lost can be missed when it is back.
        if fault.what.loses() && !begins {
            fabric.change(|network| network.note(Happening::Lost { server }));
        }
    }
}
