//! The claim of a deployment for a plan, by docs/how-it-works/spend-contract.md.

use super::deployment::{RouterPlan, Shape};
use super::fault::{Fault, Millis, What};
use super::plan::{Plan, Theme};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) class: Class,
    /// `true` if tokens may be void: the records next to theirs may be gone, or were never written.
    pub(crate) may_void: bool,
    /// `true` if every fresh token is admitted at any time, unless its caller leaves.
    pub(crate) serves: bool,
    /// `true` if clocks differ.
    pub(crate) is_skewed: bool,
    /// `true` if fresh tokens are admitted after all faults are over.
    pub(crate) recovers: bool,
}

/// Strictness of the judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// No token is admitted twice.
    Survives,
    /// Records are lost, but the witnesses next to them are not. A spent token may be admitted once more until the mark is
    /// closed, at most [`CLOSED`] after the last change.
    Closes,
    /// An eviction follows another loss and may spare the sentinels, too: nothing closes the mark.
    Open,
}

/// Maximum time to close a mark: sentinels are read at ages that grow by a tenth, and runs last about twenty seconds.
pub(crate) const CLOSED: Millis = 6_000;

/// Maximum time until no tokens of the previous mark are left: two minutes and some until a loss on one replica is found and the
/// next mark is planted, ten minutes until agents have requested the challenge again, and the rest until agents have used up
/// their tokens.
pub(crate) const TURNOVER: Millis = 25 * 60_000;
/// Maximum number of marks in a day that follow marks which two replicas still know.
const MARKS_IN_A_DAY: usize = 3;

impl Claim {
    /// A claim that excuses nothing and requires no service: the base of the tests' claims.
    #[cfg(test)]
    pub(crate) const BARE: Self =
        Self { class: Class::Survives, may_void: false, serves: false, is_skewed: false, recovers: false };

    pub(crate) fn of(plan: &Plan) -> Self {
        let (shape, faults) = (plan.deployment.shape, &plan.faults);
        let has = |wanted: fn(&What) -> bool| faults.iter().any(|fault| wanted(&fault.what));
        let is_skewed = plan.deployment.servers.iter().any(|offset| *offset != 0)
            || has(|what| matches!(what, What::Clock { .. }));
        let is_alike = matches!(shape, Shape::Direct | Shape::Pool | Shape::Voted) && !plan.is_mixed();
        let evicts = has(|what| matches!(what, What::Evict { .. }));
        let is_prompt = plan
            .deployment
            .routers
            .iter()
            .all(|router| router.probe_longest <= 5_000 && !flaps(plan, router));
        let recovers =
            plan.theme == Theme::Long || is_alike && ends_alike(plan) && !is_skewed && !evicts && is_prompt;
        let serves = plan.theme == Theme::Long && loses_one_after_another(plan);
        let loses = has(What::loses) || is_skewed || !is_alike;
        let may_void = !serves && (loses || is_away_at_first(plan));
        // While the watch sees a loss it reads all sentinels, so that they are used later than records of before. An eviction that
        // follows may take these records and leave sentinels and witnesses: then nothing shows that the mark is to be closed.
        let mut losses = faults.iter().filter(|fault| fault.what.loses()).skip(1);
        let follows_a_loss = losses.any(|fault| matches!(fault.what, What::Evict { .. }));
        let class = match (evicts, follows_a_loss) {
            (true, true) => Class::Open,
            (true, false) => Class::Closes,
            (false, _) => Class::Survives,
        };
        Self { class, may_void, serves, is_skewed, recovers }
    }
}

/// `true` if all routers of a pool list the same servers once all faults are over. Gateways refuse every request otherwise.
fn ends_alike(plan: &Plan) -> bool {
    let mut lists: Vec<_> = plan.deployment.routers.iter().map(|router| &router.list).collect();
    for fault in &plan.faults {
        if let What::Servers { router, list } = &fault.what {
            lists[*router] = list;
        }
    }
    plan.deployment.shape != Shape::Pool || lists.windows(2).all(|pair| pair[0] == pair[1])
}

/// `true` if a server may be away while the first marks are planted. A mark is offered without the witnesses of a server that is
/// away for ten seconds, or that a router still takes for down, and the marks of all keys are planted when the run begins.
fn is_away_at_first(plan: &Plan) -> bool {
    let taken_for_down = plan.deployment.routers.iter().map(|router| router.probe_first).max().unwrap_or(0);
    let first = plan.faults.iter().filter(|fault| away(fault).is_some() && fault.at < 10_000);
    first.map(|fault| fault.lasts + taken_for_down).sum::<Millis>() > 6_000
        || plan.deployment.routers.iter().any(|router| flaps(plan, router))
}

/// `true` if the router considers a server down after every late answer, until the end of the run.
fn flaps(plan: &Plan, router: &RouterPlan) -> bool {
    let latency = plan.deployment.latency;
    latency.spikes > 0 && latency.spike >= router.timeout * 1_000
}

/// `true` if, of three voting replicas, never more than one is away or lost before the next mark is planted and agents have used
/// up the tokens of the previous one. A day has three such marks, so a fourth loss must be the last.
fn loses_one_after_another(plan: &Plan) -> bool {
    let faults = &plan.faults;
    let turns_over = faults.windows(2).all(|pair| pair[0].at + pair[0].lasts + TURNOVER <= pair[1].at);
    let is_of_a_replica = |fault: &Fault| replica_lost(&fault.what).is_some() || away(fault).is_some();
    let losses = faults.iter().filter(|fault| fault.what.loses()).count();
    plan.deployment.shape == Shape::Voted
        && faults.iter().all(is_of_a_replica)
        && turns_over
        && losses <= MARKS_IN_A_DAY + 1
        && faults.first().is_none_or(|fault| fault.at >= TURNOVER)
}

/// Returns the replica whose records are lost, or unreachable for the rest of the run.
fn replica_lost(what: &What) -> Option<usize> {
    match what {
        What::Restart { server } => Some(server % 3),
        What::Servers { router, .. } => Some(*router),
        _ => None,
    }
}

/// Returns the server that may miss writes.
fn away(fault: &Fault) -> Option<usize> {
    match fault.what {
        What::Freeze { server }
        | What::Cut { server, .. }
        | What::Refuse { server }
        | What::Slow { server, .. }
        | What::Full { server } => Some(server),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_after_a_loss_may_leave_marks_open() {
        let mut plan = Plan::new(41_004_447);
        assert_eq!(Claim::of(&plan).class, Class::Open);
        let evicts = |fault: &Fault| matches!(fault.what, What::Evict { .. });
        let first = plan.faults.iter().position(evicts).unwrap();
        plan.faults = vec![plan.faults[first].clone()];
        assert_eq!(Claim::of(&plan).class, Class::Closes);
    }
}
