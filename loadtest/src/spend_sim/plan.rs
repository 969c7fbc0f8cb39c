//! The plan of a run, which follows from its seed: deployment, keys and faults.

use super::chance::Chance;
use super::deployment::{Deployment, Shape};
use super::fault::{Fault, Millis, What};
use super::token::KeyPlan;

/// Last part of a run, in which everything must recover: only `hang` adds faults that last into it.
const CALM: Millis = 8_000;
/// Maximum pause of agents, and that of strangers and attackers.
const PAUSE: Millis = 900;
const PACE: Millis = 130;
/// Agents of a run, their wallets' levels, and their users who leave.
const AGENTS: usize = 3;
const WATERS: (usize, usize) = (2, 5);
const LEAVES: u64 = 12;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) theme: Theme,
    pub(crate) length: Millis,
    pub(crate) deployment: Deployment,
    pub(crate) keys: Vec<KeyPlan>,
    pub(crate) faults: Vec<Fault>,
    /// Maximum pause between two tunnels of an agent.
    pub(crate) pause: Millis,
    /// Maximum pause between actions of strangers and attackers.
    pub(crate) pace: Millis,
    pub(crate) agents: usize,
    /// Wallet level at which an agent mints, and level up to which it mints.
    pub(crate) waters: (usize, usize),
    /// One in this many requests of an agent is abandoned by its user; none if 0.
    pub(crate) leaves: u64,
}

/// Faults that a run combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Theme {
    /// Connections break, messages are delayed, servers freeze or are unreachable. No record is lost.
    Network,
    /// A server is unreachable when a key begins.
    Away,
    /// Gateways and routers restart.
    Restarts,
    /// A server restarts empty.
    Loss,
    /// A server restarts empty while another one hangs.
    LossWhileBlind,
    /// Clocks differ.
    Clocks,
    /// Records are evicted, or a server is full.
    Memory,
    /// Routers get other servers.
    Servers,
    /// Network faults, restarts, memory faults and a loss.
    Everything,
    /// Many of three voting replicas are lost within hours, one after another or together.
    Long,
    /// One after another of three voting replicas is lost, misses writes, or gets other servers.
    Replicas,
}

const THEMES: [Theme; 12] = [
    Theme::Network,
    Theme::Network,
    Theme::Away,
    Theme::Restarts,
    Theme::Loss,
    Theme::Loss,
    Theme::LossWhileBlind,
    Theme::LossWhileBlind,
    Theme::Clocks,
    Theme::Memory,
    Theme::Servers,
    Theme::Everything,
];

impl Plan {
    /// Returns a plan with the usual agents, and no keys and no length yet.
    pub(super) fn without_faults(seed: u64, theme: Theme, deployment: Deployment) -> Self {
        Self {
            seed,
            theme,
            length: 0,
            deployment,
            keys: Vec::new(),
            faults: Vec::new(),
            pause: PAUSE,
            pace: PACE,
            agents: AGENTS,
            waters: WATERS,
            leaves: LEAVES,
        }
    }

    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed, 1);
        let theme = chance.pick(&THEMES);
        let shapes: &[Shape] = match theme {
            Theme::Servers => &[Shape::Pool, Shape::Pool, Shape::Balancer, Shape::Contradiction],
            Theme::LossWhileBlind => &[Shape::Pool],
            Theme::Network | Theme::Restarts => {
                &[Shape::Direct, Shape::Pool, Shape::Voted, Shape::Voted, Shape::Balancer]
            }
            _ => &[Shape::Direct, Shape::Pool, Shape::Pool, Shape::Voted, Shape::Voted],
        };
        let shape = chance.pick(shapes);
        let mut deployment = Deployment::new(shape, &mut chance);
        if theme == Theme::LossWhileBlind && chance.one_in(2) {
            deployment.be_patient();
        }
        let length = chance.within(14, 22) * 1_000;
        let mut keys = vec![KeyPlan { from: 0, ends: chance.pick(&[600, 3_600, 86_400]) }];
        if chance.one_in(2) {
            keys.push(KeyPlan { from: chance.within(3_000, length / 2), ends: 86_400 });
        }
        let mut plan = Self { length, keys, ..Self::without_faults(seed, theme, deployment) };
        plan.go_wrong(&mut chance);
        if shape == Shape::Voted {
            plan.lose_replicas(&mut chance);
            plan.mix(&mut chance);
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    /// Leaves one gateway with a single replica, as during a change of a fleet.
    fn mix(&mut self, chance: &mut Chance) {
        if chance.one_in(6) {
            let index = chance.index(self.deployment.gateways.len());
            self.deployment.gateways[index].ports.truncate(1);
        }
    }

    /// `true` if gateways of one replica and of three have servers in common.
    pub(crate) fn is_mixed(&self) -> bool {
        let mut replicas = self.deployment.gateways.iter().map(|gateway| gateway.ports.len());
        let first = replicas.next();
        replicas.any(|other| Some(other) != first)
    }

    fn lose_replicas(&mut self, chance: &mut Chance) {
        let more = chance.within(0, 6);
        for _ in 0..more {
            self.theme = Theme::Replicas;
            let server = chance.index(self.deployment.servers.len());
            let at = chance.within(1_000, self.length - CALM);
            match chance.below(4) {
                0 => self.away(server, at, chance),
                1 => {
                    let router = server % 3;
                    let list = vec![chance.pick(&self.deployment.routers[router].list)];
                    self.faults.push(Fault { at, lasts: 0, what: What::Servers { router, list } });
                }
                _ => self.lose(server, chance),
            }
        }
    }

    fn go_wrong(&mut self, chance: &mut Chance) {
        match self.theme {
            Theme::Network => self.add(chance, 1, 8, Self::network),
            Theme::Away => {
                let server = chance.index(self.deployment.servers.len());
                let begins = chance.pick(&self.keys).from;
                let at = begins.saturating_sub(chance.within(0, 400));
                self.away(server, at, chance);
                self.add(chance, 0, 2, Self::network);
            }
            Theme::Restarts => {
                self.add(chance, 1, 4, Self::restart);
                self.add(chance, 0, 4, Self::network);
            }
            Theme::Loss => {
                self.add(chance, 0, 3, Self::gateways_network);
                let server = chance.index(self.deployment.servers.len());
                for _ in 0..chance.pick(&[1, 1, 2]) {
                    self.lose(server, chance);
                }
            }
            Theme::LossWhileBlind => {
                let server = chance.index(self.deployment.servers.len());
                let other = (server + 1) % self.deployment.servers.len();
                let at = chance.within(1_000, 5_000);
                self.hang(other, at, chance);
                let at = at + chance.within(200, 4_000);
                self.faults.push(Fault {
                    at,
                    lasts: chance.within(0, 1_500),
                    what: What::Restart { server },
                });
            }
            Theme::Clocks => self.skew(chance),
            Theme::Memory => self.add(chance, 1, 3, Self::memory),
            Theme::Servers => self.other_servers(chance),
            Theme::Everything | Theme::Replicas | Theme::Long => {
                self.add(chance, 2, 6, Self::network);
                self.add(chance, 0, 2, Self::restart);
                self.add(chance, 0, 2, Self::memory);
                let server = chance.index(self.deployment.servers.len());
                self.lose(server, chance);
            }
        }
    }

    fn add(&mut self, chance: &mut Chance, least: u64, most: u64, fault: fn(&Self, &mut Chance) -> What) {
        for _ in 0..chance.within(least, most) {
            let what = fault(self, chance);
            let at = chance.within(500, self.length - CALM - 1);
            let longest = chance.pick(&[150, 600, 3_000, 20_000]);
            let lasts = chance.within(0, longest).min(self.length - CALM - at);
            self.faults.push(Fault { at, lasts, what });
        }
    }

    fn away(&mut self, server: usize, at: Millis, chance: &mut Chance) {
        let what = match chance.below(3) {
            0 => What::Refuse { server },
            1 => What::Freeze { server },
            _ => What::Cut { server, router: None },
        };
        let lasts = chance.within(500, 14_000).min((self.length - CALM).saturating_sub(at));
        self.faults.push(Fault { at, lasts, what });
    }

    /// Freezes a server until a second before the end: all the time, or repeatedly.
    fn hang(&mut self, server: usize, mut at: Millis, chance: &mut Chance) {
        let (end, again) = (self.length - CALM / 8, chance.one_in(2));
        while at < end {
            let lasts = if again { chance.within(300, 2_500).min(end - at) } else { end - at };
            self.faults.push(Fault { at, lasts, what: What::Freeze { server } });
            at += lasts + chance.within(100, 900);
        }
    }

    /// Restarts a server empty.
    fn lose(&mut self, server: usize, chance: &mut Chance) {
        let at = chance.within(2_000, self.length - CALM);
        let lasts = chance.pick(&[0, 1, 50, 400, 2_000, 6_000]).min(self.length - CALM - at);
        self.faults.push(Fault { at, lasts, what: What::Restart { server } });
    }

    fn skew(&mut self, chance: &mut Chance) {
        let by = chance.pick(&[3_000, 3_700, 7_200, 7_200, 86_400, 100_000]);
        if chance.one_in(2) {
            let server = chance.index(self.deployment.servers.len());
            self.deployment.servers[server] = by;
            if chance.one_in(3) {
                self.deployment.servers.fill(by);
            }
        } else {
            let gateway = chance.index(self.deployment.gateways.len());
            let by = if chance.one_in(4) { by } else { -by };
            let at = chance.within(0, self.length - CALM - 1);
            let lasts = chance.within(0, 10_000).min(self.length - CALM - at);
            self.faults.push(Fault { at, lasts, what: What::Clock { gateway, by } });
        }
        self.add(chance, 0, 2, Self::gateways_network);
    }

    fn other_servers(&mut self, chance: &mut Chance) {
        if matches!(self.deployment.shape, Shape::Balancer | Shape::Contradiction) {
            return self.add(chance, 0, 3, Self::gateways_network);
        }
        let whole = self.deployment.servers.len();
        for router in 0..self.deployment.routers.len() {
            if router > 0 && chance.one_in(3) {
                continue; // a router that the change has missed
            }
            let mut list: Vec<usize> = (0..whole).collect();
            if chance.one_in(2) {
                self.deployment.routers[router].list.pop();
            } else {
                list.remove(chance.index(whole));
            }
            let at = chance.within(3_000, self.length - CALM);
            self.faults.push(Fault { at, lasts: 0, what: What::Servers { router, list } });
        }
    }

    /// Returns a fault between gateways and the nodes that they connect to.
    fn gateways_network(&self, chance: &mut Chance) -> What {
        let gateway = chance.index(self.deployment.gateways.len());
        match chance.below(4) {
            0 => What::Reset { gateway },
            1 => What::Hang { gateway },
            2 => What::Stall { gateway },
            _ => What::HalfWrite { gateway },
        }
    }

    /// Returns a fault at any place that loses no record.
    fn network(&self, chance: &mut Chance) -> What {
        let server = chance.index(self.deployment.servers.len());
        match chance.below(8) {
            0 | 1 => What::Freeze { server },
            2 => What::Cut { server, router: None },
            3 if self.deployment.shape != Shape::Direct => {
                What::Cut { server, router: Some(chance.index(self.deployment.routers.len())) }
            }
            4 => What::Refuse { server },
            5 => What::Slow { server, by: chance.pick(&[20, 45, 60, 110, 300]) },
            _ => self.gateways_network(chance),
        }
    }

    fn restart(&self, chance: &mut Chance) -> What {
        if self.deployment.routers.is_empty() || chance.one_in(2) {
            What::GatewayRestart { gateway: chance.index(self.deployment.gateways.len()) }
        } else {
            What::RouterRestart { router: chance.index(self.deployment.routers.len()) }
        }
    }

    fn memory(&self, chance: &mut Chance) -> What {
        let server = chance.index(self.deployment.servers.len());
        if chance.one_in(2) {
            What::Full { server }
        } else {
            What::Evict { server, percent: chance.within(5, 90) }
        }
    }
}
