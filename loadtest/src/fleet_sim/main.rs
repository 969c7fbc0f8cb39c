//! Simulates a fleet of gateways, routers and memcacheds at a million requests a second and holds it to the spend
//! contract: of all presentations of one token at most one is answered 200. What is unsafe must be found out, or the
//! run fails: that is how the simulation shows that it can. docs/operate/capacity.md lists what it models and what it
//! leaves out.

mod clients;
mod counts;
mod fleet;
mod flight;
mod flights;
mod gateway;
mod queue;
mod report;
mod route;
mod scenario;
mod sim;
mod stores;
#[cfg(test)]
mod tests;

use anyhow::{Result, ensure};
use clap::Parser;

/// Simulates a fleet at any rate and counts how often tokens are admitted.
#[derive(Debug, Parser)]
struct Arguments {
    /// Presentations a second
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=5_000_000))]
    rate: u64,
    /// Simulated seconds of traffic; the tokens of it are then presented once more
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(8..=60))]
    seconds: u64,
    /// The same seed gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the scenarios whose name contains this; may be given repeatedly
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let scenarios = scenario::all(arguments.rate, arguments.seconds, arguments.seed);
    let chosen: Vec<_> = scenarios
        .into_iter()
        .filter(|scenario| {
            arguments.only.is_empty()
                || arguments.only.iter().any(|part| scenario.name.contains(part.as_str()))
        })
        .collect();
    ensure!(!chosen.is_empty(), "no scenario has that in its name");
    let mut outcomes = Vec::new();
    for scenario in chosen {
        let outcome = report::run(scenario);
        eprintln!("{}: {} in {:.1} s", outcome.name, outcome.verdict(), outcome.took);
        outcomes.push(outcome);
    }
    report::print(&outcomes);
    let wrong: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.is_as_expected()).map(|outcome| outcome.name).collect();
    ensure!(wrong.is_empty(), "not as the contract requires: {}", wrong.join(", "));
    Ok(())
}
