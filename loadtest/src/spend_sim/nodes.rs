//! What memcacheds and routers do with commands in the network, while they run and while they do not.

use super::deployment::{Kind, Node};
use super::history::Happening;
use super::job::{Ask, Job, Request};
use super::network::{End, Event, Network};
use super::router::Asked;
use super::wire::{self, Answer, Command};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Timeouts in a row after which mcrouter takes a server for down.
const TIMEOUTS: u32 = 3;

/// Memcacheds.
impl Network {
    /// Commands of a router. They are carried out even if the router has given up meanwhile.
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

    /// Commands of a gateway that is connected directly.
    pub(crate) fn serve_link(&mut self, number: usize, link: usize) {
        if self.servers[number].is_frozen || self.is_cut(None, number) || !self.servers[number].is_reachable()
        {
            return; // the bytes stay in the kernel until it continues; when it ends, the connection is reset
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

    /// It continues, or can be reached again: what has come meanwhile is carried out, or was lost on the way.
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

    /// Its process ends.
    pub(crate) fn stop(&mut self, number: usize) {
        self.servers[number].is_running = false;
        self.servers[number].memory.clear();
        self.break_off(number);
    }

    /// Every connection to it is reset.
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
    /// Takes the commands that a client has sent.
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
                // mcrouter answers it itself; twemproxy does, too.
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

    /// Sends commands to the servers that own them, all of one server in one write.
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

    /// The server's answers have come.
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

    /// The server refused or reset the connection.
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

    /// No answer in time. twemproxy closes the connection with everything on it; mcrouter gives up this write only.
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

    /// Whether a server that was taken for down answers again.
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

    /// Gives answers to the commands that wait for them, and replies to what is complete.
    fn resolve(&mut self, router: usize, asks: &[Ask], answers: Vec<Answer>) {
        let mut touched = Vec::new();
        for (ask, answer) in asks.iter().zip(answers) {
            let routing = &mut self.routers[router];
            let Some(job) = routing.jobs.get_mut(&ask.job) else { continue }; // decided before
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

    /// Sends the replies that are there, up to the first that is not.
    fn flush(&mut self, link: usize) {
        let replies = &mut self.links[link].replies;
        let mut bytes = Vec::new();
        while let Some(reply) = replies.front_mut().and_then(|slot| slot.1.take()) {
            bytes.extend_from_slice(&reply);
            replies.pop_front();
        }
        self.reply(link, bytes);
    }

    /// A router's process ends.
    pub(crate) fn stop_router(&mut self, number: usize) {
        self.routers[number].stop();
        self.links_to(Node::Router(number)).into_iter().for_each(|link| self.reset(link));
    }
}

fn command_is_version(input: &[u8]) -> bool {
    input.ends_with(b"version\r\n")
}
