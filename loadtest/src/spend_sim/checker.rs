//! Judges a history against what the deployment claims. It shares no code with what makes histories.

use super::claim::{Claim, Class};
use super::history::{Event, Happening, Verdict};
use super::network::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// What the checker found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) presentations: u64,
    pub(crate) admissions: u64,
    /// Second admissions, of those that are allowed.
    pub(crate) slipped: u64,
    /// How long after the last change the last of them came.
    pub(crate) slipped_for: Micros,
    /// Records were lost.
    pub(crate) lost: bool,
    /// How long after that the first gateway said so.
    pub(crate) noticed_after: Option<Micros>,
    /// What contradicts the claim.
    pub(crate) findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A token was admitted twice where that must not be.
    Twice,
    /// A token was admitted by a gateway that knew of the loss.
    ThoughLost,
    /// A gateway said that records were lost or a clock is ahead, and none was.
    FalseAlarm,
    /// All faults were over, and a gateway admitted nothing.
    Stuck,
}

/// Reads the history from the first line to the last.
pub(crate) fn judge(history: &[Event], claim: &Claim, gateways: usize) -> Judgement {
    let mut reading = Reading { claim: *claim, judgement: Judgement::default(), ..Reading::default() };
    for event in history {
        reading.read(event);
    }
    reading.end(gateways)
}

struct Reading {
    claim: Claim,
    judgement: Judgement,
    /// Token -> the line of its first admission.
    admitted: BTreeMap<usize, String>,
    /// When the last fault began or ended, or a router changed its mind.
    changed: Micros,
    /// When records were lost, the last time.
    lost: Option<Micros>,
    settled: bool,
    /// Gateways that admitted a token since.
    works: BTreeSet<usize>,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            claim: Claim { class: Class::Beyond, may_lose: true, is_skewed: true, recovers: false },
            judgement: Judgement::default(),
            admitted: BTreeMap::new(),
            changed: 0,
            lost: None,
            settled: false,
            works: BTreeSet::new(),
        }
    }
}

impl Reading {
    fn read(&mut self, event: &Event) {
        match &event.happening {
            Happening::Lost => self.lost = Some(event.at),
            Happening::Fault { .. }
            | Happening::Healed { .. }
            | Happening::Down { .. }
            | Happening::Up { .. } => {
                self.changed = event.at;
            }
            Happening::Presented { .. } => self.judgement.presentations += 1,
            Happening::Ended { token, gateway, verdict: Verdict::Admitted { though_lost }, .. } => {
                self.judgement.admissions += 1;
                if self.settled {
                    self.works.insert(*gateway);
                }
                if *though_lost {
                    self.find(Kind::ThoughLost, event.to_string());
                }
                match self.admitted.get(token).cloned() {
                    None => drop(self.admitted.insert(*token, event.to_string())),
                    Some(first) => self.twice(event, &first),
                }
            }
            Happening::Says { refuses: Some("records_lost"), .. } => {
                if !self.claim.may_lose {
                    self.find(Kind::FalseAlarm, event.to_string());
                }
                if let Some(lost) = self.lost {
                    self.judgement.noticed_after.get_or_insert(event.at - lost);
                }
            }
            Happening::Serves { refuses: Some("clock_ahead"), .. } if !self.claim.is_skewed => {
                self.find(Kind::FalseAlarm, event.to_string());
            }
            Happening::Settled => self.settled = true,
            Happening::Ended { .. } | Happening::Says { .. } | Happening::Serves { .. } => {}
        }
    }

    fn twice(&mut self, event: &Event, first: &str) {
        let since = event.at - self.changed;
        let is_allowed = match self.claim.class {
            Class::Survives => false,
            Class::Notices { within: Some(within) } => since <= within * 1_000,
            Class::Notices { within: None } | Class::Beyond => true,
        };
        if is_allowed {
            self.judgement.slipped += 1;
            self.judgement.slipped_for = self.judgement.slipped_for.max(since);
        } else {
            self.find(Kind::Twice, format!("{event}, after {}", first.trim()));
        }
    }

    fn find(&mut self, kind: Kind, text: String) {
        self.judgement.findings.push(Finding { kind, text: text.trim().to_owned() });
    }

    fn end(mut self, gateways: usize) -> Judgement {
        self.judgement.lost = self.lost.is_some();
        if self.claim.recovers && self.settled {
            for gateway in (0..gateways).filter(|gateway| !self.works.contains(gateway)).collect::<Vec<_>>() {
                self.find(
                    Kind::Stuck,
                    format!("gateway {gateway} admitted no fresh token after all faults were over"),
                );
            }
        }
        self.judgement
    }
}
