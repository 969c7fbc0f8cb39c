//! Many runs on all cores, one seed each.

use super::claim::Class;
use super::defect::{Defect, put_back};
use super::history::Sums;
use super::ledger::Finding;
use super::plan::{Plan, Theme};
use super::run::run;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Selection of runs.
pub(crate) struct Campaign {
    pub(crate) seeds: Range<u64>,
    pub(crate) plan_of: fn(u64) -> Plan,
    /// Defect to reintroduce.
    pub(crate) undo: Option<Defect>,
    pub(crate) threads: usize,
}

/// Results of the runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    pub(crate) presentations: u64,
    pub(crate) admissions: u64,
    pub(crate) simulated_seconds: u64,
    pub(crate) sums: Sums,
    pub(crate) by_class: BTreeMap<(Class, Theme), Row>,
    /// Findings by seed.
    pub(crate) findings: BTreeMap<u64, Vec<Finding>>,
}

/// Results of one class and theme.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) runs: u64,
    pub(crate) presentations: u64,
    pub(crate) runs_with_slips: u64,
    pub(crate) slipped: u64,
    /// Number of runs in which records were lost.
    pub(crate) lost: u64,
    /// Longest time from the last change to a slip, in microseconds.
    pub(crate) slipped_for: u64,
}

impl Campaign {
    pub(crate) fn run(&self) -> io::Result<Tally> {
        let next = AtomicU64::new(self.seeds.start);
        let tallies: io::Result<Vec<Tally>> = thread::scope(|scope| {
            let workers: Vec<_> =
                (0..self.threads.max(1)).map(|_| scope.spawn(|| self.work(&next))).collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined.map(|tally| tally.unwrap_or_else(|_| Err(io::Error::other("a run panicked")))).collect()
        });
        Ok(tallies?.into_iter().fold(Tally::default(), Tally::and))
    }

    fn work(&self, next: &AtomicU64) -> io::Result<Tally> {
        put_back(self.undo);
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.seeds.end {
                return Ok(tally);
            }
            tally = tally.and(Tally::of(&(self.plan_of)(seed))?);
        }
    }
}

impl Tally {
    /// Executes a plan and returns the results of this one run.
    fn of(plan: &Plan) -> io::Result<Self> {
        let outcome = run(plan)?;
        let judgement = outcome.judgement;
        let row = Row {
            runs: 1,
            presentations: judgement.presentations,
            runs_with_slips: u64::from(judgement.slipped > 0),
            slipped: judgement.slipped,
            lost: u64::from(judgement.lost),
            slipped_for: judgement.slipped_for,
        };
        let found = Some((plan.seed, judgement.findings)).filter(|(_, findings)| !findings.is_empty());
        Ok(Self {
            runs: 1,
            presentations: judgement.presentations,
            admissions: judgement.admissions,
            simulated_seconds: outcome.history.last().map_or(0, |event| event.at / 1_000_000),
            sums: judgement.sums,
            by_class: BTreeMap::from([((outcome.claim.class, plan.theme), row)]),
            findings: found.into_iter().collect(),
        })
    }

    fn and(mut self, other: Self) -> Self {
        self.runs += other.runs;
        self.presentations += other.presentations;
        self.admissions += other.admissions;
        self.sums.add(&other.sums);
        self.simulated_seconds += other.simulated_seconds;
        self.findings.extend(other.findings);
        for (key, row) in other.by_class {
            let mine = self.by_class.entry(key).or_default();
            mine.runs += row.runs;
            mine.presentations += row.presentations;
            mine.runs_with_slips += row.runs_with_slips;
            mine.slipped += row.slipped;
            mine.lost += row.lost;
            mine.slipped_for = mine.slipped_for.max(row.slipped_for);
        }
        self
    }
}
