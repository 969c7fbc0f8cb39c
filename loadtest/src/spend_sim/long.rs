//! Runs of hours in which replicas lose records, are away and get other servers, with new marks in between.

use super::chance::Chance;
use super::claim::TURNOVER;
use super::deployment::{Deployment, Shape};
use super::fault::{Fault, Millis, What};
use super::plan::{Plan, Theme};
use super::token::KeyPlan;

const MINUTE: Millis = 60_000;
/// Time after the last fault: the next mark follows within a minute, and clients return.
const CALM: Millis = 3 * MINUTE;
/// Maximum time between two tunnels of an agent, and between actions of strangers and attackers.
const PAUSE: Millis = 40_000;
const PACE: Millis = 20_000;

impl Plan {
    pub(crate) fn long(seed: u64) -> Self {
        let mut chance = Chance::new(seed, 6);
        let shape = chance.pick(&[Shape::Voted, Shape::Voted, Shape::Voted, Shape::Direct, Shape::Pool]);
        let mut deployment = Deployment::new(shape, &mut chance);
        // A late reply while another replica is away would leave a token without a verdict.
        deployment.latency.spikes = 0;
        deployment.latency.most = deployment.latency.most.min(1_000);
        for (number, gateway) in deployment.gateways.iter_mut().enumerate() {
            let replicas = gateway.ports.len();
            gateway.ports.rotate_left(number % replicas); // each gateway has another order of replicas
            if number % 2 == 1 {
                gateway.ports.swap(0, replicas / 2);
            }
            gateway.interval = 1_000;
        }
        let mut plan = Self {
            keys: vec![KeyPlan { from: 0, ends: 86_400 }],
            pause: PAUSE,
            pace: PACE,
            ..Self::without_faults(seed, Theme::Long, deployment)
        };
        let is_spaced = shape == Shape::Voted && chance.one_in(2);
        let last =
            if is_spaced { plan.one_after_another(&mut chance) } else { plan.at_any_time(&mut chance) };
        plan.length = last + if is_spaced { TURNOVER } else { CALM };
        if chance.one_in(3) {
            plan.keys.push(KeyPlan { from: plan.length / 2, ends: 86_400 });
        }
        plan
    }

    /// Adds faults, each after the tokens of the previous mark are used up. Returns the end of the last one.
    fn one_after_another(&mut self, chance: &mut Chance) -> Millis {
        let (mut at, mut losses) = (0, 0);
        for _ in 0..chance.within(2, 6) {
            at += TURNOVER + chance.within(0, 10 * MINUTE);
            let fault = self.fault_of_a_replica(at, losses < 4, chance);
            losses += usize::from(fault.what.loses());
            at += fault.lasts;
            self.faults.push(fault);
        }
        at
    }

    /// Adds faults of any replicas, also within seconds of each other. Returns the end of the last one.
    fn at_any_time(&mut self, chance: &mut Chance) -> Millis {
        let mut at = 2 * MINUTE;
        let mut last = at;
        for _ in 0..chance.within(3, 9) {
            let longest = chance.pick(&[10_000, 2 * MINUTE, 30 * MINUTE]);
            at += chance.within(0, longest);
            let fault = self.fault_of_a_replica(at, true, chance);
            last = last.max(at + fault.lasts);
            self.faults.push(fault);
        }
        last
    }

    fn fault_of_a_replica(&self, at: Millis, may_lose: bool, chance: &mut Chance) -> Fault {
        let server = chance.index(self.deployment.servers.len());
        let lasts = chance.pick(&[400, 12_000, 75_000, 10 * MINUTE]);
        let what = match chance.below(if may_lose { 8 } else { 3 }) {
            0 => What::Refuse { server },
            1 => What::Freeze { server },
            2 => What::Cut { server, router: None },
            3 if self.deployment.servers.len() > 3 && self.deployment.shape == Shape::Voted => {
                let router = server % 3;
                let list = vec![chance.pick(&self.deployment.routers[router].list)];
                return Fault { at, lasts: 0, what: What::Servers { router, list } };
            }
            _ => What::Restart { server },
        };
        Fault { at, lasts, what }
    }
}
