//! Findings that stand: the store does here what its contract excludes. Runs that may come upon one are counted apart, so
//! that new findings are seen; with `--strict` they count as all others do.

use super::deployment::{CLOCK_TOLERANCE, Shape};
use super::plan::Plan;

/// A finding that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Open {
    /// One address leads to two lists of servers. When all connections move from one router to the other while a key begins,
    /// canaries that are missing behind the other router cannot be told from canaries that were never written.
    KeyBeginsBetweenRouters,
    /// The clock of one replica is ahead: it answers STORED each time, so that two racers are admitted, each with one of
    /// the other replicas. A majority's `get` does not show it.
    OneReplicaAhead,
    /// Errors are reported as misses: a canary seems to be missing, and is written again as one that was lost. Where a replica
    /// lacks it, that is the copy that is read later, and every gateway takes the key's records for lost.
    LostMarkOnOneReplica,
    /// A FailoverRoute repeats an `add` whose reply is late on the next server, and both store it. Witnesses that are
    /// planted meanwhile stand on both, so each of them admits a token.
    FailoverRepeatsWitnesses,
}

impl Open {
    /// The finding that a plan may come upon.
    pub(crate) fn of(plan: &Plan) -> Option<Self> {
        let deployment = &plan.deployment;
        let misses = deployment.routers.iter().any(|router| router.misses);
        let ahead = deployment.servers.iter().any(|offset| *offset > CLOCK_TOLERANCE as i64);
        match deployment.shape {
            Shape::Balancer => Some(Self::KeyBeginsBetweenRouters),
            Shape::Quorum if ahead => Some(Self::OneReplicaAhead),
            Shape::Quorum if misses => Some(Self::LostMarkOnOneReplica),
            Shape::Failover if plan.is_bound => Some(Self::FailoverRepeatsWitnesses),
            _ => None,
        }
    }
}
