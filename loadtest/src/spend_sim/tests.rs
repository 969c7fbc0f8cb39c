//! Runs of the simulation as tests.

use super::plan::Plan;
use super::run::run;

#[test]
fn one_seed_is_one_run() {
    for seed in 1..=40 {
        let lines = || -> Vec<String> {
            run(&Plan::new(seed)).unwrap().history.iter().map(ToString::to_string).collect()
        };
        let (first, second) = (lines(), lines());
        let differs = first.iter().zip(&second).position(|(first, second)| first != second);
        assert_eq!((differs, first.len()), (None, second.len()), "seed {seed}");
    }
}
