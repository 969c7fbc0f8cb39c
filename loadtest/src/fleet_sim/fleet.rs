//! What a fleet is made of, and what befalls it.

use super::queue::{MILLISECOND, Nanos, SECOND};
use super::route::Route;
use postern_spend::memcached::OnLoss;

/// A fleet of gateways over its stores of spent tokens.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) regions: usize,
    /// Gateways of each region, each with a router of its own beside it.
    pub(crate) gateways: usize,
    /// The replicas of each store.
    pub(crate) stores: Vec<Vec<Replica>>,
    /// The store that the gateways of each region spend in.
    pub(crate) store_of: Vec<usize>,
    /// Each region has an origin of its own, so a token is good in the region it was minted for only.
    pub(crate) bound: bool,
    pub(crate) add: Route,
    pub(crate) get: Route,
    /// Whether the check stage sends its `get`.
    pub(crate) hint: bool,
    pub(crate) ask_whose: bool,
    pub(crate) on_loss: OnLoss,
    /// twemproxy's `auto_eject_hosts`: a server that failed twice is passed over for so long.
    pub(crate) eject: Option<Nanos>,
    /// How long a gateway waits for a command.
    pub(crate) timeout: Nanos,
    /// How long a router waits for a server.
    pub(crate) server_timeout: Nanos,
    pub(crate) canary_interval: Nanos,
    /// One way, within a region and between two: the shortest time, and the mean of what comes on top by chance.
    pub(crate) near: (Nanos, Nanos),
    pub(crate) far: (Nanos, Nanos),
    /// What a server needs for a command.
    pub(crate) service: Nanos,
    /// The token keys, the older first: when tokens of it are minted until, when they are refused, when records go.
    pub(crate) keys: Vec<Key>,
}

/// A pool of servers; the key's hash selects the one that has a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replica {
    pub(crate) region: usize,
    pub(crate) servers: usize,
}

/// A token key, in seconds of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) minted_until: u64,
    pub(crate) not_after: u64,
    /// The retirement plus the margin.
    pub(crate) expires: u64,
}

/// A key that outlives the run.
const LASTING: Key = Key { minted_until: u64::MAX, not_after: u64::MAX, expires: u64::MAX };

impl Fleet {
    /// One region, three replicas: `deploy/mcrouter/quorum.json`.
    pub(crate) fn quorum(gateways: usize, servers: usize) -> Self {
        let replica = Replica { region: 0, servers };
        Self {
            regions: 1,
            gateways,
            stores: vec![vec![replica; 3]],
            store_of: vec![0],
            bound: false,
            add: Route::AllMajority,
            get: Route::MissFailover,
            hint: true,
            ask_whose: false,
            on_loss: OnLoss::Warn,
            eject: None,
            timeout: 100 * MILLISECOND,
            server_timeout: 100 * MILLISECOND,
            canary_interval: SECOND,
            near: (100_000, 50_000),
            far: (20 * MILLISECOND, MILLISECOND),
            service: 1_500,
            keys: vec![LASTING],
        }
    }

    /// One region, one pool: `deploy/mcrouter/single.json`, or twemproxy.
    pub(crate) fn pool(gateways: usize, servers: usize) -> Self {
        let stores = vec![vec![Replica { region: 0, servers }]];
        Self { stores, add: Route::Pool, get: Route::Pool, ..Self::quorum(gateways, servers) }
    }

    /// Three regions, one store with a replica in each.
    pub(crate) fn spread(gateways: usize, servers: usize) -> Self {
        let replicas = (0..3).map(|region| Replica { region, servers }).collect();
        // All at once: one after the other would cross the sea three times.
        Self {
            regions: 3,
            stores: vec![replicas],
            store_of: vec![0; 3],
            get: Route::AllMajority,
            ..Self::quorum(gateways, servers)
        }
    }

    /// Three regions, one store in the first of them.
    pub(crate) fn owned(gateways: usize, servers: usize) -> Self {
        Self { regions: 3, store_of: vec![0; 3], get: Route::AllMajority, ..Self::quorum(gateways, servers) }
    }

    /// Three regions, each with a store and an origin of its own.
    pub(crate) fn bound(gateways: usize, servers: usize) -> Self {
        let store = |region| vec![Replica { region, servers }; 3];
        Self {
            regions: 3,
            stores: (0..3).map(store).collect(),
            store_of: vec![0, 1, 2],
            bound: true,
            ..Self::quorum(gateways, servers)
        }
    }
}

/// Which servers something happens to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Servers {
    pub(crate) store: usize,
    pub(crate) replica: usize,
    /// One of the replica, or all.
    pub(crate) server: Option<usize>,
}

/// Something that befalls the fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Servers die: connections to them are refused.
    Dies(Servers),
    /// They are back, with nothing.
    BackEmpty(Servers),
    /// They are back, with what they knew (a warm restart).
    BackWarm(Servers),
    /// They pause for this time, and then execute what has queued up.
    Freezes(Servers, Nanos),
    /// Their replies take longer by this time from now on.
    Slow(Servers, Nanos),
    /// Their clock is ahead by this many seconds from now on.
    ServerClock(Servers, u64),
    /// The clocks of the gateways of a region are behind by this many seconds from now on.
    GatewayClocksBehind(usize, u64),
    /// This share of all messages between gateways and servers is lost from now on.
    Loses(f64),
    /// Nothing passes between this region and the others, or does again.
    CutOff(usize, bool),
    /// The gateways of a region are gone, and with `Dies` its servers.
    GatewaysGone(usize),
}

/// What is presented.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// Presentations a second.
    pub(crate) rate: u64,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// The share of presentations whose token was presented before, at any time.
    pub(crate) replays: f64,
    /// The share of fresh tokens that are presented several times within a few milliseconds.
    pub(crate) raced: f64,
    /// After the time is over, each so-many-th token once more.
    pub(crate) sweep_each: usize,
}

/// The most presentations in a race.
pub(crate) const RACERS: u64 = 8;

impl Workload {
    pub(crate) fn new(rate: u64, seconds: u64, seed: u64) -> Self {
        Self { rate, seconds, seed, replays: 0.1, raced: 0.02, sweep_each: 4 }
    }
}
