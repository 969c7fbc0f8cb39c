//! A router in front of memcacheds, as twemproxy and mcrouter behave: docs/how-it-works and deploy/mcrouter say what was
//! measured of them.

use super::deployment::{Kind, Node, RouterPlan};
use super::digest::Digest;
use super::history::Happening;
use super::job::Job;
use super::network::{End, Event, Micros, Network};
use super::wire::{self, Answer, Command, Name, Value};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// Timeouts in a row after which mcrouter takes a server for down.
const TIMEOUTS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) plan: RouterPlan,
    pub(crate) is_up: bool,
    upstreams: Vec<Upstream>,
    jobs: HashMap<u64, Job, BuildHasherDefault<Digest>>,
    count: u64,
}

/// Its connection to one server.
#[derive(Debug, Default)]
struct Upstream {
    /// Counts connections: what belongs to an earlier one is void.
    generation: u64,
    /// Commands without an answer, by number of the write.
    pending: BTreeMap<u64, Arc<Vec<Ask>>>,
    /// Taken for down: how long until it is tried the next time.
    probe: Option<Micros>,
    timeouts: u32,
    last_ask: Micros,
    last_answer: Micros,
}

/// One write to a server, or its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) router: usize,
    pub(crate) server: usize,
    generation: u64,
    number: u64,
}

/// One record's command, on behalf of a client's.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) job: u64,
    /// Which of the job's records.
    pub(crate) record: usize,
    pub(crate) name: Name,
    pub(crate) request: Request,
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Get,
    Add { exptime: u64, value: Value },
}

impl Router {
    pub(crate) fn new(plan: &RouterPlan, servers: usize) -> Self {
        Self {
            plan: plan.clone(),
            is_up: true,
            upstreams: (0..servers).map(|_| Upstream::default()).collect(),
            jobs: HashMap::default(),
            count: 0,
        }
    }

    /// Its connection to a server, if there may be one.
    pub(crate) fn connection_to(&self, router: usize, server: usize) -> Option<Asked> {
        let upstream = &self.upstreams[server];
        self.is_up.then_some(Asked { router, server, generation: upstream.generation, number: 0 })
    }

    /// Answers come in the order of commands.
    pub(crate) fn behind_the_last_answer(&mut self, server: usize, at: Micros) -> Micros {
        let last = &mut self.upstreams[server].last_answer;
        *last = at.max(*last);
        *last
    }

    /// Its process ends: connections and what was under way are gone.
    pub(crate) fn stop(&mut self) {
        self.is_up = false;
        self.jobs.clear();
        for upstream in &mut self.upstreams {
            *upstream = Upstream { generation: upstream.generation + 1, ..Upstream::default() };
        }
    }
}

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

impl RouterPlan {
    /// The server that a record belongs to.
    pub(crate) fn owner(&self, name: &[u8]) -> usize {
        let hash = Digest::of(tag(name, self.kind));
        let weight = |server: &usize| mix(hash ^ (*server as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.list.iter().copied().max_by_key(weight).unwrap_or_default()
    }
}

/// The part of a name that decides.
fn tag(name: &[u8], kind: Kind) -> &[u8] {
    if !name.contains(&b'|') {
        return name;
    }
    match kind {
        Kind::Mcrouter => {
            let end = name.windows(3).position(|part| part == b"|#|").unwrap_or(name.len());
            &name[..end]
        }
        Kind::Twemproxy => {
            let mut bars = name.iter().enumerate().filter(|(_, byte)| **byte == b'|').map(|(index, _)| index);
            match (bars.next(), bars.next()) {
                (Some(first), Some(second)) if second > first + 1 => &name[first + 1..second],
                _ => name,
            }
        }
    }
}

fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tag_encloses_decides_alone() {
        assert_eq!(tag(b"ps1.abc", Kind::Twemproxy), b"ps1.abc");
        assert_eq!(tag(b"|bucket|#|name", Kind::Twemproxy), b"bucket");
        assert_eq!(tag(b"|bucket|#|name", Kind::Mcrouter), b"|bucket");
        assert_eq!(tag(b"||name", Kind::Twemproxy), b"||name");
    }

    #[test]
    fn one_server_more_moves_its_share_of_the_records_and_no_others() {
        let plan = |servers: usize| RouterPlan {
            kind: Kind::Mcrouter,
            list: (0..servers).collect(),
            timeout: 50,
            probe_first: 100,
            probe_longest: 500,
            misses: false,
            closes: false,
        };
        let (three, four) = (plan(3), plan(4));
        let owners = (0..4_000_u32).map(|index| {
            let name = index.to_le_bytes();
            (three.owner(&name), four.owner(&name))
        });
        let moved: Vec<_> = owners.filter(|(before, after)| before != after).collect();
        assert!(moved.iter().all(|(_, after)| *after == 3));
        assert!((800..1_200).contains(&moved.len()), "{}", moved.len());
    }
}
