//! Judges a history against the deployment's claim. Shares no code with the producers of histories.

use super::claim::{CLOSED, Claim, Class};
use super::fault::Micros;
use super::history::{Event, Happening, Sums, Verdict};
use super::ledger::{Finding, Kind, Ledger};
use std::collections::{BTreeMap, BTreeSet};

/// Result of the checker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) presentations: u64,
    pub(crate) admissions: u64,
    /// Number of second admissions that the claim allows.
    pub(crate) slipped: u64,
    /// Longest time from the last change to such an admission.
    pub(crate) slipped_for: Micros,
    /// `true` if records were lost.
    pub(crate) lost: bool,
    /// Counts of tokens by outcome.
    pub(crate) sums: Sums,
    /// Contradictions of the claim.
    pub(crate) findings: Vec<Finding>,
}

/// Judges the history in one pass.
pub(crate) fn judge(history: &[Event], claim: &Claim, gateways: usize) -> Judgement {
    let mut reading = Reading {
        claim: *claim,
        judgement: Judgement::default(),
        admitted: BTreeMap::new(),
        changed: 0,
        lost_of: Vec::new(),
        settled: false,
        works: BTreeSet::new(),
    };
    let mut ledger = Ledger::new(*claim);
    for event in history {
        reading.read(event);
        ledger.read(event);
    }
    let (sums, findings) = ledger.end(history.last().map_or(0, |event| event.at));
    let mut judgement = reading.end(gateways);
    judgement.sums = sums;
    judgement.findings.extend(findings);
    judgement
}

struct Reading {
    claim: Claim,
    judgement: Judgement,
    /// First admission of each token, as a line of the history.
    admitted: BTreeMap<usize, String>,
    /// Time of the last change that may delay the detection of a loss.
    changed: Micros,
    /// Servers whose records were lost.
    lost_of: Vec<Option<usize>>,
    settled: bool,
    /// Gateways that have admitted a token since `settled`.
    works: BTreeSet<usize>,
}

impl Reading {
    fn read(&mut self, event: &Event) {
        match &event.happening {
            Happening::Lost { server } => {
                self.changed = event.at;
                self.lost_of.push(*server);
            }
            Happening::Fault { server, .. } | Happening::Healed { server, .. } => {
                self.changes(*server, event.at);
            }
            Happening::Down { server, .. } | Happening::Up { server, .. } => {
                self.changes(Some(*server), event.at);
            }
            Happening::Presented { .. } => self.judgement.presentations += 1,
            Happening::Ended { token, gateway, verdict: Verdict::Admitted, .. } => {
                self.judgement.admissions += 1;
                if self.settled {
                    self.works.insert(*gateway);
                }
                match self.admitted.get(token).cloned() {
                    None => drop(self.admitted.insert(*token, event.to_string())),
                    Some(first) => self.twice(event, &first),
                }
            }
            Happening::Settled => self.settled = true,
            _ => {} // only the ledger reads the rest
        }
    }

    /// Records a change, unless it affects only a server without a loss: such a change hides no other server's loss.
    fn changes(&mut self, server: Option<usize>, at: Micros) {
        let of_any = self.lost_of.is_empty() || server.is_none() || self.lost_of.contains(&None);
        if of_any || self.lost_of.contains(&server) {
            self.changed = at;
        }
    }

    fn twice(&mut self, event: &Event, first: &str) {
        let since = event.at - self.changed;
        let is_allowed = match self.claim.class {
            Class::Survives => false,
            Class::Closes => since <= CLOSED * 1_000,
            Class::Open => self.lost_of.len() > 1 || since <= CLOSED * 1_000,
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
        self.judgement.lost = !self.lost_of.is_empty();
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

#[cfg(test)]
mod tests {
    use super::*;

    const SURVIVES: Claim = Claim { recovers: true, ..Claim::BARE };
    const CLOSES: Claim = Claim { class: Class::Closes, may_void: true, ..Claim::BARE };

    fn at(millis: u64, happening: Happening) -> Event {
        Event { at: millis * 1_000, happening }
    }

    fn admitted(millis: u64, token: usize) -> Event {
        let verdict = Verdict::Admitted;
        at(millis, Happening::Ended { attempt: 0, token, gateway: 0, verdict })
    }

    fn fault(millis: u64) -> Event {
        at(millis, Happening::Fault { number: 0, server: None, text: String::new() })
    }

    fn kinds(history: &[Event], claim: &Claim) -> Vec<Kind> {
        judge(history, claim, 1).findings.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn a_second_admission_is_found_where_none_is_allowed() {
        let sound = [admitted(1, 7), admitted(2, 8)];
        assert_eq!(kinds(&sound, &SURVIVES), []);
        let twice = [admitted(1, 7), admitted(2, 8), admitted(3, 7)];
        assert_eq!(kinds(&twice, &SURVIVES), [Kind::Twice]);
        assert_eq!((judge(&twice, &CLOSES, 1).slipped, kinds(&twice, &CLOSES)), (1, vec![]));
    }

    #[test]
    fn what_is_allowed_until_a_loss_is_noticed_ends_some_time_after_the_last_change() {
        let late = |change| [admitted(1, 7), fault(10), fault(change), admitted(10_000, 7)];
        assert_eq!(kinds(&late(10_001 - CLOSED), &CLOSES), []);
        assert_eq!(kinds(&late(9_999 - CLOSED), &CLOSES), [Kind::Twice]);
    }

    #[test]
    fn what_happens_to_one_server_is_no_excuse_for_another() {
        let of = |server| at(9_000, Happening::Healed { number: 0, server: Some(server) });
        let lost = || at(100, Happening::Lost { server: Some(1) });
        let history = |server| [admitted(1, 7), lost(), of(server), admitted(10_000, 7)];
        assert_eq!(kinds(&history(1), &CLOSES), []);
        assert_eq!(kinds(&history(2), &CLOSES), [Kind::Twice]);
    }

    #[test]
    fn a_gateway_that_admits_nothing_when_all_is_over_is_found() {
        let settled = || at(100, Happening::Settled);
        assert_eq!(kinds(&[admitted(1, 7), settled()], &SURVIVES), [Kind::Stuck]);
        assert_eq!(kinds(&[settled(), admitted(101, 7)], &SURVIVES), []);
        assert_eq!(kinds(&[settled()], &CLOSES), []);
    }
}
