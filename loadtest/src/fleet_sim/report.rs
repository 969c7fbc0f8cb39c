//! Runs a scenario and reports its outcome.

use super::counts::{Counts, Double, Link};
use super::queue::SECOND;
use super::scenario::{Expected, Scenario};
use super::sim::Sim;
use std::time::Instant;

pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) expected: Expected,
    pub(crate) tokens: usize,
    /// Of the tokens first presented in each second, the share that was admitted before the sweep.
    pub(crate) availability: Vec<f64>,
    pub(crate) counts: Counts,
    pub(crate) busiest: f64,
    /// Seconds by the clock of this machine.
    pub(crate) took: f64,
}

pub(crate) fn run(scenario: Scenario) -> Outcome {
    let began = Instant::now();
    let mut sim = Sim::new(scenario.fleet, scenario.workload, scenario.faults);
    sim.run_traffic();
    let busiest = sim.busiest();
    let availability = sim.availability();
    sim.run_sweep();
    Outcome {
        name: scenario.name,
        about: scenario.about,
        expected: scenario.expected,
        tokens: sim.tokens.len(),
        availability,
        busiest,
        counts: sim.counts,
        took: began.elapsed().as_secs_f64(),
    }
}

impl Sim {
    fn availability(&self) -> Vec<f64> {
        let ends = self.minted.iter().copied().skip(1).chain([self.tokens.len()]);
        let spans = self.minted.iter().copied().zip(ends);
        spans
            .map(|(from, to)| {
                let opened = self.tokens[from..to].iter().filter(|token| token.opened > 0).count();
                opened as f64 / (to - from).max(1) as f64
            })
            .collect()
    }
}

impl Outcome {
    pub(crate) fn is_as_expected(&self) -> bool {
        match self.expected {
            Expected::Once => self.counts.doubles == 0,
            Expected::Twice => self.counts.doubles > 0,
            Expected::TwiceUntil(end) => self.counts.last_double.is_some_and(|last| last <= end),
        }
    }

    pub(crate) fn verdict(&self) -> String {
        let found = match self.counts.doubles {
            0 => "no token twice".to_owned(),
            count => format!("{count} admitted again"),
        };
        if self.is_as_expected() { found } else { format!("{found}, NOT AS EXPECTED") }
    }

    fn worst(&self) -> f64 {
        self.availability.iter().copied().fold(1.0, f64::min)
    }

    /// Messages between regions, both ways, beside those within one.
    fn between(&self) -> (Link, Link) {
        let (mut within, mut between) = (Link::default(), Link::default());
        for (from, row) in self.counts.links.iter().enumerate() {
            for (to, link) in row.iter().enumerate() {
                let sum = if from == to { &mut within } else { &mut between };
                sum.messages += link.messages;
                sum.bytes += link.bytes;
            }
        }
        (within, between)
    }
}

pub(crate) fn print(outcomes: &[Outcome]) {
    println!(
        "| scenario | what happens | expected | tokens | presentations | admitted again | from, to (s) |\n|---|---|---|---|---|---|---|"
    );
    for outcome in outcomes {
        let expected = match outcome.expected {
            Expected::Once => "never twice".to_owned(),
            Expected::Twice => "twice".to_owned(),
            Expected::TwiceUntil(end) => format!("twice, until {:.2} s", seconds(end)),
        };
        let first = outcome.counts.first_doubles.first().map(|Double { at, .. }| seconds(*at));
        let span = first
            .zip(outcome.counts.last_double)
            .map_or(String::new(), |(first, last)| format!("{first:.2} to {:.2}", seconds(last)));
        println!(
            "| {} | {} | {expected} | {} | {} | **{}** | {span} |",
            outcome.name, outcome.about, outcome.tokens, outcome.counts.presentations, outcome.counts.doubles
        );
    }
    println!(
        "\n| scenario | admitted, worst second | no verdict, by reason | p50 ms | p99 ms | commands a presentation | busiest server | messages a presentation between regions | events | s |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for outcome in outcomes {
        let counts = &outcome.counts;
        let reasons: Vec<String> =
            counts.unknown.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let presentations = counts.presentations.max(1) as f64;
        println!(
            "| {} | {:.2} % | {} | {:.2} | {:.2} | {:.2} | {:.0} % | {:.2} | {} | {:.1} |",
            outcome.name,
            100.0 * outcome.worst(),
            reasons.join(", "),
            counts.milliseconds(0.5),
            counts.milliseconds(0.99),
            (counts.gets + counts.adds) as f64 / presentations,
            100.0 * outcome.busiest,
            outcome.between().1.messages as f64 / presentations,
            counts.events,
            outcome.took,
        );
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}
