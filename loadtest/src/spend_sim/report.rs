//! Output: tables of many runs, and the history of a failing one.

use super::campaign::Tally;
use super::history::{Happening, Sums};
use super::ledger::Finding;
use super::plan::Plan;
use super::run::Outcome;

/// Prints the table of a campaign, as Markdown.
pub(crate) fn print_tally(tally: &Tally, seconds: f64) {
    println!(
        "{} runs in {seconds:.1} s: {} presentations and {} admissions in {:.1} simulated hours\n",
        tally.runs,
        tally.presentations,
        tally.admissions,
        tally.simulated_seconds as f64 / 3_600.0
    );
    let Sums { issued, spent, held, lost } = &tally.sums;
    let lost_in_all = tally.sums.all_lost();
    println!("{issued} tokens issued = {spent} spent + {held} held + {lost_in_all} lost: {lost:?}\n");
    println!(
        "| class | theme | runs | presentations | admitted twice, as is allowed | in runs | the last, after the last \
         change | runs with a loss |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for ((class, theme), row) in &tally.by_class {
        let class = format!("{class:?}").to_lowercase();
        let last = if row.slipped > 0 { seconds_of(row.slipped_for) } else { String::new() };
        let counts =
            [row.runs, row.presentations, row.slipped, row.runs_with_slips].map(|count| count.to_string());
        println!("| {class} | {theme:?} | {} | {last} | {} |", counts.join(" | "), row.lost);
    }
    println!();
}

fn seconds_of(micros: u64) -> String {
    format!("{:.1} s", micros as f64 / 1e6)
}

/// Prints one run: its plan, its findings, and the events that concern them, or all events.
pub(crate) fn print_run(plan: &Plan, outcome: &Outcome, all: bool) {
    println!("seed {}, {:?}, {:?}, {} s", plan.seed, plan.theme, outcome.claim, plan.length / 1_000);
    let deployment = &plan.deployment;
    println!(
        "{:?}, clocks of the servers: {:?}, {:?}",
        deployment.shape, deployment.servers, deployment.latency
    );
    deployment.routers.iter().for_each(|router| println!("{router:?}"));
    println!("addresses: {:?}", deployment.addresses);
    deployment.gateways.iter().for_each(|gateway| println!("{gateway:?}"));
    println!("keys: {:?}\n", plan.keys);
    let tokens = tokens(&outcome.judgement.findings);
    for event in &outcome.history {
        let concerns = match &event.happening {
            Happening::Presented { token, .. }
            | Happening::Ended { token, .. }
            | Happening::Issued { token, .. }
            | Happening::Kept { token }
            | Happening::GivenUp { token, .. } => tokens.contains(token),
            Happening::Asked { cannot, .. } => cannot.is_some(),
            _ => true,
        };
        if all || concerns {
            println!("{event}");
        }
    }
    println!();
    for finding in &outcome.judgement.findings {
        println!("{:?}: {}", finding.kind, finding.text);
    }
}

/// Returns up to three tokens that findings name.
fn tokens(findings: &[Finding]) -> Vec<usize> {
    let token = |finding: &Finding| {
        let mut words = finding.text.split_whitespace().skip_while(|word| *word != "token");
        words.nth(1).and_then(|number| number.parse().ok())
    };
    findings.iter().filter_map(token).take(3).collect()
}
