#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::campaign::{Campaign, Tally};
use super::claim::Claim;
use super::defect::put_back;
use super::plan::Plan;
use super::run::{run, shrink};
use super::self_test::{DEFECTS, first};
use std::ops::Range;

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

fn runs(plan_of: fn(u64) -> Plan, seeds: Range<u64>) -> Tally {
    Campaign { seeds, plan_of, undo: None, threads: 2 }.run().unwrap()
}

#[test]
fn what_the_deployment_claims_holds() {
    let tally = runs(Plan::new, 1..81);
    let lost: u64 = tally.by_class.values().map(|row| row.lost).sum();
    assert!(tally.presentations > 20_000 && tally.admissions > 2_000 && lost > 10, "{tally:?}");
    assert!(tally.findings.is_empty(), "{:?}", tally.findings);
}

#[test]
fn replicas_are_lost_for_hours_while_fresh_tokens_are_admitted() {
    for serves in [true, false] {
        let seed = (1..).find(|seed| Claim::of(&Plan::long(*seed)).serves == serves).unwrap();
        let tally = runs(Plan::long, seed..seed + 1);
        assert!(tally.simulated_seconds > 2_700, "{seed}: {tally:?}");
        assert!(tally.findings.is_empty(), "{seed}: {:?}", tally.findings);
    }
}

/// Checks one seed per defect, so that each costs one run. `--self-test` searches for these seeds.
#[test]
fn each_mended_defect_is_found_when_it_is_put_back() {
    for (name, defect, kind, seed) in DEFECTS {
        assert_eq!(
            first(defect, kind, seed..seed + 1).unwrap(),
            Some(seed),
            "{name}: run --self-test, and note its seeds"
        );
    }
}

#[test]
fn a_failing_plan_is_made_smaller() {
    let (_, defect, kind, seed) = DEFECTS[3];
    put_back(Some(defect));
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
    put_back(None);
}
