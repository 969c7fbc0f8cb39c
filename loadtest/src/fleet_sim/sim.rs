//! The run: presentations, servers, faults, one event after the other.

use super::counts::Counts;
use super::fleet::{Fault, Fleet, Workload};
use super::flight::Flight;
use super::gateway::Came;
use super::queue::{Nanos, Queue, Random, SECOND};
use super::route::Reply;
use super::stores::{Name, REWRITTEN, Stores, Verb};

/// The lists of the queue: a router's patience with a server, a gateway's with a command.
pub(super) const ROUTER: usize = 0;
pub(super) const GATEWAY: usize = 1;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Somebody presents something.
    Arrives,
    /// The token is presented once more.
    Presented(u32),
    /// A token of the sweep, and then the next one.
    Swept(u32),
    Reaches(Call),
    Answers {
        call: Call,
        reply: Reply,
        deaths: u32,
        departs: Nanos,
    },
    GaveUp(Call),
    TimedOut {
        flight: u32,
        serial: u32,
    },
    Befalls(usize),
    Round(u16),
}

/// A command on its way to a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) flight: u32,
    pub(super) serial: u32,
    pub(super) name: Name,
    pub(super) verb: Verb,
    pub(super) attempt: u8,
    pub(super) replica: u8,
    pub(super) server: u16,
    pub(super) gateway: u16,
}

#[derive(Clone, Copy)]
pub(super) struct Token {
    pub(super) region: u8,
    pub(super) key: u8,
    pub(super) presented: u8,
    pub(super) opened: u8,
}

pub(super) struct Gateway {
    pub(super) region: usize,
    pub(super) alive: bool,
    pub(super) behind: u64,
    /// For each key, whether it knows of a loss.
    pub(super) lost: Vec<bool>,
    /// For each server: failures in a row, and until when its router passes it over.
    pub(super) passed_over: Vec<(u8, Nanos)>,
}

pub(crate) struct Sim {
    pub(super) fleet: Fleet,
    pub(super) workload: Workload,
    pub(super) faults: Vec<(Nanos, Fault)>,
    pub(super) queue: Queue<Event>,
    pub(super) random: Random,
    pub(super) stores: Stores,
    pub(super) flights: Vec<Flight>,
    pub(super) free: Vec<u32>,
    pub(super) tokens: Vec<Token>,
    /// The first token of each second.
    pub(super) minted: Vec<usize>,
    pub(super) gateways: Vec<Gateway>,
    pub(super) loses: f64,
    pub(super) cut: Vec<bool>,
    pub(super) arrivals_end: Nanos,
    pub(super) rounds_end: Nanos,
    pub(super) counts: Counts,
}

impl Sim {
    pub(crate) fn new(fleet: Fleet, workload: Workload, faults: Vec<(Nanos, Fault)>) -> Self {
        let stores = Stores::new(&fleet);
        let passed_over = vec![(0, 0); if fleet.eject.is_some() { stores.servers.len() } else { 0 }];
        let gateway = |region| Gateway {
            region,
            alive: true,
            behind: 0,
            lost: vec![false; fleet.keys.len()],
            passed_over: passed_over.clone(),
        };
        let gateways =
            (0..fleet.regions * fleet.gateways).map(|index| gateway(index / fleet.gateways)).collect();
        Self {
            queue: Queue::new([fleet.server_timeout, fleet.timeout]),
            random: Random::new(workload.seed),
            stores,
            flights: Vec::new(),
            free: Vec::new(),
            tokens: Vec::new(),
            minted: Vec::new(),
            gateways,
            loses: 0.0,
            cut: vec![false; fleet.regions],
            arrivals_end: workload.seconds * SECOND,
            rounds_end: workload.seconds * SECOND,
            counts: Counts::new(fleet.regions),
            fleet,
            workload,
            faults,
        }
    }

    /// Presentations until the time is over and everything has been answered.
    pub(super) fn run_traffic(&mut self) {
        for index in 0..self.faults.len() {
            self.queue.at(self.faults[index].0, Event::Befalls(index));
        }
        for gateway in 0..self.gateways.len() {
            let phase = self.random.below(self.fleet.canary_interval);
            self.queue.at(phase, Event::Round(gateway as u16));
        }
        self.queue.at(0, Event::Arrives);
        self.run();
    }

    /// Each so-many-th token once more.
    pub(super) fn run_sweep(&mut self) {
        self.queue.at(self.queue.now(), Event::Swept(0));
        self.run();
    }

    /// Until nothing is left to happen.
    fn run(&mut self) {
        while let Some(event) = self.queue.pop() {
            self.counts.events += 1;
            if self.counts.events.is_multiple_of(1024) {
                self.counts.most_waiting = self.counts.most_waiting.max(self.queue.len());
            }
            match event {
                Event::Arrives => self.arrives(),
                Event::Presented(token) => self.present_anywhere(token),
                Event::Swept(token) => self.sweep(token),
                Event::Reaches(call) => self.reaches(call),
                Event::Answers { call, reply, deaths, departs } => self.answers(call, reply, deaths, departs),
                Event::GaveUp(call) => self.deliver(call, Reply::Error),
                Event::TimedOut { flight, serial } if self.flights[flight as usize].serial == serial => {
                    self.concluded(flight, Came::Never);
                }
                Event::TimedOut { .. } => {}
                Event::Befalls(index) => self.befalls(self.faults[index].1),
                Event::Round(gateway) => self.round(gateway),
            }
        }
    }

    pub(super) fn store_of(&self, gateway: u16) -> usize {
        self.fleet.store_of[self.gateways[usize::from(gateway)].region]
    }

    /// The regions of the gateway and of the server.
    pub(super) fn ends(&self, call: &Call) -> (usize, usize) {
        (
            self.gateways[usize::from(call.gateway)].region,
            self.stores.servers[usize::from(call.server)].region,
        )
    }

    /// How long a message takes; `None` when it does not arrive.
    pub(super) fn passes(&mut self, from: usize, to: usize) -> Option<Nanos> {
        if from != to && (self.cut[from] || self.cut[to]) || self.random.chance(self.loses) {
            return None;
        }
        let (least, more) = if from == to { self.fleet.near } else { self.fleet.far };
        Some(least + self.random.wait(more as f64))
    }

    fn reaches(&mut self, call: Call) {
        let now = self.queue.now();
        let server = &mut self.stores.servers[usize::from(call.server)];
        let (deaths, slow) = (server.deaths, server.slow);
        let (reply, departs) = if server.alive {
            let departs = server.busy_until.max(now) + self.fleet.service;
            server.busy_until = departs;
            server.worked += self.fleet.service;
            self.counts.served(call.verb);
            (self.serve(&call), departs)
        } else {
            (Reply::Error, now) // connection refused
        };
        let (gateway, there) = self.ends(&call);
        self.counts.answered(there, gateway, reply);
        if let Some(takes) = self.passes(there, gateway) {
            self.queue.at(departs + slow + takes, Event::Answers { call, reply, deaths, departs });
        }
    }

    fn serve(&mut self, call: &Call) -> Reply {
        let store = self.store_of(call.gateway);
        let expires = match call.name {
            Name::Token(token) => self.fleet.keys[usize::from(self.tokens[token as usize].key)].expires,
            Name::Canary { .. } => u64::MAX, // an epoch marker never expires
        };
        let attempt = match call.name {
            Name::Canary { .. } => REWRITTEN,
            Name::Token(_) => call.attempt,
        };
        let place = (usize::from(call.server), store, usize::from(call.replica));
        self.stores.serve(place, (call.verb, call.name, attempt), expires, self.queue.now() / SECOND)
    }

    fn answers(&mut self, call: Call, reply: Reply, deaths: u32, departs: Nanos) {
        let server = &self.stores.servers[usize::from(call.server)];
        // It died before it could reply.
        let died = server.deaths != deaths && server.died < departs;
        self.deliver(call, if died { Reply::Error } else { reply });
    }

    fn befalls(&mut self, fault: Fault) {
        let now = self.queue.now();
        let servers = &mut self.stores;
        match fault {
            Fault::Dies(named) => servers.named(named).for_each(|index| servers.servers[index].die(now)),
            Fault::BackEmpty(named) => {
                servers.named(named).for_each(|index| servers.servers[index].come_back(now, true))
            }
            Fault::BackWarm(named) => {
                servers.named(named).for_each(|index| servers.servers[index].come_back(now, false))
            }
            Fault::Freezes(named, span) => {
                servers.named(named).for_each(|index| servers.servers[index].busy_until = now + span);
            }
            Fault::Slow(named, more) => {
                servers.named(named).for_each(|index| servers.servers[index].slow = more)
            }
            Fault::ServerClock(named, ahead) => {
                servers.named(named).for_each(|index| servers.servers[index].ahead = ahead);
            }
            Fault::GatewayClocksBehind(region, seconds) => {
                let own = self.gateways.iter_mut().filter(|gateway| gateway.region == region);
                own.for_each(|gateway| gateway.behind = seconds);
            }
            Fault::Loses(share) => self.loses = share,
            Fault::CutOff(region, is) => self.cut[region] = is,
            Fault::GatewaysGone(region) => {
                let own = self.gateways.iter_mut().filter(|gateway| gateway.region == region);
                own.for_each(|gateway| gateway.alive = false);
            }
        }
    }

    /// The share of the time that the busiest server worked.
    pub(super) fn busiest(&self) -> f64 {
        let most = self.stores.servers.iter().map(|server| server.worked).max().unwrap_or(0);
        most as f64 / self.queue.now().max(1) as f64
    }
}
