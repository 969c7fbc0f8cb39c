//! Plans that were computed by hand.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::constants::{Constant, Constants, MEASURED};
use super::model::plan;
use super::planned::{Kind, Plan};
use super::render;
use super::workload::Workload;
use crate::args::{Cli, Command, Place, Servers};
use clap::Parser;

/// Constants that divide well.
fn round() -> Constants {
    let of = |constant: Constant, value| Constant { value, ..constant };
    Constants {
        record: of(MEASURED.record, 100.0),
        store_get: of(MEASURED.store_get, 4.0),
        store_add: of(MEASURED.store_add, 6.0),
        router_check: of(MEASURED.router_check, 10.0),
        check_sent: of(MEASURED.check_sent, 250.0),
        check_received: of(MEASURED.check_received, 150.0),
        watch_gets: of(MEASURED.watch_gets, 0.0),
        watch_sent: of(MEASURED.watch_sent, 0.0),
        tunnel_cpu: of(MEASURED.tunnel_cpu, 90.0),
        gibibyte_cpu: of(MEASURED.gibibyte_cpu, 1.0),
        tunnel_memory: of(MEASURED.tunnel_memory, 30_000.0),
        socket_memory: of(MEASURED.socket_memory, 5_000.0),
        token_cpu: of(MEASURED.token_cpu, 500.0),
        ..MEASURED
    }
}

fn workload() -> Workload {
    Workload {
        rate: 10_000.0,
        lifetime: 1_000_000.0,
        replicas: 1,
        regions: vec![1.0],
        place: Place::Bound,
        distance: 0.04,
        length: 30.0,
        bytes: 0.0,
        same_target: 0.1,
        issued: 10_000.0,
        batch: 50.0,
        cores: 4.0,
        memory: 100e9,
        nic: 1e9,
        busy: 0.5,
        gateways: None,
        servers: None,
        issuers: None,
        pooled: None,
    }
}

fn used(plan: &Plan, kind: Kind, resource: &str) -> (f64, f64) {
    let found =
        plan.demands.iter().find(|demand| demand.kind == kind && demand.resource == resource).unwrap();
    (found.used, found.runs_out_at)
}

fn needed(plan: &Plan, kind: Kind) -> f64 {
    plan.machines.iter().find(|machines| machines.kind == kind).unwrap().needed
}

fn line(plan: &Plan, name: &str) -> f64 {
    plan.lines.iter().find(|line| line.name == name).unwrap().value
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= b.abs() * 1e-9, "{a} is not {b}");
}

#[test]
fn one_region_one_copy_by_hand() {
    let plan = plan(&workload(), &round());
    // 10,000 a second for 1,000,000 s are 10^10 records of 100 bytes: 10^12 bytes, 80 GB of each server: 13.
    close(line(&plan, "spent records"), 1e10);
    close(used(&plan, Kind::Memcached, "memory").0, 1e12);
    close(needed(&plan, Kind::Memcached), 13.0);
    // 13 servers of 80 GB hold 1.04 x 10^10 records: 10,400 a second.
    close(used(&plan, Kind::Memcached, "memory").1, 10_400.0);
    // 4 + 6 us a token are a tenth of a core; 250 bytes are 20 Mbit/s.
    close(used(&plan, Kind::Memcached, "cpu").0, 0.1);
    close(used(&plan, Kind::Memcached, "link").0, 20e6);
    // 90 us a tunnel and 10 us of the router: one core, of 2 that may be busy: one gateway is enough, 4 are planned.
    close(used(&plan, Kind::Gateway, "cpu").0, 1.0);
    close(used(&plan, Kind::Gateway, "cpu").1, 160_000.0);
    // 300,000 tunnels of 40,000 bytes.
    close(used(&plan, Kind::Gateway, "memory").0, 12e9);
    // 1,000 a second to one target, each port taken for 90 s: 90,000 ports of 28,232: 4 gateways.
    close(used(&plan, Kind::Gateway, "ports").0, 90_000.0);
    close(needed(&plan, Kind::Gateway), 4.0);
    // 500 us a token: 5 cores of 2.
    close(needed(&plan, Kind::Issuer), 3.0);
    assert_eq!(plan.first().unwrap().resource, "memory");
}

#[test]
fn a_quorum_is_three_of_everything_in_the_store() {
    let single = plan(&workload(), &round());
    let quorum = plan(&Workload { replicas: 3, ..workload() }, &round());
    for resource in ["memory", "cpu", "link"] {
        close(used(&quorum, Kind::Memcached, resource).0, 3.0 * used(&single, Kind::Memcached, resource).0);
    }
    // Each replica has the same number of servers: 37.5 are 39.
    close(needed(&quorum, Kind::Memcached), 39.0);
    close(line(&quorum, "memcached commands"), 60_000.0);
}

#[test]
fn regions_have_memories_of_their_own_or_one_that_is_far() {
    let three = Workload { regions: vec![0.5, 0.3, 0.2], replicas: 3, ..workload() };
    let bound = plan(&three, &round());
    // Each of three memories is as large as the first region's: 1.5 times as much in all; 57 servers, 9 pools of 7.
    close(used(&bound, Kind::Memcached, "memory").0, 4.5e12);
    close(needed(&bound, Kind::Memcached), 63.0);
    close(line(&bound, "between regions"), 0.0);
    close(line(&bound, "a check waits for distance"), 0.0);
    let owned = plan(&Workload { place: Place::Owned, ..three.clone() }, &round());
    close(used(&owned, Kind::Memcached, "memory").0, 3e12);
    // Half of the checks cross, to three replicas: 10,000 x 1.5 x 400 bytes.
    close(line(&owned, "between regions"), 10_000.0 * 1.5 * 400.0 * 8.0);
    close(line(&owned, "a check waits for distance"), 80.0);
    let spread = plan(&Workload { place: Place::Spread, ..three }, &round());
    close(line(&spread, "between regions"), 10_000.0 * 2.0 * 400.0 * 8.0);
}

#[test]
fn what_is_there_decides_where_it_breaks() {
    let plan =
        plan(&Workload { servers: Some(2), gateways: Some(4), issuers: Some(9), ..workload() }, &round());
    // 2 x 80 GB hold 1.6 x 10^9 records: 1,600 a second.
    let first = plan.first().unwrap();
    assert_eq!((first.kind, first.resource), (Kind::Memcached, "memory"));
    close(first.runs_out_at, 1_600.0);
    let text = render::text(&plan);
    assert!(text.contains("Too few machines: 2 memcached where 13 are needed."), "{text}");
    assert!(text.contains("First to break: memory of memcached, at 1,600 requests a second."), "{text}");
}

#[test]
fn the_largest_numbers_overflow_nothing() {
    let most = Workload {
        rate: 1e9,
        lifetime: 100.0 * 365.0 * 86_400.0,
        replicas: 3,
        length: 1e9,
        bytes: u64::MAX as f64,
        pooled: Some(60.0),
        ..workload()
    };
    let plan = plan(&most, &MEASURED);
    assert!(
        plan.demands
            .iter()
            .all(|demand| demand.used.is_finite() && demand.needed.is_finite() && demand.runs_out_at >= 0.0)
    );
    assert!(plan.lines.iter().all(|line| line.value.is_finite()));
    assert!(!render::text(&plan).contains("inf") && !render::text(&plan).contains("NaN"));
    assert!(render::json(&plan).contains("\"runs_out_at\""));
}

#[test]
fn connections_of_a_pool_follow_littles_law() {
    let pooled = plan(&Workload { gateways: Some(4), pooled: Some(0.001), ..workload() }, &round());
    // 2,500 checks of two commands for 4 workers are 1,250 a second each: 1.25 under way, and three deviations: 5.
    close(line(&pooled, "connections of a gateway to its router"), 20.0);
}

#[test]
fn the_command_line_has_what_the_document_shows() {
    let parse = |arguments: &str| Cli::try_parse_from(arguments.split(' '));
    let Ok(Cli { command: Command::Servers(command) }) =
        parse("postern doctor --plan --rate 1M --regions 3 --place spread")
    else {
        panic!("not parsed")
    };
    let Servers::Doctor(doctor) = *command else { panic!("another command") };
    let workload = Workload::new(&doctor.planned).unwrap();
    assert_eq!((workload.rate, workload.issued, workload.lifetime), (1e6, 1e6, 889.0 * 3600.0));
    for wrong in [
        "--rate 1M",
        "--plan --rate 0",
        "--plan --rate x",
        "--plan --rate 1 --lifetime 30",
        "--plan --rate 1 --nic 10",
    ] {
        assert!(parse(&format!("postern doctor {wrong}")).is_err(), "{wrong}");
    }
}
