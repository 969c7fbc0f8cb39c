//! Behaviour of memcacheds and routers in the network, while they run and while they do not, and what faults do to them.

use super::deployment::{Kind, Node};
use super::fault::{Millis, What};
use super::history::Happening;
use super::network::{End, Event, Network};
use super::router::{Ask, Asked, Job, Request};
use super::wire::{self, Answer, Command};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Consecutive timeouts after which mcrouter considers a server down.
const TIMEOUTS: u32 = 3;

/// Memcacheds.
impl Network {
    /// Executes the commands of a router, even if the router has given up on them.
    pub(crate) fn serve_router(&mut self, asked: Asked, asks: Arc<Vec<Ask>>) {
        if self.is_cut(Some(asked.router), asked.server) || self.servers[asked.server].is_frozen {
            self.servers[asked.server].held.push((asked, asks));
            return;
        }
        let at = self.now + self.travel();
        if !self.servers[asked.server].is_reachable() {
            self.schedule(at, Event::Fails { asked });
            return;
        }
        let second = self.server_second(asked.server);
        let server = &mut self.servers[asked.server];
        let answers = asks.iter().map(|ask| match &ask.request {
            Request::Get => server.memory.get(&ask.name, second),
            Request::Add { exptime, value } => server.memory.add(&ask.name, *exptime, value, second),
        });
        let answers: Vec<Answer> = answers.collect();
        let slower = server.slower;
        let at = self.routers[asked.router].behind_the_last_answer(asked.server, at + slower);
        self.schedule(at, Event::Answers { asked, answers });
    }

    /// Executes the commands of a directly connected gateway.
    pub(crate) fn serve_link(&mut self, number: usize, link: usize) {
        if self.servers[number].is_frozen || self.is_cut(None, number) || !self.servers[number].is_reachable()
        {
            return; // the bytes stay in the kernel until the server continues; if it ends, the connection is reset
        }
        let second = self.server_second(number);
        let (mut out, mut used) = (Vec::new(), 0);
        let input = std::mem::take(&mut self.links[link].input);
        let memory = &mut self.servers[number].memory;
        let mut is_over = false;
        while let Some((command, length)) = wire::command(&input[used..]) {
            used += length;
            match command {
                Command::Get(names) => {
                    let found: Vec<_> = names.iter().map(|name| memory.get(name, second)).collect();
                    wire::got(names.iter().zip(&found), &mut out);
                }
                Command::Add { name, exptime, value } => {
                    wire::added(&memory.add(&name, exptime, &value, second), &mut out);
                }
                Command::Version => out.extend_from_slice(b"VERSION 1.6.18\r\n"),
                Command::Other => {
                    out.extend_from_slice(b"ERROR\r\n");
                    is_over = true;
                }
            }
        }
        self.links[link].input = input[used..].to_vec();
        self.reply(link, out);
        if is_over {
            self.close(link, End::Closed);
        }
    }

    /// Resumes a server that was frozen or cut off: executes the data received in the meantime, unless it was lost on the way.
    pub(crate) fn resume(&mut self, number: usize, is_lost: bool) {
        for (asked, asks) in std::mem::take(&mut self.servers[number].held) {
            if is_lost {
                self.schedule(self.now, Event::Fails { asked });
            } else {
                self.serve_router(asked, asks);
            }
        }
        for link in self.links_to(Node::Server(number)) {
            if is_lost {
                self.reset(link);
            } else {
                self.serve_link(number, link);
            }
        }
    }

    /// Ends a server's process.
    pub(crate) fn stop(&mut self, number: usize) {
        self.servers[number].is_running = false;
        self.servers[number].memory.clear();
        self.break_off(number);
    }

    /// Resets every connection to a server.
    pub(crate) fn break_off(&mut self, number: usize) {
        self.servers[number].held.clear();
        self.links_to(Node::Server(number)).into_iter().for_each(|link| self.reset(link));
        for router in 0..self.routers.len() {
            if let Some(asked) = self.routers[router].connection_to(router, number) {
                let at = self.now + self.travel();
                self.schedule(at, Event::Fails { asked });
            }
        }
    }

    fn server_second(&self, number: usize) -> u64 {
        self.second().saturating_add_signed(self.servers[number].offset)
    }
}

/// Routers.
impl Network {
    /// Accepts the commands that a client has sent.
    pub(crate) fn route_link(&mut self, router: usize, link: usize) {
        if !self.routers[router].is_up {
            return;
        }
        let input = std::mem::take(&mut self.links[link].input);
        let (mut used, mut asks) = (0, Vec::new());
        while let Some((command, length)) = wire::command(&input[used..]) {
            used += length;
            let routing = &mut self.routers[router];
            routing.count += 1;
            let number = routing.count;
            let begun = match command {
                Command::Get(names) => Some(Job::get(link, names)),
                Command::Add { name, exptime, value } => Some(Job::add(link, name, exptime, value)),
                Command::Version | Command::Other => None,
            };
            self.links[link].replies.push_back((number, None));
            match begun {
                Some(job) => {
                    asks.extend(job.first_asks(number));
                    self.routers[router].jobs.insert(number, job);
                }
                // mcrouter and twemproxy answer `version` themselves.
                None if command_is_version(&input[..used]) => {
                    self.fill(link, number, b"VERSION router\r\n".to_vec())
                }
                None => {
                    self.close(link, End::Closed);
                    break;
                }
            }
        }
        self.links[link].input = input[used..].to_vec();
        self.ask(router, asks);
        self.flush(link);
    }

    /// Sends commands to the servers that own their records, with one write per server.
    fn ask(&mut self, router: usize, asks: Vec<Ask>) {
        let mut by_server: BTreeMap<usize, Vec<Ask>> = BTreeMap::new();
        for ask in asks {
            let server = self.routers[router].plan.owner(&ask.name);
            by_server.entry(server).or_default().push(ask);
        }
        for (server, asks) in by_server {
            let (travel, now) = (self.travel(), self.now);
            let routing = &mut self.routers[router];
            routing.count += 1;
            let number = routing.count;
            let upstream = &mut routing.upstreams[server];
            if upstream.probe.is_some() {
                let errors = vec![Answer::Error; asks.len()];
                self.resolve(router, &asks, errors);
                continue;
            }
            let asks = Arc::new(asks);
            upstream.pending.insert(number, Arc::clone(&asks));
            upstream.last_ask = upstream.last_ask.max(now + travel);
            let asked = Asked { router, server, generation: upstream.generation, number };
            let (at, timeout) = (upstream.last_ask, routing.plan.timeout * 1_000);
            self.schedule(at, Event::Asks { asked, asks });
            self.schedule(now + timeout, Event::Patience { asked });
        }
    }

    /// Processes the answers of a server.
    pub(crate) fn answered(&mut self, asked: Asked, answers: Vec<Answer>) {
        let upstream = &mut self.routers[asked.router].upstreams[asked.server];
        if upstream.generation != asked.generation {
            return;
        }
        if let Some(asks) = upstream.pending.remove(&asked.number) {
            upstream.timeouts = 0;
            self.resolve(asked.router, &asks, answers);
        }
    }

    /// Processes a connection that the server refused or reset.
    pub(crate) fn failed(&mut self, asked: Asked) {
        let routing = &mut self.routers[asked.router];
        let upstream = &mut routing.upstreams[asked.server];
        if upstream.generation != asked.generation || !routing.is_up {
            return;
        }
        upstream.generation += 1;
        let pending = std::mem::take(&mut upstream.pending);
        if routing.plan.kind == Kind::Mcrouter {
            self.take_for_down(asked.router, asked.server);
        }
        self.give_up(asked.router, pending);
    }

    /// Processes a timeout. twemproxy closes the connection with everything on it; mcrouter gives up this write only.
    pub(crate) fn waited(&mut self, asked: Asked) {
        let routing = &mut self.routers[asked.router];
        let upstream = &mut routing.upstreams[asked.server];
        if upstream.generation != asked.generation || !upstream.pending.contains_key(&asked.number) {
            return;
        }
        let given_up = match routing.plan.kind {
            Kind::Twemproxy => {
                upstream.generation += 1;
                std::mem::take(&mut upstream.pending)
            }
            Kind::Mcrouter => {
                upstream.timeouts += 1;
                upstream.pending.remove_entry(&asked.number).into_iter().collect()
            }
        };
        if upstream.timeouts >= TIMEOUTS {
            self.take_for_down(asked.router, asked.server);
        }
        self.give_up(asked.router, given_up);
    }

    fn give_up(&mut self, router: usize, pending: BTreeMap<u64, Arc<Vec<Ask>>>) {
        for asks in pending.into_values() {
            let errors = vec![Answer::Error; asks.len()];
            self.resolve(router, &asks, errors);
        }
    }

    fn take_for_down(&mut self, router: usize, server: usize) {
        let routing = &mut self.routers[router];
        let first = routing.plan.probe_first * 1_000;
        let upstream = &mut routing.upstreams[server];
        upstream.timeouts = 0;
        if upstream.probe.is_none() {
            upstream.probe = Some(first);
            self.schedule(self.now + first, Event::Probe { router, server });
            self.note(Happening::Down { router, server });
        }
    }

    /// Probes a server that is considered down, and uses it again if it answers.
    pub(crate) fn probe(&mut self, router: usize, server: usize) {
        let state = &self.servers[server];
        let answers = state.is_reachable() && !state.is_frozen && !self.is_cut(Some(router), server);
        let routing = &mut self.routers[router];
        let Some(pause) = routing.upstreams[server].probe.as_mut() else { return };
        if answers {
            routing.upstreams[server].probe = None;
            self.note(Happening::Up { router, server });
        } else {
            *pause = (*pause * 2).min(routing.plan.probe_longest * 1_000);
            let at = self.now + *pause;
            self.schedule(at, Event::Probe { router, server });
        }
    }

    /// Passes answers to the commands that wait for them, and sends the complete replies.
    fn resolve(&mut self, router: usize, asks: &[Ask], answers: Vec<Answer>) {
        let mut touched = Vec::new();
        for (ask, answer) in asks.iter().zip(answers) {
            let routing = &mut self.routers[router];
            let Some(job) = routing.jobs.get_mut(&ask.job) else { continue }; // answered before
            if job.answer(ask, answer) {
                let reply = job.reply(routing.plan.misses);
                let (link, number, is_error) = (job.link, ask.job, job.is_error());
                routing.jobs.remove(&ask.job);
                let closes = routing.plan.closes && is_error;
                self.fill(link, number, reply);
                touched.push((link, closes));
            }
        }
        touched.dedup();
        for (link, closes) in touched {
            self.flush(link);
            if closes {
                self.close(link, End::Closed);
            }
        }
    }

    fn fill(&mut self, link: usize, number: u64, reply: Vec<u8>) {
        let replies = &mut self.links[link].replies;
        if let Ok(place) = replies.binary_search_by_key(&number, |slot| slot.0) {
            replies[place].1 = Some(reply);
        }
    }

    /// Sends the available replies, up to the first missing one.
    fn flush(&mut self, link: usize) {
        let replies = &mut self.links[link].replies;
        let mut bytes = Vec::new();
        while let Some(reply) = replies.front_mut().and_then(|slot| slot.1.take()) {
            bytes.extend_from_slice(&reply);
            replies.pop_front();
        }
        self.reply(link, bytes);
    }

    /// Ends a router's process.
    pub(crate) fn stop_router(&mut self, number: usize) {
        self.routers[number].stop();
        self.links_to(Node::Router(number)).into_iter().for_each(|link| self.reset(link));
    }
}

/// Effects of faults, and their end.
impl Network {
    pub(crate) fn begin(&mut self, what: &What, lasts: Millis) {
        match what {
            What::Restart { server } => self.stop(*server),
            What::Freeze { server } => self.servers[*server].is_frozen = true,
            What::Cut { server, router } => self.cuts.push((*router, *server)),
            What::Refuse { server } => {
                self.servers[*server].is_refusing = true;
                self.break_off(*server);
            }
            What::Slow { server, by } => self.servers[*server].slower = by * 1_000,
            What::Evict { server, percent } => self.servers[*server].memory.evict(*percent),
            What::Full { server } => self.servers[*server].memory.is_full = true,
            What::Reset { gateway } => self.links_of(*gateway).into_iter().for_each(|link| self.reset(link)),
            What::Hang { gateway } => {
                self.links_of(*gateway).into_iter().for_each(|link| self.links[link].hangs = true);
            }
            What::Stall { gateway } => self.stalled[*gateway] = self.now + lasts * 1_000,
            What::HalfWrite { gateway } => {
                let links = self.links_of(*gateway);
                if !links.is_empty() {
                    let link = links[self.chance.index(links.len())];
                    self.links[link].is_halved = true;
                }
            }
            What::RouterRestart { router } => self.stop_router(*router),
            What::Servers { router, list } => {
                self.routers[*router].plan.list.clone_from(list);
                if self.routers[*router].plan.kind == Kind::Twemproxy {
                    self.stop_router(*router); // twemproxy cannot reload its list
                    self.routers[*router].is_up = true;
                }
            }
            What::Clock { .. } | What::GatewayRestart { .. } => {} // do not affect the network
        }
    }

    pub(crate) fn heal(&mut self, what: &What) {
        match what {
            What::Restart { server } => self.servers[*server].is_running = true,
            What::Freeze { server } => {
                self.servers[*server].is_frozen = false;
                self.resume(*server, false);
            }
            What::Cut { server, router } => {
                if let Some(index) = self.cuts.iter().position(|cut| *cut == (*router, *server)) {
                    self.cuts.remove(index);
                }
                let is_lost = self.chance.one_in(2);
                self.resume(*server, is_lost);
            }
            What::Refuse { server } => self.servers[*server].is_refusing = false,
            What::Slow { server, .. } => self.servers[*server].slower = 0,
            What::Full { server } => self.servers[*server].memory.is_full = false,
            What::RouterRestart { router } => self.routers[*router].is_up = true,
            _ => {} // over at once, or not of the network
        }
    }
}

fn command_is_version(input: &[u8]) -> bool {
    input.ends_with(b"version\r\n")
}
