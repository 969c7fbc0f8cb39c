#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::claim::Claim;
use super::defect::put_back;
use super::plan::{Plan, Theme};
use super::run::{Outcome, run, shrink};
use super::self_test::DEFECTS;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Seeds without a finding.
const CLEAN: RangeInclusive<u64> = 1..=24;

/// The first seed of each theme runs twice.
#[test]
fn one_seed_is_one_run_and_what_the_deployment_claims_holds() {
    let (mut presentations, mut admissions, mut lost) = (0, 0, 0);
    let mut themes = BTreeSet::new();
    for seed in CLEAN {
        let plan = Plan::new(seed);
        let outcome = run(&plan).unwrap();
        assert!(outcome.judgement.findings.is_empty(), "seed {seed}: {:?}", outcome.judgement.findings);
        presentations += outcome.judgement.presentations;
        admissions += outcome.judgement.admissions;
        lost += usize::from(outcome.judgement.lost);
        if !themes.insert(plan.theme) {
            continue;
        }
        let again = run(&plan).unwrap();
        let mut pairs = outcome.history.iter().zip(&again.history);
        assert_eq!(pairs.find(|(first, second)| first != second), None, "seed {seed}");
        assert_eq!(outcome.history.len(), again.history.len(), "seed {seed}");
    }
    let seen = (presentations, admissions, lost);
    assert!(presentations > 6_000 && admissions > 600 && lost > 3, "{seen:?}");
}

#[test]
fn replicas_are_lost_for_hours_while_fresh_tokens_are_admitted() {
    let plan = (1..).map(Plan::long).find(|plan| Claim::of(plan).serves).unwrap();
    assert_nothing_found(&plan, "no defect");
}

fn assert_nothing_found(plan: &Plan, name: &str) {
    let Outcome { judgement, history, .. } = run(plan).unwrap();
    assert!(judgement.findings.is_empty(), "{name}, seed {}: {:?}", plan.seed, judgement.findings);
    let hours = history.last().unwrap().at > 2_700_000_000;
    assert!(hours || plan.theme != Theme::Long, "{name}, seed {}: it is over too soon", plan.seed);
}

/// One seed for each defect, which `--self-test` searches. Without the defect its run contradicts nothing.
#[test]
fn each_mended_defect_is_found_when_it_is_put_back_and_nothing_without_it() {
    for (name, defect, kind, seed) in DEFECTS {
        let plan = defect.plan(seed);
        put_back(Some(defect));
        let found = run(&plan).unwrap().judgement.findings;
        put_back(None);
        assert!(
            found.iter().any(|finding| finding.kind == kind),
            "{name}: run --self-test, and note its seeds: {found:?}"
        );
        if plan.theme == Theme::Long || !CLEAN.contains(&seed) {
            assert_nothing_found(&plan, name);
        }
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
