//! What the deployment claims for a plan, by docs/how-it-works/spend-contract.md.

use super::deployment::{CLOCK_TOLERANCE, RouterPlan, Shape};
use super::fault::{Fault, Millis, What};
use super::plan::{Plan, Theme};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) class: Class,
    /// Records may be lost, so that a gateway may say that they are.
    pub(crate) may_lose: bool,
    /// Tokens may be void: the records beside theirs may be gone, or were never written.
    pub(crate) may_void: bool,
    /// Gateways may disagree on whether marks bind a key's tokens, for half a minute: one that starts after all offers were lost
    /// takes the key for one without marks until it reads the next one (seed 485). Each refuses tokens of the other kind.
    pub(crate) may_part: bool,
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
    /// Records are lost. What was spent before may be admitted once more until a gateway has noticed, which takes this
    /// long at most from the last change on, in milliseconds; without a bound where it is not known.
    Notices { within: Option<Millis> },
    /// Beyond what the deployment is built for: what comes through is counted.
    Beyond,
}

/// The watch is blind after so long without a full round, beside two intervals; and what a round may take.
const OVERDUE: Millis = 3_000;
const ROUND: Millis = 3_000;

/// Until a loss on one replica was found and the next mark planted, two minutes and some; until agents have asked for the
/// challenge anew, ten; and until they have used up what they hold.
pub(crate) const TURNOVER: Millis = 25 * 60_000;
/// Marks that follow others which two replicas still know.
const MARKS_IN_A_DAY: usize = 3;

impl Claim {
    /// Nothing is excused and nothing is served: what tests begin with.
    #[cfg(test)]
    pub(crate) const BARE: Self = Self {
        class: Class::Survives,
        may_lose: false,
        may_void: false,
        may_part: false,
        serves: false,
        is_skewed: false,
        recovers: false,
    };

    pub(crate) fn of(plan: &Plan) -> Self {
        let (shape, faults) = (plan.deployment.shape, &plan.faults);
        let loses = faults.iter().any(|fault| fault.what.loses());
        let is_skewed = plan.deployment.servers.iter().any(|offset| *offset != 0)
            || faults.iter().any(|fault| matches!(fault.what, What::Clock { .. }));
        let is_alike = matches!(shape, Shape::Direct | Shape::Pool | Shape::Quorum | Shape::Voted);
        let may_lose = loses || is_skewed || !is_alike;
        let is_prompt = plan.deployment.routers.iter().all(|router| router.probe_longest <= 5_000);
        let recovers = !may_lose && is_prompt;
        let recovers =
            recovers || is_prompt && shape == Shape::Voted && !is_skewed && loses_one_replica(plan);
        let serves = plan.theme == Theme::Long && loses_one_after_another(plan);
        let recovers = recovers || plan.theme == Theme::Long;
        let may_void = !serves && (may_lose || is_away_at_first(plan));
        let restarts = faults.iter().any(|fault| matches!(fault.what, What::GatewayRestart { .. }));
        let may_part = plan.is_bound && loses && restarts;
        Self { class: class(plan, loses), may_lose, may_void, may_part, serves, is_skewed, recovers }
    }
}

fn class(plan: &Plan, loses: bool) -> Class {
    let evicts = plan.faults.iter().any(|fault| matches!(fault.what, What::Evict { .. }));
    // A majority counts STORED and the witness apart, and eviction may spare the witness.
    if plan.is_bound && plan.deployment.shape != Shape::Quorum && !evicts {
        return Class::Survives;
    }
    let interval = plan.deployment.gateways.iter().map(|gateway| gateway.canary_interval).max().unwrap_or(0);
    let noticed = Class::Notices { within: Some(OVERDUE + 2 * interval + ROUND) };
    let has = |wanted: fn(&What) -> bool| plan.faults.iter().any(|fault| wanted(&fault.what));
    let restarts_gateways = has(|what| matches!(what, What::GatewayRestart { .. }));
    match plan.deployment.shape {
        Shape::Failover => return Class::Beyond,
        Shape::Voted if evicts => return Class::Notices { within: None },
        // Two gateways that reach different stores are not detected.
        Shape::Balancer if loses || plan.parts_gateways() => return Class::Beyond,
        // Nor is one that reaches another store than before it was started anew, but for its canaries.
        Shape::Balancer if restarts_gateways => return noticed,
        _ => {}
    }
    if has(|what| matches!(what, What::Servers { .. })) {
        return if plan.deployment.routers.len() > 1 || restarts_gateways { Class::Beyond } else { noticed };
    }
    if has(|what| matches!(what, What::Evict { .. })) {
        return Class::Notices { within: None };
    }
    if loses {
        return after_a_loss(plan, restarts_gateways, noticed);
    }
    clocks(plan, noticed)
}

/// Servers came back empty.
fn after_a_loss(plan: &Plan, restarts_gateways: bool, noticed: Class) -> Class {
    let mut lost: Vec<usize> = plan.faults.iter().filter_map(restarted).collect();
    lost.sort_unstable();
    lost.dedup();
    match plan.deployment.shape {
        // No process is left that knows of the records.
        _ if restarts_gateways
            && (plan.deployment.gateways.len() == 1 || lost.len() == plan.deployment.servers.len()) =>
        {
            Class::Beyond
        }
        // The connections break, and no new one is accepted before the loss is known.
        Shape::Direct => Class::Survives,
        // One replica in the life of a key, if no other ever missed a write.
        Shape::Quorum => {
            let replica = |server: usize| server % 3;
            let same = lost.iter().all(|server| replica(*server) == replica(lost[0]));
            let misses =
                |fault: &Fault| away(fault).is_some_and(|server| replica(server) != replica(lost[0]));
            let whole = plan.deployment.latency.spikes == 0 && !plan.faults.iter().any(misses);
            if same && whole { Class::Survives } else { Class::Beyond }
        }
        _ => noticed,
    }
}

/// One replica comes back empty, and nothing else happens to any.
fn loses_one_replica(plan: &Plan) -> bool {
    let servers = plan.faults.iter().filter_map(|fault| fault.what.server().map(|server| (fault, server)));
    let mut servers = servers.peekable();
    let Some(first) = servers.peek().map(|(_, server)| server % 3) else { return false };
    servers.all(|(fault, server)| server % 3 == first && restarted(fault).is_some())
        && !plan.faults.iter().any(|fault| matches!(fault.what, What::Servers { .. } | What::Hang { .. }))
}

/// A clock that is wrong from the start stops everything. One that goes wrong is noticed.
fn clocks(plan: &Plan, noticed: Class) -> Class {
    let behind =
        |fault: &Fault| matches!(fault.what, What::Clock { by, .. } if by < -(CLOCK_TOLERANCE as i64));
    let ahead = plan.deployment.servers.iter().any(|offset| *offset > CLOCK_TOLERANCE as i64);
    if plan.faults.iter().any(behind) || ahead && plan.faults.iter().any(|fault| away(fault).is_some()) {
        noticed
    } else {
        Class::Survives
    }
}

/// A mark is offered without the witnesses of a server that is away for ten seconds. Marks of all keys are planted when the
/// run begins.
fn is_away_at_first(plan: &Plan) -> bool {
    let latency = plan.deployment.latency;
    // Routers that take a server for down after every late answer.
    let flaps = |router: &RouterPlan| latency.spikes > 0 && latency.spike >= router.timeout * 1_000;
    let first = plan.faults.iter().filter(|fault| away(fault).is_some() && fault.at < 10_000);
    first.map(|fault| fault.lasts).sum::<Millis>() > 6_000 || plan.deployment.routers.iter().any(flaps)
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

fn restarted(fault: &Fault) -> Option<usize> {
    match fault.what {
        What::Restart { server } => Some(server),
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
