//! Runs of the simulation as tests.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::campaign::{Campaign, Tally};
use super::plan::Plan;
use super::run::run;
use super::self_test::{DEFECTS, first};
use super::shrink::shrink;
use postern_spend::memcached::undo;

#[test]
fn one_seed_is_one_run() {
    for seed in 1..=24 {
        let lines = || -> Vec<String> {
            run(&Plan::new(seed)).unwrap().history.iter().map(ToString::to_string).collect()
        };
        let (first, second) = (lines(), lines());
        let differs = first.iter().zip(&second).find(|(first, second)| first != second);
        assert_eq!((differs, first.len()), (None, second.len()), "seed {seed}");
    }
}

fn sixty_runs(bound: bool) -> Tally {
    let (undo, until, strict, calm) = (None, None, false, false);
    Campaign { from: 1, seeds: 60, bound, undo, until, strict, calm, threads: 2 }.run().unwrap()
}

#[test]
fn what_the_deployment_claims_holds() {
    let tally = sixty_runs(false);
    assert_eq!(tally.runs, 60);
    assert!(tally.presentations > 20_000 && tally.admissions > 2_000, "{tally:?}");
    assert!(tally.findings.is_empty(), "{:?}", tally.findings);
}

#[test]
fn what_marks_bind_is_admitted_once_whatever_is_lost() {
    let tally = sixty_runs(true);
    let lost: u64 = tally.by_class.values().map(|row| row.lost).sum();
    assert!(tally.admissions > 2_000 && lost > 10, "{tally:?}");
    assert!(tally.findings.is_empty(), "{:?}", tally.findings);
}

/// The seeds of those that take long to be found are given, so that a test costs one run. `--self-test` looks for them.
#[test]
fn each_mended_defect_is_found_when_it_is_put_back() {
    for (name, defect, kind, seed) in DEFECTS {
        assert_eq!(
            first(defect, kind, seed, 1).unwrap(),
            Some(seed),
            "{name}: run --self-test, and note its seeds"
        );
    }
}

#[test]
fn a_failing_plan_is_made_smaller() {
    let (_, defect, kind, seed) = DEFECTS[3];
    undo(Some(defect));
    let plan = Plan::new(seed);
    let (smaller, outcome) = shrink(&plan, kind).unwrap();
    assert!(smaller.faults.len() <= plan.faults.len());
    assert!(outcome.judgement.findings.iter().any(|finding| finding.kind == kind));
    let needless = (0..smaller.faults.len()).filter(|index| {
        let mut without = smaller.clone();
        without.faults.remove(*index);
        run(&without).unwrap().judgement.findings.iter().any(|finding| finding.kind == kind)
    });
    assert_eq!(needless.count(), 0);
    undo(None);
}
