//! What the contract survives: no token is admitted twice.

use super::{Expected, Scenario, Setting, one, owner_lost, region_lost, rolling, rotation, whole};
use crate::fleet::{Fault, Fleet};
use crate::queue::{MILLISECOND, Nanos};
use crate::route::Route;

impl Setting {
    pub(super) fn calm(&self) -> Vec<Scenario> {
        vec![
            self.scenario(
                "pool-calm",
                "one region, one copy of each record, nothing happens",
                self.pool(),
                vec![],
                Expected::Once,
            ),
            self.scenario(
                "quorum-calm",
                "one region, three replicas, nothing happens",
                self.quorum(),
                vec![],
                Expected::Once,
            ),
            self.scenario(
                "spread-calm",
                "three regions, a replica in each",
                self.spread(),
                vec![],
                Expected::Once,
            ),
            self.scenario(
                "owned-calm",
                "three regions, all replicas in the first",
                self.owned(),
                vec![],
                Expected::Once,
            ),
            self.scenario(
                "bound-calm",
                "three regions, each with a store and an origin of its own",
                self.bound(),
                vec![],
                Expected::Once,
            ),
        ]
    }

    pub(super) fn one_region(&self) -> Vec<Scenario> {
        vec![
            self.scenario(
                "pool-server-dead",
                "a server of the pool dies for good",
                self.pool(),
                vec![(self.at(3), Fault::Dies(one(0)))],
                Expected::Once,
            ),
            self.scenario(
                "pool-server-frozen",
                "a server does nothing for an eighth of the time, then all that has gathered",
                self.pool(),
                vec![(self.at(3), Fault::Freezes(one(0), self.at(1)))],
                Expected::Once,
            ),
            self.scenario(
                "quorum-one-empty",
                "a whole replica dies and comes back empty",
                self.quorum(),
                vec![(self.at(2), Fault::Dies(whole(1))), (self.at(4), Fault::BackEmpty(whole(1)))],
                Expected::Once,
            ),
            self.scenario(
                "quorum-lost",
                "two of three replicas die for good",
                self.quorum(),
                vec![(self.at(3), Fault::Dies(whole(0))), (self.at(4), Fault::Dies(whole(1)))],
                Expected::Once,
            ),
            self.scenario(
                "quorum-slow",
                "a replica answers later than anyone waits, and messages are lost",
                self.quorum(),
                self.slow(),
                Expected::Once,
            ),
            self.scenario(
                "quorum-slow-majority-get",
                "the same, and a `get` by AllMajorityRoute",
                Fleet { get: Route::AllMajority, ..self.quorum() },
                self.slow(),
                Expected::Once,
            ),
            self.scenario(
                "quorum-rolling-warm",
                "all three restarted one after the other, warm",
                self.quorum(),
                rolling(self.workload.seconds, false),
                Expected::Once,
            ),
        ]
    }

    pub(super) fn three_regions(&self) -> Vec<Scenario> {
        vec![
            self.scenario(
                "spread-cut-off",
                "a region is cut off from the others, and comes back",
                self.spread(),
                vec![(self.at(2), Fault::CutOff(1, true)), (self.at(5), Fault::CutOff(1, false))],
                Expected::Once,
            ),
            self.scenario(
                "spread-region-lost",
                "a region is gone, gateways and replica",
                self.spread(),
                region_lost(self.at(3), 1, 1),
                Expected::Once,
            ),
            self.scenario(
                "owned-owner-lost",
                "the region that has the store is gone",
                self.owned(),
                owner_lost(self.at(3)),
                Expected::Once,
            ),
            self.scenario(
                "bound-region-lost",
                "a region is gone, its tokens with it",
                self.bound(),
                vec![(self.at(3), Fault::GatewaysGone(1)), (self.at(3), Fault::CutOff(1, true))],
                Expected::Once,
            ),
            rotation(
                "rotation",
                "a key retires; clocks differ by less than the margin",
                self.spread(),
                self.workload,
                (1, 1),
            ),
        ]
    }

    fn slow(&self) -> Vec<(Nanos, Fault)> {
        vec![
            (self.at(2), Fault::Slow(whole(0), 150 * MILLISECOND)),
            (self.at(2), Fault::Loses(0.01)),
            (self.at(6), Fault::Loses(0.0)),
        ]
    }
}
