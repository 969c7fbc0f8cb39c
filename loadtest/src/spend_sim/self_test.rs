//! Shows that the simulation can find things: puts mended defects back, one at a time, and counts the seeds until the
//! first finding.

use super::campaign::{Campaign, Until};
use super::checker::Kind;
use anyhow::{Result, ensure};
use postern_spend::memcached::Undo;
use std::time::Instant;

/// A defect, what it leads to, and how it is named on the command line.
pub(crate) const DEFECTS: [(&str, Undo, Kind); 5] = [
    ("clock-canary", Undo::ClockCanary, Kind::Twice),
    ("blind-watch", Undo::BlindWatch, Kind::Twice),
    ("some-probes", Undo::SomeProbes, Kind::Twice),
    ("planted-canaries", Undo::PlantedCanaries, Kind::FalseAlarm),
    ("permits-after-stored", Undo::PermitsAfterStored, Kind::ThoughLost),
];

/// The defect with this name.
pub(crate) fn defect(name: &str) -> Result<Undo, String> {
    let names: Vec<&str> = DEFECTS.iter().map(|defect| defect.0).collect();
    let found = DEFECTS.iter().find(|defect| defect.0 == name);
    found.map(|defect| defect.1).ok_or_else(|| format!("one of: {}", names.join(", ")))
}

/// Puts each defect back, for at most `seeds` seeds.
pub(crate) fn self_test(from: u64, seeds: u64) -> Result<()> {
    println!("| defect | first found by seed | seeds | as | in |\n|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (name, undo, kind) in DEFECTS {
        let began = Instant::now();
        // One after the other, so that the number means something.
        let campaign =
            Campaign { from, seeds, undo: Some(undo), until: Some(Until::Found(kind)), threads: 1 };
        let tally = campaign.run()?;
        let first = tally.findings.iter().find(|(_, found)| found.iter().any(|finding| finding.kind == kind));
        let took = began.elapsed().as_secs_f64();
        match first {
            Some((seed, _)) => println!("| `{name}` | {seed} | {} | {kind:?} | {took:.1} s |", tally.runs),
            None => {
                println!("| `{name}` | none | {} | {kind:?} | {took:.1} s |", tally.runs);
                missed.push(name);
            }
        }
    }
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    Ok(())
}
