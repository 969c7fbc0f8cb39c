//! The fleets that are tried, what befalls them, and the outcome that the spend contract requires.

use super::fleet::{Fault, Fleet, Key, Replica, Servers, Workload};
use super::queue::{MILLISECOND, Nanos, SECOND};
use super::route::Route;
use postern_spend::memcached::OnLoss;

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

/// All scenarios at a rate and for this many seconds, of which there must be eight.
pub(crate) fn all(rate: u64, seconds: u64, seed: u64) -> Vec<Scenario> {
    let workload = Workload::new(rate, seconds, seed);
    let near = Size::of(rate, 1);
    let far = Size::of(rate, 3);
    let quorum = || Fleet::quorum(near.gateways, near.servers);
    let pool = || Fleet::pool(near.gateways, near.servers);
    let spread = || Fleet::spread(far.gateways, near.servers);
    let owned = || Fleet::owned(far.gateways, near.servers);
    let bound = || Fleet::bound(far.gateways, far.servers);
    // A moment at this many eighths of the run.
    let at = |eighths: u64| seconds * SECOND * eighths / 8;
    let slow = || {
        vec![
            (at(2), Fault::Slow(whole(0), 150 * MILLISECOND)),
            (at(2), Fault::Loses(0.01)),
            (at(6), Fault::Loses(0.0)),
        ]
    };
    let scenario =
        |name, about, fleet, faults, expected| Scenario { name, about, fleet, workload, faults, expected };
    let mut all = vec![
        scenario(
            "pool-calm",
            "one region, one copy of each record, nothing happens",
            pool(),
            vec![],
            Expected::Once,
        ),
        scenario(
            "quorum-calm",
            "one region, three replicas, nothing happens",
            quorum(),
            vec![],
            Expected::Once,
        ),
        scenario("spread-calm", "three regions, a replica in each", spread(), vec![], Expected::Once),
        scenario("owned-calm", "three regions, all replicas in the first", owned(), vec![], Expected::Once),
        scenario(
            "bound-calm",
            "three regions, each with a store and an origin of its own",
            bound(),
            vec![],
            Expected::Once,
        ),
        scenario(
            "pool-server-dead",
            "a server of the pool dies for good",
            pool(),
            vec![(at(3), Fault::Dies(one(0)))],
            Expected::Once,
        ),
        scenario(
            "pool-server-frozen",
            "a server does nothing for an eighth of the time, then all that has gathered",
            pool(),
            vec![(at(3), Fault::Freezes(one(0), at(1)))],
            Expected::Once,
        ),
        scenario(
            "quorum-one-empty",
            "a whole replica dies and comes back empty",
            quorum(),
            vec![(at(2), Fault::Dies(whole(1))), (at(4), Fault::BackEmpty(whole(1)))],
            Expected::Once,
        ),
        scenario(
            "quorum-lost",
            "two of three replicas die for good",
            quorum(),
            vec![(at(3), Fault::Dies(whole(0))), (at(4), Fault::Dies(whole(1)))],
            Expected::Once,
        ),
        scenario(
            "quorum-slow",
            "a replica answers later than anyone waits, and messages are lost",
            quorum(),
            slow(),
            Expected::Once,
        ),
        scenario(
            "quorum-slow-majority-get",
            "the same, and a `get` by AllMajorityRoute",
            Fleet { get: Route::AllMajority, ..quorum() },
            slow(),
            Expected::Once,
        ),
        scenario(
            "quorum-rolling-warm",
            "all three restarted one after the other, warm",
            quorum(),
            rolling(seconds, false),
            Expected::Once,
        ),
        scenario(
            "spread-cut-off",
            "a region is cut off from the others, and comes back",
            spread(),
            vec![(at(2), Fault::CutOff(1, true)), (at(5), Fault::CutOff(1, false))],
            Expected::Once,
        ),
        scenario(
            "spread-region-lost",
            "a region is gone, gateways and replica",
            spread(),
            region_lost(at(3), 1, 1),
            Expected::Once,
        ),
        scenario(
            "owned-owner-lost",
            "the region that has the store is gone",
            owned(),
            owner_lost(at(3)),
            Expected::Once,
        ),
        scenario(
            "bound-region-lost",
            "a region is gone, its tokens with it",
            bound(),
            vec![(at(3), Fault::GatewaysGone(1)), (at(3), Fault::CutOff(1, true))],
            Expected::Once,
        ),
        rotation(
            "rotation",
            "a key retires; clocks differ by less than the margin",
            spread(),
            workload,
            (1, 1),
        ),
    ];
    all.extend(unsafe_ones(workload, near, far));
    all
}

/// What `postern doctor --mcrouter-config` refuses, or the documents call a loss.
fn unsafe_ones(workload: Workload, near: Size, far: Size) -> Vec<Scenario> {
    let seconds = workload.seconds;
    let at = |eighths: u64| seconds * SECOND * eighths / 8;
    let quorum = || Fleet::quorum(near.gateways, near.servers);
    let scenario =
        |name, about, fleet, faults, expected| Scenario { name, about, fleet, workload, faults, expected };
    let returns = || vec![(at(2), Fault::Dies(whole(0))), (at(4), Fault::BackEmpty(whole(0)))];
    let ejecting = Fleet { eject: Some(30 * SECOND), ..Fleet::pool(near.gateways, near.servers.max(3)) };
    let same_origin = Fleet { bound: false, ..Fleet::bound(far.gateways, far.servers) };
    let asking = Fleet { ask_whose: true, ..quorum() };
    let refusing = Fleet { on_loss: OnLoss::Refuse, ..quorum() };
    let without_hint = || Fleet { hint: false, ..quorum() };
    // The first replica's death for good: no loss of a record is needed for FailoverRoute.
    let away = vec![(at(2), Fault::Dies(whole(0))), (at(4), Fault::BackWarm(whole(0)))];
    let last_back = at(6) + SECOND / 4;
    vec![
        scenario(
            "failover",
            "FailoverRoute; the first replica is away for a while and forgets nothing",
            routed(Route::Failover, near),
            away,
            Expected::Twice,
        ),
        scenario(
            "fastest",
            "AllFastestRoute; a replica comes back empty",
            routed(Route::AllFastest, near),
            returns(),
            Expected::Twice,
        ),
        scenario(
            "initial",
            "AllInitialRoute; the first replica comes back empty",
            routed(Route::AllInitial, near),
            returns(),
            Expected::Twice,
        ),
        scenario(
            "auto-eject",
            "twemproxy with auto_eject_hosts; a server dies",
            ejecting,
            vec![(at(3), Fault::Dies(one(0)))],
            Expected::Twice,
        ),
        scenario(
            "pool-server-empty",
            "one copy of each record; a server comes back empty",
            Fleet::pool(near.gateways, near.servers),
            vec![(at(3), Fault::Dies(one(0))), (at(4), Fault::BackEmpty(one(0)))],
            Expected::Twice,
        ),
        scenario(
            "same-origin",
            "three stores, and tokens that are good in every region",
            same_origin,
            vec![],
            Expected::Twice,
        ),
        scenario(
            "rolling-cold",
            "all three restarted one after the other, empty",
            quorum(),
            rolling(seconds, true),
            Expected::Twice,
        ),
        scenario(
            "rolling-cold-refuse",
            "the same with on_loss = \"refuse\": until each gateway has read its canaries",
            refusing,
            rolling(seconds, true),
            Expected::TwiceUntil(last_back + SECOND + SECOND / 4),
        ),
        scenario(
            "two-empty-hint",
            "two of three replicas come back empty; the hint finds records on the third",
            quorum(),
            two_empty(seconds),
            Expected::Once,
        ),
        scenario(
            "two-empty",
            "the same, without the check stage's `get`",
            without_hint(),
            two_empty(seconds),
            Expected::Twice,
        ),
        scenario(
            "two-empty-refuse",
            "the same with on_loss = \"refuse\": the canaries are found on the third replica, so nothing is noticed",
            Fleet { on_loss: OnLoss::Refuse, ..without_hint() },
            two_empty(seconds),
            Expected::Twice,
        ),
        scenario(
            "two-empty-majority-get",
            "the same, and a `get` by AllMajorityRoute: noticed by the next canaries",
            Fleet { on_loss: OnLoss::Refuse, get: Route::AllMajority, ..without_hint() },
            two_empty(seconds),
            Expected::TwiceUntil(at(5) + SECOND + SECOND / 4),
        ),
        scenario(
            "ask-whose",
            "ask_whose = true behind a quorum; one message in ten is lost",
            asking,
            vec![(at(2), Fault::Loses(0.1))],
            Expected::Twice,
        ),
        rotation(
            "rotation-clocks",
            "a key retires; the store's clocks are ahead by more than the margin",
            Fleet::spread(far.gateways, near.servers),
            workload,
            (1, 4),
        ),
    ]
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
