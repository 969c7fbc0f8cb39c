//! Shows that the simulation can find things: puts mended defects back, one at a time, and counts the seeds until the
//! first finding.

use super::campaign::{Campaign, Until};
use super::defect::Defect::{self, Store};
use super::defect::put_back;
use super::ledger::{Finding, Kind};
use super::plan::PlanKind;
use super::run::run;
use anyhow::{Result, ensure};
use postern_spend::memcached::Undo;
use std::time::Instant;

/// A defect: how it is named on the command line, what it leads to, and the first seed that shows it.
pub(crate) const DEFECTS: [(&str, Defect, Kind, u64); 9] = [
    ("witness-apart", Store(Undo::WitnessApart), Kind::Twice, 18),
    ("shared-names", Store(Undo::SharedNames), Kind::Twice, 34),
    ("lasting-witness", Store(Undo::LastingWitness), Kind::Twice, 141),
    ("witness-again", Store(Undo::WitnessAgain), Kind::Twice, 2),
    ("no-witness", Store(Undo::NoWitness), Kind::Twice, 2),
    ("four-an-hour", Store(Undo::FourAnHour), Kind::Stuck, 63),
    ("asks-in-vain", Defect::AsksInVain, Kind::AskedInVain, 7),
    ("sends-in-vain", Defect::SendsInVain, Kind::SentInVain, 3),
    ("forgets-tokens", Defect::ForgetsTokens, Kind::Sums, 2),
];

/// The defect with this name.
pub(crate) fn defect(name: &str) -> Result<Defect, String> {
    let names: Vec<&str> = DEFECTS.iter().map(|defect| defect.0).collect();
    let found = DEFECTS.iter().find(|defect| defect.0 == name);
    found.map(|defect| defect.1).ok_or_else(|| format!("one of: {}", names.join(", ")))
}

/// Puts each defect back, for at most `seeds` seeds.
pub(crate) fn self_test(from: u64, seeds: u64) -> Result<()> {
    println!("| defect | first found by seed | runs | as | in |\n|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (name, defect, kind, _) in DEFECTS {
        let began = Instant::now();
        let found = first(defect, kind, from, seeds)?;
        let took = began.elapsed().as_secs_f64();
        let seed = found.map_or("none".to_owned(), |seed| seed.to_string());
        let runs = found.map_or(seeds, |seed| seed - from + 1);
        println!("| `{name}` | {seed} | {runs} | {kind:?} | {took:.1} s |");
        missed.extend(found.is_none().then_some(name));
    }
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    Ok(())
}

/// The first seed with a finding that is not there without the defect.
pub(crate) fn first(defect: Defect, kind: Kind, mut from: u64, seeds: u64) -> Result<Option<u64>> {
    let end = from + seeds;
    while from < end {
        // One after the other, so that the number means something.
        let (until, undo, seeds) = (Some(Until::Found(kind)), Some(defect), end - from);
        let is_long = defect == Store(Undo::FourAnHour);
        let kind_of_plan = if is_long { PlanKind::Long } else { PlanKind::Short };
        let campaign = Campaign { from, seeds, kind: kind_of_plan, undo, until, threads: 1 };
        let tally = campaign.run()?;
        let has = |findings: &[Finding]| findings.iter().any(|finding| finding.kind == kind);
        let Some((seed, _)) = tally.findings.iter().find(|(_, findings)| has(findings)) else { break };
        put_back(None);
        if !has(&run(&campaign.plan(*seed))?.judgement.findings) {
            return Ok(Some(*seed));
        }
        from = seed + 1;
    }
    Ok(None)
}
