//! Runs of the simulation as tests.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::campaign::{Campaign, Tally};
use super::claim::Claim;
use super::defect::put_back;
use super::loss_cost::scenarios;
use super::plan::{Plan, PlanKind};
use super::run::run;
use super::self_test::{DEFECTS, first};
use super::shrink::shrink;
use std::time::Duration;

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

fn runs(kind: PlanKind, from: u64, seeds: u64) -> Tally {
    Campaign { from, seeds, kind, undo: None, until: None, threads: 2 }.run().unwrap()
}

#[test]
fn what_the_deployment_claims_holds() {
    let tally = runs(PlanKind::Short, 1, 80);
    let lost: u64 = tally.by_class.values().map(|row| row.lost).sum();
    assert!(tally.presentations > 20_000 && tally.admissions > 2_000 && lost > 10, "{tally:?}");
    assert!(tally.findings.is_empty(), "{:?}", tally.findings);
}

#[test]
fn replicas_are_lost_for_hours_and_fresh_tokens_are_admitted_meanwhile() {
    for serves in [true, false] {
        let seed = (1..).find(|seed| Claim::of(&Plan::long(*seed)).serves == serves).unwrap();
        let tally = runs(PlanKind::Long, seed, 1);
        assert!(tally.simulated_seconds > 2_700, "{seed}: {tally:?}");
        assert!(tally.findings.is_empty(), "{seed}: {:?}", tally.findings);
    }
}

/// Nothing is void after a false alarm; after a loss everyone tunnels again.
#[test]
fn what_a_loss_costs_is_bounded() {
    for scenario in scenarios().into_iter().filter(|scenario| !scenario.faults.is_empty()) {
        let cost = scenario.run(20).unwrap();
        let name = scenario.name;
        assert_eq!(cost.judgement.findings, [], "{name}");
        assert_eq!(cost.without, 0, "{name}: agents had no tunnel again");
        let void = cost.lost(&["void", "superseded"]);
        let is_void = match scenario.votes {
            true => name.contains("a minute later"),
            false => name.contains("emptied"),
        };
        assert!(if is_void { void > 100 } else { void < 5 }, "{name}: {void} void");
        assert!(void == 0 || !scenario.is_false_alarm(), "{name}: {void} void");
        assert!(cost.until_all_tunnel < Duration::from_secs(80), "{name}: {:?}", cost.until_all_tunnel);
        let all = cost.judgement.sums.all_lost();
        assert!(all == 0 || !(scenario.is_false_alarm() && scenario.votes), "{name}: {all} lost");
    }
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
