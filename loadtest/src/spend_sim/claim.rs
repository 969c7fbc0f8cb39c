//! What the deployment claims for a plan, by docs/how-it-works/spend-contract.md.

use super::deployment::{RouterPlan, Shape};
use super::fault::{Fault, Millis, What};
use super::plan::{Plan, Theme};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) class: Class,
    /// Tokens may be void: the records beside theirs may be gone, or were never written.
    pub(crate) may_void: bool,
    /// Every fresh token is admitted at any time, unless its caller goes away.
    pub(crate) serves: bool,
    /// Clocks differ.
    pub(crate) is_skewed: bool,
    /// Fresh tokens are admitted when all faults are over.
    pub(crate) recovers: bool,
}

/// How strictly a run is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// No token is admitted twice.
    Survives,
    /// Records are lost and the witnesses beside them are not. What was spent before may be admitted once more until the mark
    /// is closed, which takes this long at most from the last change on, in milliseconds.
    Closes { within: Millis },
}

/// Sentinels are read at ages that grow by a tenth, and runs last some twenty seconds.
const CLOSED: Millis = 6_000;

/// Until a loss on one replica was found and the next mark planted, two minutes and some; until agents have asked for the
/// challenge anew, ten; and until they have used up what they hold.
pub(crate) const TURNOVER: Millis = 25 * 60_000;
/// Marks that follow others which two replicas still know.
const MARKS_IN_A_DAY: usize = 3;

impl Claim {
    /// Nothing is excused and nothing is served: what tests begin with.
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
        let recovers = plan.theme == Theme::Long || is_alike && !is_skewed && !evicts && is_prompt;
        let serves = plan.theme == Theme::Long && loses_one_after_another(plan);
        let loses = has(What::loses) || is_skewed || !is_alike;
        let may_void = !serves && (loses || is_away_at_first(plan));
        let class = if evicts { Class::Closes { within: CLOSED } } else { Class::Survives };
        Self { class, may_void, serves, is_skewed, recovers }
    }
}

/// A mark is offered without the witnesses of a server that is away for ten seconds. Marks of all keys are planted when the
/// run begins.
fn is_away_at_first(plan: &Plan) -> bool {
    let first = plan.faults.iter().filter(|fault| away(fault).is_some() && fault.at < 10_000);
    first.map(|fault| fault.lasts).sum::<Millis>() > 6_000
        || plan.deployment.routers.iter().any(|router| flaps(plan, router))
}

/// Whether a router takes a server for down after every late answer, to the end of the run.
fn flaps(plan: &Plan, router: &RouterPlan) -> bool {
    let latency = plan.deployment.latency;
    latency.spikes > 0 && latency.spike >= router.timeout * 1_000
}

/// Of three replicas that vote never more than one is away or lost before the next mark was planted and agents have used up
/// the tokens of the one before. There are three such marks in a day, so a fourth loss is the last.
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

/// The replica of which records are gone, or out of reach for good.
fn replica_lost(what: &What) -> Option<usize> {
    match what {
        What::Restart { server } => Some(server % 3),
        What::Servers { router, .. } => Some(*router),
        _ => None,
    }
}

/// The server that may miss writes.
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
