//! A memcached: what it does with commands, while it runs and while it does not.

use super::deployment::Node;
use super::memory::Memory;
use super::network::{End, Event, Micros, Network};
use super::router::{Ask, Asked, Request};
use super::wire::{self, Answer, Command};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) memory: Memory,
    /// Seconds by which its clock is ahead.
    pub(crate) offset: i64,
    pub(crate) is_running: bool,
    pub(crate) is_refusing: bool,
    pub(crate) is_frozen: bool,
    /// How much later it answers.
    pub(crate) slower: Micros,
    /// What routers have sent to it while it was frozen or cut off.
    pub(crate) held: Vec<(Asked, Arc<Vec<Ask>>)>,
}

impl Server {
    pub(crate) fn new(offset: i64) -> Self {
        Self {
            memory: Memory::default(),
            offset,
            is_running: true,
            is_refusing: false,
            is_frozen: false,
            slower: 0,
            held: Vec::new(),
        }
    }

    /// Whether a connection is accepted. The kernel accepts it for a frozen process, too.
    pub(crate) fn is_reachable(&self) -> bool {
        self.is_running && !self.is_refusing
    }
}

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
