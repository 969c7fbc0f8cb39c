//! From a workload and the constants to machines. Pure: every use of a resource is a fixed part and a part that grows
//! with the rate, so what is needed, and where it runs out, are divisions.

use super::constants::Constants;
use super::planned::{Demand, Kind, Line, Machines, Plan};
use super::workload::Workload;
use crate::args::Place;
use postern_daemon::descriptors::needed;
use postern_spend::memcached::pool_size;
use std::time::Duration;

const GIB: f64 = (1_u64 << 30) as f64;
/// `-m` leaves a quarter for shares that are not quite equal and for busy months: deploy/mcrouter/README.md.
const FULL: f64 = 0.8;

/// What several parts of a plan need.
struct Basis<'a> {
    w: &'a Workload,
    c: &'a Constants,
    /// Commands to servers for one fresh token.
    gets: f64,
    adds: f64,
}

/// The plan for a workload.
pub(crate) fn plan(workload: &Workload, constants: &Constants) -> Plan {
    let w = workload;
    let replicas = f64::from(w.replicas);
    // A fresh token is in no replica, so the check queries all of them.
    let basis = Basis { w, c: constants, gets: replicas, adds: replicas };
    let gateway = basis.gateways();
    let gateways = machines(Kind::Gateway, &gateway, w.gateways, w.regions.len() as f64);
    let count = gateways.present.map_or(gateways.needed, f64::from);
    let store = basis.store(count);
    let copies = replicas * if w.place == Place::Bound { w.regions.len() as f64 } else { 1.0 };
    let servers = machines(Kind::Memcached, &store, w.servers, copies);
    let issuer = basis.issuers();
    let issuers = machines(Kind::Issuer, &issuer, w.issuers, 1.0);
    let lines = basis.lines(count, servers.present.map_or(servers.needed, f64::from));
    let machines = vec![gateways, servers, issuers];
    let mut demands: Vec<Demand> = gateway.into_iter().chain(store).chain(issuer).collect();
    for demand in &mut demands {
        let own = machines.iter().find(|machines| machines.kind == demand.kind);
        let there = own.map_or(0.0, |own| own.present.map_or(own.needed, f64::from));
        // All of it, not the share that was planned for.
        let full = if demand.resource == "memory" { FULL } else { 1.0 };
        demand.runs_out_at = if demand.used > 0.0 {
            w.rate * there * demand.machine * full / demand.used
        } else {
            f64::INFINITY
        };
    }
    let warnings = basis.warnings(&demands);
    Plan { workload: w.clone(), lines, demands, machines, warnings, constants: constants.all().to_vec() }
}

/// Enough for the most demanding resource, with the same number in each of the parts.
fn machines(kind: Kind, demands: &[Demand], present: Option<u32>, parts: f64) -> Machines {
    let most = demands.iter().map(|demand| demand.needed).fold(1.0, f64::max);
    Machines { kind, needed: (most / parts).ceil() * parts, present }
}

fn demand(
    kind: Kind,
    (resource, unit): (&'static str, &'static str),
    used: f64,
    machine: f64,
    limit: f64,
    from: String,
) -> Demand {
    // The largest region decides how many machines each gets, see `machines`; the rest is in the limit.
    let needed = used / (machine * limit);
    Demand { kind, resource, unit, used, machine, limit, needed, runs_out_at: f64::INFINITY, from }
}

impl Basis<'_> {
    /// Regions are given machines in equal numbers, so the largest share counts for each.
    fn unevenness(&self) -> f64 {
        let largest = self.w.regions.iter().copied().fold(0.0, f64::max);
        largest * self.w.regions.len() as f64
    }

    fn open(&self) -> f64 {
        self.w.rate * self.w.length
    }

    /// Of a gateway, its connections to routers left out.
    fn descriptors(&self, gateways: f64) -> f64 {
        let tunnels = (self.open() / gateways.max(1.0)).ceil() as usize;
        needed(tunnels, self.c.tunnel_descriptors.value as usize) as f64
    }

    fn records(&self) -> f64 {
        self.w.rate * self.w.lifetime
    }

    fn gateways(&self) -> Vec<Demand> {
        let (w, c) = (self.w, self.c);
        let uneven = self.unevenness();
        let router = c.router_check.value * f64::from(w.replicas);
        let relayed = c.gibibyte_cpu.value * 1e6 * w.bytes / GIB;
        let each = c.tunnel_cpu.value + relayed + router;
        let memory = c.tunnel_memory.value + 2.0 * c.socket_memory.value;
        let of = |resource, used, machine, limit, from| {
            demand(Kind::Gateway, resource, used * uneven, machine, limit, from)
        };
        vec![
            of(
                ("cpu", "cores"),
                w.rate * each / 1e6,
                w.cores,
                w.busy,
                format!(
                    "a tunnel {} us, its bytes {relayed:.1} us, router beside it {} x {} us (twemproxy's; mcrouter is not measured)",
                    c.tunnel_cpu.value, w.replicas, c.router_check.value
                ),
            ),
            of(
                ("memory", "bytes"),
                self.open() * memory,
                w.memory,
                FULL,
                format!(
                    "an open tunnel {} B and 2 sockets of {} B",
                    c.tunnel_memory.value, c.socket_memory.value
                ),
            ),
            of(
                ("link", "bit/s each way"),
                w.rate * (w.bytes + self.sent().max(self.received())) * 8.0,
                w.nic,
                w.busy,
                "what goes through a tunnel comes in once and leaves once; its check beside it".to_owned(),
            ),
            of(
                ("ports", "ports to one target"),
                w.rate * w.same_target * (w.length + c.time_wait.value),
                c.ports.value,
                1.0,
                format!(
                    "{:.0} % of the tunnels to one address and port, kept {} s after their end",
                    w.same_target * 100.0,
                    c.time_wait.value
                ),
            ),
        ]
    }

    fn store(&self, gateways: f64) -> Vec<Demand> {
        let (w, c) = (self.w, self.c);
        let replicas = f64::from(w.replicas);
        // Of separate memories each is as large as the largest region needs.
        let uneven = if w.place == Place::Bound { self.unevenness() } else { 1.0 };
        let of = |resource, used, machine, limit, from| {
            demand(Kind::Memcached, resource, used * uneven, machine, limit, from)
        };
        let watched = gateways * c.watch_gets.value * replicas;
        vec![
            of(
                ("memory", "bytes"),
                self.records() * c.record.value * replicas,
                w.memory,
                FULL,
                format!("a record {} B, in {} copies, for its whole life", c.record.value, w.replicas),
            ),
            of(
                ("cpu", "cores"),
                (w.rate * (self.gets * c.store_get.value + self.adds * c.store_add.value)
                    + watched * c.store_get.value)
                    / 1e6,
                w.cores,
                w.busy,
                format!(
                    "a `get` {} us, an `add` {} us, each in a write of its own",
                    c.store_get.value, c.store_add.value
                ),
            ),
            of(
                ("link", "bit/s in"),
                (w.rate * self.sent() + gateways * c.watch_sent.value * replicas) * 8.0,
                w.nic,
                w.busy,
                format!(
                    "a `get` and an `add` {} B in frames, to each replica; canaries {} B/s",
                    c.check_sent.value, c.watch_sent.value
                ),
            ),
        ]
    }

    fn issuers(&self) -> Vec<Demand> {
        let (w, c) = (self.w, self.c);
        let used = w.issued * c.token_cpu.value / 1e6;
        vec![demand(
            Kind::Issuer,
            ("cpu", "cores"),
            used,
            w.cores,
            w.busy,
            format!("a token {} us, HTTP included", c.token_cpu.value),
        )]
    }

    /// Bytes that leave a gateway's machine for one check, in frames.
    fn sent(&self) -> f64 {
        self.c.check_sent.value * f64::from(self.w.replicas)
    }

    fn received(&self) -> f64 {
        self.c.check_received.value * f64::from(self.w.replicas)
    }

    /// The share of checks that cross between regions, once for each replica.
    fn crossing(&self) -> f64 {
        let replicas = f64::from(self.w.replicas);
        match self.w.place {
            Place::Bound => 0.0,
            Place::Owned => (1.0 - self.w.regions.first().copied().unwrap_or(1.0)) * replicas,
            Place::Spread => replicas - 1.0,
        }
    }

    /// Seconds of distance in a check of a fresh token, where a region has none of the memory, or a part of it.
    fn waits(&self) -> f64 {
        if self.crossing() > 0.0 { 2.0 * self.w.distance } else { 0.0 }
    }

    fn lines(&self, gateways: f64, servers: f64) -> Vec<Line> {
        [self.record_lines(gateways), self.tunnel_lines(gateways), self.traffic_lines(gateways, servers)]
            .concat()
    }

    fn record_lines(&self, gateways: f64) -> Vec<Line> {
        let (w, c) = (self.w, self.c);
        let commands =
            w.rate * (self.gets + self.adds) + gateways * c.watch_gets.value * f64::from(w.replicas);
        vec![
            line("spent records", self.records(), "records", "rate x lifetime".to_owned()),
            line(
                "memory of one replica",
                self.records() * c.record.value / self.parts(),
                "bytes",
                format!("{} B a record", c.record.value),
            ),
            line(
                "memcached commands",
                commands,
                "a second",
                format!(
                    "{} `get` and {} `add` a token; {} `get` a second and gateway",
                    self.gets, self.adds, c.watch_gets.value
                ),
            ),
        ]
    }

    fn tunnel_lines(&self, gateways: f64) -> Vec<Line> {
        let (w, c) = (self.w, self.c);
        let (connections, why) = match w.pooled {
            None => (w.cores, format!("pipelined: one for each of {} workers", w.cores)),
            Some(latency) => {
                let latency = Duration::from_secs_f64(latency);
                let each = pool_size(self.one(gateways) * 2.0 / w.cores, latency) as f64;
                (w.cores * each, format!("pooled: {each} for each of {} workers, by Little's law", w.cores))
            }
        };
        vec![
            line("open tunnels", self.open(), "tunnels", "rate x tunnel".to_owned()),
            line(
                "open tunnels of a gateway",
                self.open() / gateways.max(1.0),
                "tunnels",
                "[limits] connections must be larger".to_owned(),
            ),
            line(
                "descriptors of a gateway",
                self.descriptors(gateways) + connections,
                "descriptors",
                format!(
                    "{} a tunnel, and some beside; LimitNOFILE must be larger",
                    c.tunnel_descriptors.value
                ),
            ),
            line("connections of a gateway to its router", connections, "connections", why),
            line(
                "connections of a memcached",
                gateways * w.cores * if w.place == Place::Bound { 1.0 / w.regions.len() as f64 } else { 1.0 },
                "connections",
                "one of each router thread, a thread a core; -c must be twice that".to_owned(),
            ),
        ]
    }

    fn traffic_lines(&self, gateways: f64, servers: f64) -> Vec<Line> {
        let (w, c) = (self.w, self.c);
        vec![
            line(
                "link of a gateway to its replicas",
                self.one(gateways) * self.sent() * 8.0,
                "bit/s",
                format!("{} B a check and replica", c.check_sent.value),
            ),
            line(
                "link of a memcached",
                w.rate * self.sent() * 8.0 / servers.max(1.0),
                "bit/s in",
                "the same, shared by the servers".to_owned(),
            ),
            line(
                "between regions",
                w.rate * self.crossing() * (c.check_sent.value + c.check_received.value) * 8.0,
                "bit/s",
                "both ways, all links together".to_owned(),
            ),
            line(
                "a check waits for distance",
                self.waits() * 1e3,
                "ms",
                "one trip for the `get`, one for the `add`".to_owned(),
            ),
            line(
                "tokens signed",
                w.issued,
                "a second",
                "one a tunnel, unless --issued gives another".to_owned(),
            ),
            line(
                "connections to issuers",
                w.issued / w.batch,
                "a second",
                format!("{} tokens a connection", w.batch),
            ),
        ]
    }

    /// Requests a second of one gateway.
    fn one(&self, gateways: f64) -> f64 {
        self.w.rate / gateways.max(1.0)
    }

    /// Memories that share the records.
    fn parts(&self) -> f64 {
        if self.w.place == Place::Bound { self.w.regions.len() as f64 } else { 1.0 }
    }

    fn warnings(&self, demands: &[Demand]) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.crossing() > 0.0 && self.w.distance >= 0.1 {
            warnings.push("a trip between regions is longer than the default of [store.memcached] timeout, 100 ms: nothing would be admitted".to_owned());
        }
        if self.w.regions.len() > 1 && self.w.place == Place::Bound {
            warnings.push("each region needs a [challenge] origin of its own: with one origin a token could be spent once in each".to_owned());
        }
        if self.w.replicas == 1 {
            warnings.push(
                "one copy of each record: a server that comes back empty makes its spent tokens good again"
                    .to_owned(),
            );
        }
        let memory =
            demands.iter().find(|demand| demand.kind == Kind::Memcached && demand.resource == "memory");
        let others =
            demands.iter().filter(|demand| demand.kind == Kind::Memcached && demand.resource != "memory");
        let most = others.map(|demand| demand.needed).fold(0.0, f64::max);
        if memory.is_some_and(|memory| memory.needed > 10.0 * most.max(1.0)) {
            warnings.push("memory alone decides how many servers there are: shorten rotate_every and redeem_for of the issuer's keys".to_owned());
        }
        warnings
    }
}

fn line(name: &'static str, value: f64, unit: &'static str, from: String) -> Line {
    Line { name, value, unit, from }
}
