//! Makes a plan that fails smaller: drops faults, one at a time, while it still fails.

use super::ledger::Kind;
use super::plan::Plan;
use super::run::{Outcome, run};
use std::io;

/// The smallest plan that was found, and its run.
pub(crate) fn shrink(plan: &Plan, kind: Kind) -> io::Result<(Plan, Outcome)> {
    let fails = |outcome: &Outcome| outcome.judgement.findings.iter().any(|finding| finding.kind == kind);
    let mut smallest = (plan.clone(), run(plan)?);
    // Again until none can go: one that was needed may not be once a later one has gone.
    loop {
        let (before, mut index) = (smallest.0.faults.len(), 0);
        while index < smallest.0.faults.len() {
            let mut smaller = smallest.0.clone();
            smaller.faults.remove(index);
            let outcome = run(&smaller)?;
            if fails(&outcome) {
                smallest = (smaller, outcome);
            } else {
                index += 1;
            }
        }
        if smallest.0.faults.len() == before {
            return Ok(smallest);
        }
    }
}
