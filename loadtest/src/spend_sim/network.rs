//! The simulated network: events in the order of their time, and the connections of gateways.

use super::chance::Chance;
use super::deployment::{Deployment, Latency, Node};
use super::fault::Micros;
use super::history::{Happening, History};
use super::router::{Ask, Asked, Router};
use super::server::Server;
use super::wire::Answer;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::Waker;

/// The network and all nodes behind the gateways.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) now: Micros,
    pub(crate) chance: Chance,
    pub(crate) latency: Latency,
    pub(crate) links: Vec<Link>,
    pub(crate) servers: Vec<Server>,
    pub(crate) routers: Vec<Router>,
    /// Nodes that listen at each address. One of them, at random, takes a connection.
    pub(crate) addresses: Vec<Vec<Node>>,
    /// Cuts between a router and a server; `None` cuts the server off from everything.
    pub(crate) cuts: Vec<(Option<usize>, usize)>,
    /// Time until which data sent on each gateway's connections waits.
    pub(crate) stalled: Vec<Micros>,
    pub(crate) history: History,
    /// Events by time and number.
    events: BTreeMap<(Micros, u64), Event>,
    count: u64,
    /// Waker of the task that drives the events.
    pub(crate) driver: Option<Waker>,
}

/// A scheduled event.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client's bytes arrive at a node.
    ToNode { link: usize, bytes: Vec<u8> },
    /// A node's bytes arrive at its client.
    ToClient { link: usize, bytes: Vec<u8> },
    /// A connection ends for its client.
    Ends { link: usize, end: End },
    /// A router's commands arrive at a server.
    Asks { asked: Asked, asks: Arc<Vec<Ask>> },
    /// A server's answers arrive at the router.
    Answers { asked: Asked, answers: Vec<Answer> },
    /// The server refused or reset the router's connection.
    Fails { asked: Asked },
    /// A router's timeout for a server expires.
    Patience { asked: Asked },
    /// A router probes a server that it considers down.
    Probe { router: usize, server: usize },
}

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
}

/// A connection of a gateway.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) gateway: usize,
    pub(crate) node: Node,
    /// `true` if the node's side is open.
    pub(crate) is_open: bool,
    /// `true` if nothing passes any more.
    pub(crate) hangs: bool,
    /// `true` if the next write arrives only partially.
    pub(crate) is_halved: bool,
    /// Bytes received by the node that are not a complete command yet.
    pub(crate) input: Vec<u8>,
    /// Replies in the order of commands; `None` until a reply is available.
    pub(crate) replies: VecDeque<(u64, Option<Vec<u8>>)>,
    /// Arrival time of the last bytes, to the node and to the client.
    last: [Micros; 2],
    /// Bytes that the client can read.
    pub(crate) inbox: VecDeque<u8>,
    pub(crate) end: Option<End>,
    pub(crate) reader: Option<Waker>,
}

impl Network {
    pub(crate) fn new(deployment: &Deployment, chance: Chance, history: History) -> Self {
        Self {
            now: 0,
            chance,
            latency: deployment.latency,
            links: Vec::new(),
            servers: deployment.servers.iter().map(|offset| Server::new(*offset)).collect(),
            routers: deployment
                .routers
                .iter()
                .map(|plan| Router::new(plan, deployment.servers.len()))
                .collect(),
            addresses: deployment.addresses.clone(),
            cuts: Vec::new(),
            stalled: vec![0; deployment.gateways.len()],
            history,
            events: BTreeMap::new(),
            count: 0,
            driver: None,
        }
    }

    /// Returns the time of the next event.
    pub(crate) fn next(&self) -> Option<Micros> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn schedule(&mut self, at: Micros, event: Event) {
        let is_first = self.next().is_none_or(|next| at < next);
        self.count += 1;
        self.events.insert((at, self.count), event);
        if is_first && let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Executes every event that is due.
    pub(crate) fn run_until(&mut self, now: Micros) {
        while let Some(due) = self.events.first_entry().filter(|due| due.key().0 <= now) {
            let ((at, _), event) = due.remove_entry();
            self.now = self.now.max(at);
            self.carry_out(event);
        }
        self.now = now;
    }

    fn carry_out(&mut self, event: Event) {
        match event {
            Event::ToNode { link, bytes } => self.arrive(link, &bytes),
            Event::ToClient { link, bytes } => {
                let link = &mut self.links[link];
                if link.end.is_none() && !link.hangs {
                    link.inbox.extend(bytes);
                    link.reader.take().into_iter().for_each(Waker::wake);
                }
            }
            Event::Ends { link, end } => {
                let link = &mut self.links[link];
                if !link.hangs {
                    link.end.get_or_insert(end);
                    link.reader.take().into_iter().for_each(Waker::wake);
                }
            }
            Event::Asks { asked, asks } => self.serve_router(asked, asks),
            Event::Answers { asked, answers } => self.answered(asked, answers),
            Event::Fails { asked } => self.failed(asked),
            Event::Patience { asked } => self.waited(asked),
            Event::Probe { router, server } => self.probe(router, server),
        }
    }

    /// Returns the latency of one message.
    pub(crate) fn travel(&mut self) -> Micros {
        let Latency { least, most, spike, spikes } = self.latency;
        let usual = self.chance.within(least, most);
        if spikes > 0 && self.chance.one_in(spikes) { usual + self.chance.below(spike) } else { usual }
    }

    pub(crate) fn note(&self, happening: Happening) {
        self.history.add(self.now, happening);
    }

    /// Returns the common time of servers and gateways in seconds, before offsets.
    pub(crate) fn second(&self) -> u64 {
        super::token::EPOCH + self.now / 1_000_000
    }

    // ---- Connections of gateways ----

    /// Opens a connection of a gateway. Returns its number, or the refusal; `None` while there is no answer.
    pub(crate) fn connect(&mut self, gateway: usize, port: u16) -> Option<io::Result<usize>> {
        let listeners = &self.addresses[usize::from(port) - 1];
        let node = listeners[self.chance.index(listeners.len())];
        let (is_up, is_cut) = match node {
            Node::Router(router) => (self.routers[router].is_up, false),
            Node::Server(server) => (self.servers[server].is_reachable(), self.is_cut(None, server)),
        };
        if is_cut {
            return None;
        }
        if !is_up {
            return Some(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        self.links.push(Link {
            gateway,
            node,
            is_open: true,
            hangs: false,
            is_halved: false,
            input: Vec::new(),
            replies: VecDeque::new(),
            last: [0; 2],
            inbox: VecDeque::new(),
            end: None,
            reader: None,
        });
        Some(Ok(self.links.len() - 1))
    }

    /// Sends a client's bytes to the node, sometimes in two parts.
    pub(crate) fn write(&mut self, number: usize, bytes: &[u8]) {
        let stalled = self.stalled[self.links[number].gateway];
        if self.links[number].hangs {
            return;
        }
        if std::mem::take(&mut self.links[number].is_halved) {
            let part = self.chance.index(bytes.len());
            self.send(number, 0, stalled, Event::ToNode { link: number, bytes: bytes[..part].to_vec() });
            self.reset(number);
            return;
        }
        let parted = self.chance.one_in(16) && bytes.len() > 1;
        let part = if parted { self.chance.index(bytes.len()) } else { bytes.len() };
        for bytes in [&bytes[..part], &bytes[part..]] {
            if !bytes.is_empty() {
                self.send(number, 0, stalled, Event::ToNode { link: number, bytes: bytes.to_vec() });
            }
        }
    }

    /// Schedules an event after everything in flight in the same direction: 0 to the node, 1 to the client.
    fn send(&mut self, number: usize, direction: usize, earliest: Micros, event: Event) {
        let at = (self.now + self.travel()).max(earliest).max(self.links[number].last[direction]);
        self.links[number].last[direction] = at;
        self.schedule(at, event);
    }

    /// Sends a node's reply.
    pub(crate) fn reply(&mut self, number: usize, bytes: Vec<u8>) {
        let link = &self.links[number];
        if bytes.is_empty() || !link.is_open || link.hangs || link.end.is_some() {
            return;
        }
        let stalled = self.stalled[link.gateway];
        self.send(number, 1, stalled, Event::ToClient { link: number, bytes });
    }

    /// Closes the node's side of a connection, after its replies.
    pub(crate) fn close(&mut self, number: usize, end: End) {
        if std::mem::replace(&mut self.links[number].is_open, false) {
            self.send(number, 1, 0, Event::Ends { link: number, end });
        }
    }

    /// Ends both sides of a connection at once. Bytes sent before may have arrived.
    pub(crate) fn reset(&mut self, number: usize) {
        let now = self.now;
        self.close(number, End::Reset);
        let link = &mut self.links[number];
        if link.last[1] > now {
            link.end.get_or_insert(End::Reset); // replies in flight are lost
            link.reader.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the open connections of a gateway.
    pub(crate) fn links_of(&self, gateway: usize) -> Vec<usize> {
        let open = |link: &Link| link.gateway == gateway && link.is_open && link.end.is_none();
        (0..self.links.len()).filter(|number| open(&self.links[*number])).collect()
    }

    /// Returns the connections that lead to a node.
    pub(crate) fn links_to(&self, node: Node) -> Vec<usize> {
        (0..self.links.len())
            .filter(|number| self.links[*number].node == node && self.links[*number].is_open)
            .collect()
    }

    fn arrive(&mut self, number: usize, bytes: &[u8]) {
        let link = &mut self.links[number];
        if link.hangs {
            return;
        }
        match link.node {
            Node::Server(server) => {
                link.input.extend_from_slice(bytes);
                self.serve_link(server, number);
            }
            Node::Router(router) => {
                link.input.extend_from_slice(bytes);
                self.route_link(router, number);
            }
        }
    }

    /// `true` if nothing passes between a router, or a gateway (`None`), and a server.
    pub(crate) fn is_cut(&self, router: Option<usize>, server: usize) -> bool {
        self.cuts.iter().any(|(whose, which)| *which == server && (whose.is_none() || *whose == router))
    }
}
