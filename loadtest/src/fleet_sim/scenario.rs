//! The fleets that are tried, what befalls them, and the outcome that the spend contract requires.

mod safe;
mod unfit;

use super::fleet::{Fault, Fleet, Key, Replica, Servers, Workload};
use super::queue::{Nanos, SECOND};
use super::route::Route;

/// What the contract and `deploy/mcrouter/README.md` state for a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// No token is admitted twice.
    Once,
    /// Some are. A simulation that does not find them could not find others.
    Twice,
    /// Some are, and none after this moment.
    TwiceUntil(Nanos),
}

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) fleet: Fleet,
    pub(crate) workload: Workload,
    pub(crate) faults: Vec<(Nanos, Fault)>,
    pub(crate) expected: Expected,
}

/// How long records outlive their key, in seconds.
const MARGIN: u64 = 3;

/// How large a fleet is, for a rate: gateways of a region and servers of a replica.
#[derive(Clone, Copy)]
struct Size {
    gateways: usize,
    servers: usize,
}

impl Size {
    /// A fresh token is two commands to each replica, 1.5 µs each, and a server shall work half of its time. A gateway
    /// of 16 cores opens some 60,000 tunnels a second.
    fn of(rate: u64, regions: u64) -> Self {
        let servers = (rate * 2 * 15).div_ceil(10_000_000 / 2).max(2);
        let gateways = rate.div_ceil(60_000 * regions).max(2);
        Self { gateways: gateways as usize, servers: servers as usize }
    }
}

const fn whole(replica: usize) -> Servers {
    Servers { store: 0, replica, server: None }
}

const fn one(replica: usize) -> Servers {
    Servers { store: 0, replica, server: Some(0) }
}

/// The fleets and moments that scenarios are made of.
struct Setting {
    workload: Workload,
    /// A fleet of one region, and one of three.
    near: Size,
    far: Size,
}

impl Setting {
    fn scenario(
        &self,
        name: &'static str,
        about: &'static str,
        fleet: Fleet,
        faults: Vec<(Nanos, Fault)>,
        expected: Expected,
    ) -> Scenario {
        Scenario { name, about, fleet, workload: self.workload, faults, expected }
    }

    /// A moment at this many eighths of the run.
    fn at(&self, eighths: u64) -> Nanos {
        self.workload.seconds * SECOND * eighths / 8
    }

    fn quorum(&self) -> Fleet {
        Fleet::quorum(self.near.gateways, self.near.servers)
    }

    fn pool(&self) -> Fleet {
        Fleet::pool(self.near.gateways, self.near.servers)
    }

    fn spread(&self) -> Fleet {
        Fleet::spread(self.far.gateways, self.near.servers)
    }

    fn owned(&self) -> Fleet {
        Fleet::owned(self.far.gateways, self.near.servers)
    }

    fn bound(&self) -> Fleet {
        Fleet::bound(self.far.gateways, self.far.servers)
    }
}

/// All scenarios at a rate and for this many seconds, of which there must be eight.
pub(crate) fn all(rate: u64, seconds: u64, seed: u64) -> Vec<Scenario> {
    let (near, far) = (Size::of(rate, 1), Size::of(rate, 3));
    let setting = Setting { workload: Workload::new(rate, seconds, seed), near, far };
    let safe = [setting.calm(), setting.one_region(), setting.three_regions()];
    let unfit = [setting.unfit_routes(), setting.restarts_without_records()];
    safe.into_iter().chain(unfit).flatten().collect()
}

/// An `add` by this route over two replicas, or three where it is a quorum.
pub(crate) fn routed_fleet(add: Route, gateways: usize, servers: usize) -> Fleet {
    let replicas = if add == Route::AllMajority { 3 } else { 2 };
    Fleet {
        add,
        get: Route::MissFailover,
        // The verdict alone: a hint that happens to find a record is no merit of the route.
        hint: false,
        stores: vec![vec![Replica { region: 0, servers }; replicas]],
        ..Fleet::quorum(gateways, servers)
    }
}

fn routed(add: Route, size: Size) -> Fleet {
    routed_fleet(add, size.gateways, size.servers)
}

fn rolling(seconds: u64, empty: bool) -> Vec<(Nanos, Fault)> {
    let at = |eighths: u64| seconds * SECOND * eighths / 8;
    let restart = |replica: usize| {
        let down = at(2 + 2 * replica as u64);
        let back = if empty { Fault::BackEmpty(whole(replica)) } else { Fault::BackWarm(whole(replica)) };
        [(down, Fault::Dies(whole(replica))), (down + SECOND / 4, back)]
    };
    (0..3).flat_map(restart).collect()
}

fn two_empty(seconds: u64) -> Vec<(Nanos, Fault)> {
    let at = |eighths: u64| seconds * SECOND * eighths / 8;
    let restart = |replica: usize| {
        let down = 2 + 2 * replica as u64;
        [(at(down), Fault::Dies(whole(replica))), (at(down + 1), Fault::BackEmpty(whole(replica)))]
    };
    (0..2).flat_map(restart).collect()
}

fn region_lost(when: Nanos, region: usize, replica: usize) -> Vec<(Nanos, Fault)> {
    vec![
        (when, Fault::GatewaysGone(region)),
        (when, Fault::CutOff(region, true)),
        (when, Fault::Dies(whole(replica))),
    ]
}

fn owner_lost(when: Nanos) -> Vec<(Nanos, Fault)> {
    let mut faults = region_lost(when, 0, 0);
    faults.extend([1, 2].map(|replica| (when, Fault::Dies(whole(replica)))));
    faults
}

/// A key that retires in the middle, with three seconds of margin (more than the clocks differ and a check takes); the
/// gateways of one region are behind and all servers ahead by this many seconds.
fn rotation(
    name: &'static str,
    about: &'static str,
    fleet: Fleet,
    workload: Workload,
    (behind, ahead): (u64, u64),
) -> Scenario {
    let not_after = workload.seconds / 2;
    let old = Key { minted_until: workload.seconds / 4, not_after, expires: not_after + MARGIN };
    let new = Key { minted_until: u64::MAX, not_after: u64::MAX, expires: u64::MAX };
    let fleet = Fleet { keys: vec![old, new], ..fleet };
    let mut faults = vec![(0, Fault::GatewayClocksBehind(1, behind))];
    faults.extend((0..3).map(|replica| (0, Fault::ServerClock(whole(replica), ahead))));
    let expected = if behind + ahead > MARGIN { Expected::Twice } else { Expected::Once };
    let workload = Workload { replays: 0.3, ..workload };
    Scenario { name, about, fleet, workload, faults, expected }
}
