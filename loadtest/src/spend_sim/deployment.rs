//! The parts of a run's deployment: memcacheds, routers, gateways, and message latency.

use super::chance::Chance;
use super::fault::{Micros, Millis};
use super::token::{RECORD_MARGIN, mark_id};
use postern_spend::Marks;
use postern_spend::memcached::{Options, Replicas, Transport};
use std::sync::Arc;
use std::time::Duration;

/// Tolerated difference of clocks, in seconds, as in the gateway.
pub(crate) const CLOCK_TOLERANCE: u64 = RECORD_MARGIN / 2;

#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    pub(crate) shape: Shape,
    /// Seconds by which each memcached's clock is ahead.
    pub(crate) servers: Vec<i64>,
    pub(crate) routers: Vec<RouterPlan>,
    /// Nodes that listen at each address.
    pub(crate) addresses: Vec<Vec<Node>>,
    pub(crate) gateways: Vec<GatewayPlan>,
    pub(crate) latency: Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One memcached, no router.
    Direct,
    /// Each server owns its share of the records.
    Pool,
    /// A balancer in front of two routers, one of which has an additional server.
    Balancer,
    /// Two addresses in every gateway, of two routers, one of which has an additional server.
    Contradiction,
    /// Three replicas that vote. Each has a separate path: its own router, or a direct connection.
    Voted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Server(usize),
    Router(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Twemproxy,
    Mcrouter,
}

#[derive(Clone, Debug)]
pub(crate) struct RouterPlan {
    pub(crate) kind: Kind,
    pub(crate) list: Vec<usize>,
    pub(crate) timeout: Millis,
    /// Delay before mcrouter retries a server that is down: initial and maximum.
    pub(crate) probe_first: Millis,
    pub(crate) probe_longest: Millis,
    /// `true` if a `get` for a server that is down is answered as a miss.
    pub(crate) misses: bool,
    /// `true` if the router closes the client's connection after an error.
    pub(crate) closes: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct GatewayPlan {
    /// Addresses of each replica, as ports from 1 on.
    pub(crate) ports: Vec<Vec<u16>>,
    pub(crate) is_pooled: bool,
    /// Runtimes of the gateway, each with its own connections.
    pub(crate) workers: usize,
    pub(crate) timeout: Millis,
    pub(crate) interval: Millis,
    pub(crate) cache_bytes: usize,
    /// `true` if the gateway looks a token up before it spends it.
    pub(crate) hint: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) least: Micros,
    pub(crate) most: Micros,
    /// One in this many messages takes longer; none if 0.
    pub(crate) spikes: u64,
    pub(crate) spike: Micros,
}

impl GatewayPlan {
    pub(crate) fn options(&self) -> Options {
        let address = |port: &u16| format!("store:{port}").parse().ok();
        let addresses = |ports: &Vec<u16>| ports.iter().filter_map(address).collect::<Vec<_>>();
        let connect_timeout = Duration::from_millis(250);
        Options {
            replicas: match self.ports.as_slice() {
                [a, b, c] => Replicas::Three([a, b, c].map(addresses)),
                lists => Replicas::One(lists.iter().flat_map(addresses).collect()),
            },
            tls: None,
            transport: if self.is_pooled {
                Transport::Pooled { size: 2, checkout_timeout: connect_timeout }
            } else {
                Transport::Pipelined { queue: 1_000 }
            },
            timeout: Duration::from_millis(self.timeout),
            slow: Duration::from_millis(10),
            connect_timeout,
            interval: Duration::from_millis(self.interval),
            clock_tolerance: Duration::from_secs(CLOCK_TOLERANCE),
            marks: Marks { id: Arc::new(mark_id) },
            cache_bytes: self.cache_bytes,
        }
    }
}

impl Deployment {
    pub(crate) fn new(shape: Shape, chance: &mut Chance) -> Self {
        let servers = match shape {
            Shape::Direct => 1,
            Shape::Pool => chance.within(2, 4) as usize,
            Shape::Voted => chance.pick(&[3, 3, 6]),
            Shape::Balancer | Shape::Contradiction => chance.within(3, 4) as usize,
        };
        let timeout = chance.pick(&[100, 100, 250, 1_000]);
        let routers = Self::routers(shape, servers, timeout, chance);
        let addresses = match shape {
            Shape::Direct => vec![vec![Node::Server(0)]],
            Shape::Balancer => vec![vec![Node::Router(0), Node::Router(1)]],
            _ => (0..routers.len()).map(|router| vec![Node::Router(router)]).collect(),
        };
        let all_ports = || (1..=addresses.len() as u16).collect::<Vec<_>>();
        let together = chance.one_in(2) || shape == Shape::Contradiction;
        let interval = chance.pick(&[300, 1_000, 1_000, 1_000, 1_000, 1_500]);
        let pooled = chance.one_in(4);
        let gateway = |index: usize, chance: &mut Chance| GatewayPlan {
            ports: vec![if together { all_ports() } else { vec![(index % addresses.len()) as u16 + 1] }],
            is_pooled: pooled,
            workers: chance.within(1, 3) as usize + usize::from(shape == Shape::Balancer),
            timeout,
            interval,
            cache_bytes: chance.pick(&[0, 1 << 20]),
            hint: chance.one_in(2),
        };
        let gateways = (0..chance.pick(&[1, 2, 2, 3])).map(|index| gateway(index, chance)).collect();
        let latency = Latency {
            least: 50,
            most: chance.pick(&[300, 1_000, 4_000]),
            spikes: chance.pick(&[0, 200, 2_000]),
            spike: chance.pick(&[20_000, 200_000, 400_000]),
        };
        let mut deployment = Self { shape, servers: vec![0; servers], routers, addresses, gateways, latency };
        if shape == Shape::Voted {
            deployment.vote(chance);
        }
        deployment
    }

    /// Gives each replica its own router, or none.
    fn vote(&mut self, chance: &mut Chance) {
        let Some(router) = self.routers.first().cloned() else { return };
        let lists: Vec<Vec<usize>> =
            (0..3).map(|replica| (replica..self.servers.len()).step_by(3).collect()).collect();
        let of_replica = |list: &Vec<usize>| {
            let kind = chance.pick(&[Kind::Twemproxy, Kind::Mcrouter]);
            RouterPlan {
                kind,
                list: list.clone(),
                misses: kind == Kind::Mcrouter && chance.one_in(3),
                closes: kind == Kind::Twemproxy && chance.one_in(2),
                ..router
            }
        };
        self.routers = lists.iter().map(of_replica).collect();
        let address = |(replica, list): (usize, &Vec<usize>)| match list.as_slice() {
            [server] if chance.one_in(2) => vec![Node::Server(*server)],
            _ => vec![Node::Router(replica)],
        };
        self.addresses = lists.iter().enumerate().map(address).collect();
        for gateway in &mut self.gateways {
            (gateway.ports, gateway.is_pooled) = (vec![vec![1], vec![2], vec![3]], false);
        }
    }

    /// Makes routers wait longer for a server than a connection attempt may take.
    pub(crate) fn be_patient(&mut self) {
        for router in &mut self.routers {
            (router.kind, router.timeout, router.misses) = (Kind::Twemproxy, 400, false);
        }
        self.gateways.iter_mut().for_each(|gateway| gateway.timeout = 1_000);
    }

    fn routers(shape: Shape, servers: usize, timeout: Millis, chance: &mut Chance) -> Vec<RouterPlan> {
        let kind = chance.pick(&[Kind::Twemproxy, Kind::Mcrouter]);
        let (probe_first, probe_longest) =
            chance.pick(&[(100, 500), (100, 500), (1_000, 5_000), (10_000, 60_000)]);
        let plan = RouterPlan {
            kind,
            list: (0..servers).collect(),
            timeout: chance.pick(&[timeout / 2, timeout / 2, timeout / 2, timeout, 2 * timeout]),
            probe_first,
            probe_longest,
            misses: kind == Kind::Mcrouter && chance.one_in(3),
            closes: kind == Kind::Twemproxy && chance.one_in(2),
        };
        let number = match shape {
            Shape::Direct => 0,
            Shape::Balancer | Shape::Contradiction => 2,
            _ => chance.pick(&[1, 1, 2]),
        };
        let mut routers = vec![plan; number];
        if matches!(shape, Shape::Balancer | Shape::Contradiction) {
            routers[0].list.pop();
        }
        routers
    }
}
