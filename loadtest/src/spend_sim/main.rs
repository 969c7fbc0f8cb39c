//! Runs the double-spend store that ships on simulated time and a simulated network: one seed is one run. A separate checker
//! judges each history by the deployment's claim (docs/how-it-works/spend-contract.md).
//!
//! ```text
//! plan (from the seed): deployment, keys, faults
//!   └─ run: gateways (the store that ships) ── network ── routers ── memcacheds
//!        │  agents present tokens, fresh and spent, at the worst moments
//!        └─ history ── checker ── findings
//! ```

mod agent;
mod agents;
mod campaign;
mod chance;
mod checker;
mod claim;
mod defect;
mod deployment;
mod digest;
mod fault;
mod gateway;
mod history;
mod issuer;
mod ledger;
mod long;
mod loss;
mod network;
mod nodes;
mod plan;
mod report;
mod router;
mod run;
mod self_test;
mod server;
#[cfg(test)]
mod tests;
mod token;
mod wire;
mod world;

use anyhow::{Result, ensure};
use campaign::Campaign;
use clap::Parser;
use defect::{Defect, put_back};
use plan::Plan;
use std::time::Instant;

/// Maximum number of findings that are shrunk and printed.
const PRINTED: usize = 3;

/// Runs the double-spend store on simulated time and network, and looks for tokens that are admitted twice.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of runs; "1M" is a million
    #[arg(long, default_value = "2000", value_parser = number)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value = "1", value_parser = number)]
    from: u64,
    /// One run only, with its whole history
    #[arg(long, value_parser = number)]
    seed: Option<u64>,
    /// Hours in which one loss follows another
    #[arg(long)]
    long: bool,
    /// Puts a mended defect back, to see that it is found
    #[arg(long, value_name = "NAME", value_parser = self_test::defect)]
    undo: Option<Defect>,
    /// Puts each mended defect back in turn, and counts the seeds until it is found
    #[arg(long, conflicts_with_all = ["seed", "undo"])]
    self_test: bool,
    /// The cost of a loss to this many agents, instead of runs
    #[arg(long, value_name = "AGENTS", conflicts_with_all = ["seed", "undo", "self_test"])]
    loss_cost: Option<usize>,
    /// Runs at once; by default one for each core
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // Tokio catches the panic of a task, and a run whose store has panicked proves nothing.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
    if let Some(agents) = arguments.loss_cost {
        return loss::print_costs(agents);
    }
    if arguments.self_test {
        return self_test::self_test(arguments.from..arguments.from + arguments.seeds);
    }
    let plan_of = if arguments.long { Plan::long } else { Plan::new };
    if let Some(seed) = arguments.seed {
        put_back(arguments.undo);
        let plan = plan_of(seed);
        let outcome = run::run(&plan)?;
        report::print_run(&plan, &outcome, true);
        ensure!(outcome.judgement.findings.is_empty(), "the run contradicts what the deployment claims");
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign {
        seeds: arguments.from..arguments.from + arguments.seeds,
        plan_of,
        undo: arguments.undo,
        threads: arguments.threads.unwrap_or(cores),
    };
    let began = Instant::now();
    let tally = campaign.run()?;
    report::print_tally(&tally, began.elapsed().as_secs_f64());
    put_back(arguments.undo);
    for (seed, findings) in tally.findings.iter().take(PRINTED) {
        let (plan, outcome) = run::shrink(&plan_of(*seed), findings[0].kind)?;
        report::print_run(&plan, &outcome, false);
        println!();
    }
    for (seed, findings) in &tally.findings {
        println!("seed {seed}: {:?}: {}", findings[0].kind, findings[0].text);
    }
    ensure!(tally.findings.is_empty(), "{} runs contradict what the deployment claims", tally.findings.len());
    Ok(())
}

/// Parses numbers such as "2000", "10k" and "1M".
fn number(text: &str) -> Result<u64, String> {
    let (digits, times) = match text.strip_suffix(['k', 'M']) {
        Some(digits) if text.ends_with('k') => (digits, 1_000),
        Some(digits) => (digits, 1_000_000),
        None => (text, 1),
    };
    digits.parse::<u64>().map(|number| number * times).map_err(|error| error.to_string())
}
