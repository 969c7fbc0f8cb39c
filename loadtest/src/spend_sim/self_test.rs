//! Test of the simulation itself: reintroduces fixed defects, one at a time, and counts the seeds until the first finding.

use super::defect::Defect::{self, Store};
use super::defect::put_back;
use super::ledger::Kind;
use super::plan::Plan;
use super::run::run;
use anyhow::{Result, ensure};
use postern_spend::memcached::Undo;
use std::ops::Range;
use std::time::Instant;

/// (name on the command line, defect, kind of its finding, first seed that shows it)
pub(crate) const DEFECTS: [(&str, Defect, Kind, u64); 10] = [
    ("witness-apart", Store(Undo::WitnessApart), Kind::Twice, 18),
    ("shared-names", Store(Undo::SharedNames), Kind::Twice, 34),
    ("lasting-witness", Store(Undo::LastingWitness), Kind::Twice, 141),
    ("witness-again", Store(Undo::WitnessAgain), Kind::Twice, 2),
    ("no-witness", Store(Undo::NoWitness), Kind::Twice, 2),
    ("four-an-hour", Store(Undo::FourAnHour), Kind::Stuck, 166),
    ("asks-in-vain", Defect::AsksInVain, Kind::AskedInVain, 7),
    ("sends-in-vain", Defect::SendsInVain, Kind::SentInVain, 3),
    ("forgets-tokens", Defect::ForgetsTokens, Kind::Sums, 4),
    ("four-marks-a-day", Defect::FourMarksADay, Kind::Starved, 33),
];

/// Returns the defect with this name.
pub(crate) fn defect(name: &str) -> Result<Defect, String> {
    let names: Vec<&str> = DEFECTS.iter().map(|defect| defect.0).collect();
    let found = DEFECTS.iter().find(|defect| defect.0 == name);
    found.map(|defect| defect.1).ok_or_else(|| format!("one of: {}", names.join(", ")))
}

/// Searches these seeds for each defect.
pub(crate) fn self_test(seeds: Range<u64>) -> Result<()> {
    println!("| defect | first found by seed | runs | as | in |\n|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (name, defect, kind, _) in DEFECTS {
        let began = Instant::now();
        let found = first(defect, kind, seeds.clone())?;
        let took = began.elapsed().as_secs_f64();
        let seed = found.map_or("none".to_owned(), |seed| seed.to_string());
        let runs = found.map_or(seeds.end, |seed| seed + 1) - seeds.start;
        println!("| `{name}` | {seed} | {runs} | {kind:?} | {took:.1} s |");
        missed.extend(found.is_none().then_some(name));
    }
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    Ok(())
}

impl Defect {
    /// Returns a plan that can show the defect.
    pub(crate) fn plan(self, seed: u64) -> Plan {
        match self {
            Store(Undo::FourAnHour) | Self::FourMarksADay => Plan::long(seed),
            _ => Plan::new(seed),
        }
    }
}

/// Returns the first seed with a finding that is absent without the defect.
fn first(defect: Defect, kind: Kind, mut seeds: Range<u64>) -> Result<Option<u64>> {
    let finds = |seed, undo| -> Result<bool> {
        put_back(undo);
        Ok(run(&defect.plan(seed))?.judgement.findings.iter().any(|finding| finding.kind == kind))
    };
    let found = seeds.find_map(|seed| {
        let is_found = finds(seed, Some(defect)).and_then(|found| Ok(found && !finds(seed, None)?));
        is_found.map(|is_found| is_found.then_some(seed)).transpose()
    });
    put_back(None);
    found.transpose()
}
