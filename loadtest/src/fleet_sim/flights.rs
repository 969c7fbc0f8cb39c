//! What a gateway does for one presentation, or for one canary: commands, replies, a verdict.

use super::counts::Ended;
use super::flight::{Flight, Stage};
use super::gateway::{After, Came, hint, verdict, whose};
use super::route::{Gathered, Reply, Step};
use super::sim::{Call, Event, GATEWAY, ROUTER, Sim};
use super::stores::{EPOCH_MARKER, Name, REWRITTEN, Verb};
use postern_spend::{Hint, Spend};

/// twemproxy's default `server_failure_limit`.
const FAILURES: u8 = 2;

impl Sim {
    pub(super) fn begin(&mut self, name: Name, attempt: u8, gateway: u16, stage: Stage) {
        let route = if matches!(stage, Stage::Verdict) { self.fleet.add } else { self.fleet.get };
        let gathered = Gathered::new(route, self.stores.replica_count(self.store_of(gateway)));
        let began = self.queue.now();
        let fresh = Flight { serial: 0, name, attempt, gateway, stage, gathered, began };
        let flight = match self.free.pop() {
            Some(free) => {
                let serial = self.flights[free as usize].serial;
                self.flights[free as usize] = Flight { serial, ..fresh };
                free
            }
            None => {
                self.flights.push(fresh);
                self.flights.len() as u32 - 1
            }
        };
        self.command(flight, stage);
    }

    /// Sends the command of a stage. What still comes to the one before does not count any more.
    pub(super) fn command(&mut self, flight: u32, stage: Stage) {
        let own = &mut self.flights[flight as usize];
        own.serial = own.serial.wrapping_add(1);
        own.stage = stage;
        let route =
            if matches!(stage, Stage::Verdict | Stage::Rewrite) { self.fleet.add } else { self.fleet.get };
        own.gathered = Gathered::new(
            route,
            self.stores.replica_count(self.fleet.store_of[usize::from(own.gateway) / self.fleet.gateways]),
        );
        let serial = own.serial;
        self.queue.after(GATEWAY, Event::TimedOut { flight, serial });
        self.send_commands(flight);
    }

    /// The router beside the gateway sends the command to the next servers.
    pub(super) fn send_commands(&mut self, flight: u32) {
        let own = &mut self.flights[flight as usize];
        let (name, attempt, gateway, serial) = (own.name, own.attempt, own.gateway, own.serial);
        let verb = if matches!(own.stage, Stage::Verdict | Stage::Rewrite) { Verb::Add } else { Verb::Get };
        let store = self.store_of(gateway);
        for replica in self.flights[flight as usize].gathered.next_replicas() {
            let server = self.chosen(store, usize::from(replica), name, gateway) as u16;
            let call = Call { flight, serial, name, verb, attempt, replica, server, gateway };
            self.queue.after(ROUTER, Event::GaveUp(call));
            let (from, to) = self.ends(&call);
            self.counts.sent(from, to, verb);
            if let Some(takes) = self.passes(from, to) {
                self.queue.at(self.queue.now() + takes, Event::Reaches(call));
            }
        }
    }

    /// The server that owns the name, or, where the router passes it over, another one.
    pub(super) fn chosen(&self, store: usize, replica: usize, name: Name, gateway: u16) -> usize {
        let owner = self.stores.owner(store, replica, name);
        if self.fleet.eject.is_none() {
            return owner;
        }
        let servers = self.stores.servers_of(store, replica);
        let is_used =
            |server: &usize| self.gateways[usize::from(gateway)].passed_over[*server].1 <= self.queue.now();
        (owner..servers.end).chain(servers.start..owner).find(is_used).unwrap_or(owner)
    }

    /// A reply, or that there is none, comes to the router.
    pub(super) fn deliver(&mut self, call: Call, reply: Reply) {
        if self.flights[call.flight as usize].serial != call.serial {
            return;
        }
        if let Some(span) = self.fleet.eject {
            let until = self.queue.now() + span;
            let record = &mut self.gateways[usize::from(call.gateway)].passed_over[usize::from(call.server)];
            record.0 = if reply == Reply::Error { record.0.saturating_add(1) } else { 0 };
            if record.0 >= FAILURES {
                *record = (0, until);
            }
        }
        match self.flights[call.flight as usize].gathered.take(call.replica, reply) {
            Step::Wait => {}
            Step::Next => self.send_commands(call.flight),
            Step::Answer(reply) => self.concluded(call.flight, Came::Back(reply)),
        }
    }

    /// The gateway has its answer, or has waited long enough.
    pub(super) fn concluded(&mut self, flight: u32, came: Came) {
        let own = self.flights[flight as usize];
        let gateway = usize::from(own.gateway);
        if !self.gateways[gateway].alive {
            return self.end(flight, Ended::Broken);
        }
        let Name::Token(token) = own.name else { return self.canary(flight, came) };
        let lost = self.gateways[gateway].lost[usize::from(self.tokens[token as usize].key)];
        match own.stage {
            Stage::Hint if hint(came) == Hint::Spent => {
                self.end(flight, Ended::Verdict(Ok(Spend::AlreadySpent)))
            }
            Stage::Hint => self.command(flight, Stage::Verdict),
            Stage::Verdict => match verdict(came, lost, self.fleet.on_loss) {
                After::Verdict(verdict) => self.end(flight, Ended::Verdict(verdict)),
                After::AskWhose => self.command(flight, Stage::Whose),
            },
            Stage::Whose | Stage::Canary | Stage::Rewrite => {
                let verdict = whose(came, own.attempt, &self.fleet, lost);
                self.end(flight, Ended::Verdict(verdict));
            }
        }
    }

    pub(super) fn end(&mut self, flight: u32, ended: Ended) {
        let now = self.queue.now();
        let own = &mut self.flights[flight as usize];
        own.serial = own.serial.wrapping_add(1);
        let took = now - own.began;
        if let Name::Token(token) = own.name {
            self.counts.ended(ended, took, now);
            if ended == Ended::Verdict(Ok(Spend::Admitted)) {
                let record = &mut self.tokens[token as usize];
                record.opened = record.opened.saturating_add(1);
                if record.opened > 1 {
                    self.counts.double(token, now);
                }
            }
        }
        self.free.push(flight);
    }

    /// A gateway reads the canaries of every key.
    pub(super) fn round(&mut self, gateway: u16) {
        let now = self.queue.now();
        if !self.gateways[usize::from(gateway)].alive || now >= self.rounds_end {
            return;
        }
        self.queue.at(now + self.fleet.canary_interval, Event::Round(gateway));
        for key in 0..self.fleet.keys.len() as u8 {
            for number in 0..EPOCH_MARKER {
                self.begin(Name::Canary { key, number }, REWRITTEN, gateway, Stage::Canary);
            }
        }
    }

    pub(super) fn canary(&mut self, flight: u32, came: Came) {
        let own = self.flights[flight as usize];
        let Name::Canary { key, .. } = own.name else { return };
        let lost = match (own.stage, came) {
            // A miss alone proves nothing; that it can be written again does.
            (Stage::Canary, Came::Back(Reply::Miss)) => return self.command(flight, Stage::Rewrite),
            (Stage::Canary, Came::Back(Reply::Hit(attempt))) => attempt == REWRITTEN,
            (Stage::Rewrite, Came::Back(Reply::Stored)) => true,
            _ => false,
        };
        if lost {
            self.gateways[usize::from(own.gateway)].lost[usize::from(key)] = true;
        }
        self.end(flight, Ended::Broken);
    }
}
