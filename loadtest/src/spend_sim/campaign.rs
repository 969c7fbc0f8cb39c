//! Many runs, on all cores: one seed after the other, until all are done.

use super::claim::Class;
use super::defect::{Defect, put_back};
use super::history::Sums;
use super::ledger::{Finding, Kind};
use super::plan::{Plan, PlanKind, Theme};
use super::run::run;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Which runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Campaign {
    pub(crate) from: u64,
    pub(crate) seeds: u64,
    pub(crate) kind: PlanKind,
    /// The defect that is put back.
    pub(crate) undo: Option<Defect>,
    /// Ends it: the first finding of this kind, or of any.
    pub(crate) until: Option<Until>,
    pub(crate) threads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    AnyFinding,
    Found(Kind),
}

/// What the runs came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    pub(crate) presentations: u64,
    pub(crate) admissions: u64,
    pub(crate) simulated_seconds: u64,
    pub(crate) sums: Sums,
    pub(crate) by_class: BTreeMap<(ClassName, Theme), Row>,
    /// By seed.
    pub(crate) findings: BTreeMap<u64, Vec<Finding>>,
}

/// Runs of one class and theme.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) runs: u64,
    pub(crate) presentations: u64,
    pub(crate) runs_with_slips: u64,
    pub(crate) slipped: u64,
    /// Runs in which records were lost.
    pub(crate) lost: u64,
    /// In microseconds: the last slip after the last change, at most.
    pub(crate) slipped_for: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClassName {
    Survives,
    Closes,
}

impl From<Class> for ClassName {
    fn from(class: Class) -> Self {
        match class {
            Class::Survives => Self::Survives,
            Class::Closes { .. } => Self::Closes,
        }
    }
}

impl Campaign {
    /// Carries it out.
    pub(crate) fn run(&self) -> io::Result<Tally> {
        let (next, over) = (AtomicU64::new(self.from), AtomicBool::new(false));
        let tallies: io::Result<Vec<Tally>> = thread::scope(|scope| {
            let workers: Vec<_> =
                (0..self.threads.max(1)).map(|_| scope.spawn(|| self.work(&next, &over))).collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined.map(|tally| tally.unwrap_or_else(|_| Err(io::Error::other("a run panicked")))).collect()
        });
        Ok(tallies?.into_iter().fold(Tally::default(), Tally::and))
    }

    /// The plan of a seed.
    pub(crate) fn plan(&self, seed: u64) -> Plan {
        self.kind.plan(seed)
    }

    fn work(&self, next: &AtomicU64, over: &AtomicBool) -> io::Result<Tally> {
        put_back(self.undo);
        let mut tally = Tally::default();
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.from + self.seeds {
                break;
            }
            let found = tally.add(self.plan(seed))?;
            let ends = match self.until {
                Some(Until::AnyFinding) => !found.is_empty(),
                Some(Until::Found(kind)) => found.iter().any(|finding| finding.kind == kind),
                None => false,
            };
            if ends {
                over.store(true, Ordering::Relaxed);
            }
        }
        Ok(tally)
    }
}

impl Tally {
    fn add(&mut self, plan: Plan) -> io::Result<Vec<Finding>> {
        let seed = plan.seed;
        let outcome = run(&plan)?;
        let judgement = outcome.judgement;
        self.runs += 1;
        self.presentations += judgement.presentations;
        self.admissions += judgement.admissions;
        self.sums.add(&judgement.sums);
        self.simulated_seconds += outcome.history.last().map_or(0, |event| event.at / 1_000_000);
        let row = self.by_class.entry((outcome.claim.class.into(), plan.theme)).or_default();
        row.runs += 1;
        row.presentations += judgement.presentations;
        row.runs_with_slips += u64::from(judgement.slipped > 0);
        row.slipped += judgement.slipped;
        row.lost += u64::from(judgement.lost);
        row.slipped_for = row.slipped_for.max(judgement.slipped_for);
        if !judgement.findings.is_empty() {
            self.findings.insert(seed, judgement.findings.clone());
        }
        Ok(judgement.findings)
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
