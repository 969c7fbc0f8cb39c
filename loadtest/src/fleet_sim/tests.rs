//! Small runs of every scenario, the agreement with `postern doctor --mcrouter-config`, and hand-counted messages.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::fleet::{Fault, Fleet, Servers, Workload};
use super::queue::{MILLISECOND, Queue, SECOND};
use super::report::{Outcome, run};
use super::route::Route;
use super::scenario::{Expected, Scenario, all, routed_fleet};
use postern_mcrouter_lint::{Severity, judge};

const RATE: u64 = 4_000;

fn outcome(name: &str) -> Outcome {
    run(all(RATE, 8, 1).into_iter().find(|scenario| scenario.name == name).unwrap())
}

#[test]
fn every_scenario_comes_out_as_the_contract_says() {
    for seed in 1..=3 {
        for scenario in all(RATE, 8, seed) {
            let outcome = run(scenario);
            assert!(outcome.is_as_expected(), "{}, seed {seed}: {}", outcome.name, outcome.verdict());
            assert!(outcome.counts.opened > 1_000, "{}: nothing went on", outcome.name);
        }
    }
}

#[test]
fn a_run_is_the_same_for_the_same_seed_and_another_for_another() {
    let counts = |seed| {
        let scenario =
            all(RATE, 8, seed).into_iter().find(|scenario| scenario.name == "rolling-cold").unwrap();
        let counts = run(scenario).counts;
        (counts.events, counts.opened, counts.doubles, counts.links)
    };
    assert_eq!(counts(7), counts(7));
    assert_ne!(counts(7), counts(8));
}

/// Fresh tokens only, one after the other, so that every message can be counted by hand.
fn quiet(fleet: Fleet) -> Outcome {
    let workload =
        Workload { replays: 0.0, raced: 0.0, sweep_each: usize::MAX >> 40, ..Workload::new(1_000, 8, 1) };
    // Canaries are commands, too: none are read in this run.
    let fleet = Fleet { canary_interval: 1_000 * SECOND, ..fleet };
    let mut outcome =
        run(Scenario { name: "quiet", about: "", fleet, workload, faults: vec![], expected: Expected::Once });
    // The sweep presents the first token again: one `get` of a record that is there.
    outcome.counts.presentations -= 1;
    outcome
}

#[test]
fn a_fresh_token_is_as_many_commands_as_the_real_gateway_sends() {
    // Measured: one `get` of a key and one `add` (loadtest/results/2026-11-21-constants.md).
    let pool = quiet(Fleet::pool(2, 2));
    assert_eq!(
        (pool.counts.gets, pool.counts.adds),
        (pool.counts.presentations + 1, pool.counts.presentations)
    );
    // A quorum reads three replicas one after the other, and writes to three.
    let quorum = quiet(Fleet::quorum(2, 2));
    assert_eq!(quorum.counts.gets, 3 * quorum.counts.presentations + 1);
    assert_eq!(quorum.counts.adds, 3 * quorum.counts.presentations);
    assert_eq!(quorum.counts.opened, quorum.counts.presentations);
    // 53 bytes of `get`, 93 of `add`, `END` and `STORED`; the last `get` is answered by a record.
    let bytes = 3 * quorum.counts.presentations * (53 + 93 + 5 + 8) + 53 + 92;
    assert_eq!(quorum.counts.links[0][0].bytes, bytes);
}

#[test]
fn without_faults_only_races_over_a_quorum_are_lost() {
    let pool = outcome("pool-calm");
    assert!(pool.availability.iter().all(|share| *share == 1.0), "{:?}", pool.availability);
    let quorum = outcome("quorum-calm");
    assert!(quorum.availability.iter().all(|share| *share > 0.99), "{:?}", quorum.availability);
}

#[test]
fn two_dead_replicas_of_three_refuse_everything_and_admit_nothing_twice() {
    let lost = outcome("quorum-lost");
    assert_eq!(lost.counts.doubles, 0);
    assert!(lost.availability[2] > 0.99, "before: {:?}", lost.availability);
    assert!(lost.availability[5] == 0.0 && lost.availability[7] == 0.0, "after: {:?}", lost.availability);
    assert!(lost.counts.unknown["rejected"] > 0);
}

/// The doctor reads a configuration and refuses; the simulation runs it and finds the second admission, or does not.
#[test]
fn the_doctor_and_the_simulation_agree_about_routes() {
    for add in [Route::AllMajority, Route::Failover, Route::AllFastest, Route::AllInitial] {
        let pools = if add == Route::AllMajority { 3 } else { 2 };
        let refused =
            judge(&mcrouter_config(add, pools)).iter().any(|finding| finding.severity == Severity::Refuse);
        let doubles = suffering(routed_fleet(add, 3, 2)).counts.doubles;
        assert_eq!(refused, doubles > 0, "{add:?}: the doctor refuses: {refused}; admitted twice: {doubles}");
    }
    let refused =
        judge(&mcrouter_config(Route::Pool, 1)).iter().any(|finding| finding.severity == Severity::Refuse);
    assert!(!refused);
}

/// One replica is away, is back empty, is slow, and messages are lost.
fn suffering(fleet: Fleet) -> Outcome {
    let first = Servers { store: 0, replica: 0, server: None };
    let faults = vec![
        (2 * SECOND, Fault::Dies(first)),
        (3 * SECOND, Fault::BackEmpty(first)),
        (5 * SECOND, Fault::Slow(first, 120 * MILLISECOND)),
        (6 * SECOND, Fault::Loses(0.01)),
    ];
    run(Scenario {
        name: "suffering",
        about: "",
        fleet,
        workload: Workload::new(RATE, 8, 1),
        faults,
        expected: Expected::Once,
    })
}

fn mcrouter_config(add: Route, pools: usize) -> String {
    let pool = |index: usize| {
        format!("\"P{index}\": {{\"servers\": [\"10.0.{index}.1:11211\", \"10.0.{index}.2:11211\"]}}")
    };
    let children: Vec<String> = (0..pools).map(|index| format!("\"PoolRoute|P{index}\"")).collect();
    let route = |name: &str| match name {
        "PoolRoute" => "\"PoolRoute|P0\"".to_owned(),
        name => format!("{{\"type\": \"{name}\", \"children\": [{}]}}", children.join(", ")),
    };
    let get = match add {
        Route::Pool | Route::AllMajority => add,
        _ => Route::MissFailover,
    };
    format!(
        "{{\"pools\": {{{}}}, \"route\": {{\"type\": \"OperationSelectorRoute\", \"operation_policies\": {{\"add\": {}, \"get\": {}}}, \
         \"default_policy\": \"ErrorRoute\"}}}}",
        (0..pools).map(pool).collect::<Vec<_>>().join(", "),
        route(add.name()),
        route(get.name()),
    )
}

#[test]
fn events_come_in_the_order_of_their_time_and_of_their_making() {
    let mut queue = Queue::new([10, 3]);
    queue.at(5, 'c');
    queue.after(1, 'b');
    queue.at(5, 'd');
    queue.after(0, 'e');
    queue.at(1, 'a');
    let order: String = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!((order.as_str(), queue.now(), queue.len()), ("abcde", 10, 0));
}
