//! What `postern doctor --mcrouter-config` refuses, or the documents call a loss: the simulation must find it.

use super::{Expected, Scenario, Setting, one, rolling, rotation, routed, two_empty, whole};
use crate::fleet::{Fault, Fleet};
use crate::queue::{Nanos, SECOND};
use crate::route::Route;
use postern_spend::memcached::OnLoss;

impl Setting {
    pub(super) fn unfit_routes(&self) -> Vec<Scenario> {
        vec![
            self.scenario(
                "failover",
                "FailoverRoute; the first replica is away for a while and forgets nothing",
                routed(Route::Failover, self.near),
                // For good: no loss of a record is needed for FailoverRoute.
                vec![(self.at(2), Fault::Dies(whole(0))), (self.at(4), Fault::BackWarm(whole(0)))],
                Expected::Twice,
            ),
            self.scenario(
                "fastest",
                "AllFastestRoute; a replica comes back empty",
                routed(Route::AllFastest, self.near),
                self.returns(),
                Expected::Twice,
            ),
            self.scenario(
                "initial",
                "AllInitialRoute; the first replica comes back empty",
                routed(Route::AllInitial, self.near),
                self.returns(),
                Expected::Twice,
            ),
            self.scenario(
                "auto-eject",
                "twemproxy with auto_eject_hosts; a server dies",
                Fleet {
                    eject: Some(30 * SECOND),
                    ..Fleet::pool(self.near.gateways, self.near.servers.max(3))
                },
                vec![(self.at(3), Fault::Dies(one(0)))],
                Expected::Twice,
            ),
            self.scenario(
                "pool-server-empty",
                "one copy of each record; a server comes back empty",
                Fleet::pool(self.near.gateways, self.near.servers),
                vec![(self.at(3), Fault::Dies(one(0))), (self.at(4), Fault::BackEmpty(one(0)))],
                Expected::Twice,
            ),
            self.scenario(
                "same-origin",
                "three stores, and tokens that are good in every region",
                Fleet { bound: false, ..self.bound() },
                vec![],
                Expected::Twice,
            ),
            self.scenario(
                "ask-whose",
                "ask_whose = true behind a quorum; one message in ten is lost",
                Fleet { ask_whose: true, ..self.quorum() },
                vec![(self.at(2), Fault::Loses(0.1))],
                Expected::Twice,
            ),
            rotation(
                "rotation-clocks",
                "a key retires; the store's clocks are ahead by more than the margin",
                Fleet::spread(self.far.gateways, self.near.servers),
                self.workload,
                (1, 4),
            ),
        ]
    }

    pub(super) fn restarts_without_records(&self) -> Vec<Scenario> {
        vec![
        self.scenario(
            "rolling-cold",
            "all three restarted one after the other, empty",
            self.quorum(),
            rolling(self.workload.seconds, true),
            Expected::Twice,
        ),
        self.scenario(
            "rolling-cold-refuse",
            "the same with on_loss = \"refuse\": until each gateway has read its canaries",
            Fleet { on_loss: OnLoss::Refuse, ..self.quorum() },
            rolling(self.workload.seconds, true),
            Expected::TwiceUntil(self.at(6) + SECOND / 4 + SECOND + SECOND / 4),
        ),
        self.scenario(
            "two-empty-hint",
            "two of three replicas come back empty; the hint finds records on the third",
            self.quorum(),
            two_empty(self.workload.seconds),
            Expected::Once,
        ),
        self.scenario(
            "two-empty",
            "the same, without the check stage's `get`",
            self.without_hint(),
            two_empty(self.workload.seconds),
            Expected::Twice,
        ),
        self.scenario(
            "two-empty-refuse",
            "the same with on_loss = \"refuse\": the canaries are found on the third replica, so nothing is noticed",
            Fleet { on_loss: OnLoss::Refuse, ..self.without_hint() },
            two_empty(self.workload.seconds),
            Expected::Twice,
        ),
        self.scenario(
            "two-empty-majority-get",
            "the same, and a `get` by AllMajorityRoute: noticed by the next canaries",
            Fleet { on_loss: OnLoss::Refuse, get: Route::AllMajority, ..self.without_hint() },
            two_empty(self.workload.seconds),
            Expected::TwiceUntil(self.at(5) + SECOND + SECOND / 4),
        ),
        ]
    }

    fn without_hint(&self) -> Fleet {
        Fleet { hint: false, ..self.quorum() }
    }

    /// The first replica comes back empty.
    fn returns(&self) -> Vec<(Nanos, Fault)> {
        vec![(self.at(2), Fault::Dies(whole(0))), (self.at(4), Fault::BackEmpty(whole(0)))]
    }
}
