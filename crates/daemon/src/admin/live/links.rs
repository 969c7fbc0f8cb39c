//! Links: statistics of each connection to another program, so that one look identifies a bad one.

use super::latency::{Latency, Windows};
use super::section::{Section, Show, Table};
use crate::admin::catalogue::{self, LinkKind};
use metrics::{Histogram, counter, histogram};
use parking_lot::Mutex;
use postern_telemetry::catalogue::ADDRESS;
use postern_telemetry::metrics::ReadableCounter;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The statistics of one link. Clones share them.
#[derive(Clone)]
pub struct Link(Arc<Record>);

struct Record {
    kind: LinkKind,
    address: String,
    attempts: ReadableCounter,
    lost: ReadableCounter,
    /// Attempts that were lost before the first answer.
    lost_before: OnceLock<u64>,
    latency: Latency,
    histogram: Histogram,
}

impl Link {
    fn new(kind: LinkKind, address: &str) -> Self {
        let labels = [(LinkKind::LABEL, kind.as_str().to_owned()), (ADDRESS.name, address.to_owned())];
        Self(Arc::new(Record {
            kind,
            address: address.to_owned(),
            attempts: ReadableCounter::new(counter!(catalogue::LINK_ATTEMPTS, &labels)),
            lost: ReadableCounter::new(counter!(catalogue::LINK_LOST, &labels)),
            lost_before: OnceLock::new(),
            latency: Latency::default(),
            histogram: histogram!(catalogue::LINK_DURATION, &labels),
        }))
    }

    /// Records an attempt that was answered, whatever the answer was.
    pub fn answered(&self, took: Duration) {
        self.0.lost_before.get_or_init(|| self.0.lost.total());
        self.0.attempts.add(1);
        self.0.latency.record(took);
        self.0.histogram.record(took);
    }

    pub fn lost(&self, number: u64) {
        self.0.attempts.add(number);
        self.0.lost.add(number);
    }

    /// Returns the number of attempts so far, and of lost ones among them.
    pub fn totals(&self) -> (u64, u64) {
        (self.0.attempts.total(), self.0.lost.total())
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({} {})", self.0.kind.as_str(), self.0.address)
    }
}

#[derive(Default)]
pub(super) struct Links(Mutex<Vec<Watched>>);

/// A link with its last ten minutes.
struct Watched {
    link: Link,
    windows: Windows,
    /// Totals at each tick since the first answer: earlier attempts may have met a server that was still starting.
    totals: VecDeque<(u64, u64)>,
    is_answered: bool,
}

/// Ticks in ten minutes, plus the one before them.
const TICKS: usize = 601;

impl Watched {
    /// Returns attempts and losses since the start, and over the last ten minutes. Must be called once a second.
    fn tick(&mut self) -> [(u64, u64); 2] {
        self.windows.tick();
        // Read before the totals, which then include what was lost before the first answer.
        let before = self.link.0.lost_before.get();
        let now = self.link.totals();
        if !self.is_answered
            && let Some(before) = before
        {
            self.is_answered = true;
            self.totals = VecDeque::from([(*before, *before)]);
        }
        self.totals.push_back(now);
        if self.totals.len() > TICKS {
            self.totals.pop_front();
        }
        let before = self.totals.front().copied().unwrap_or_default();
        [now, (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1))]
    }
}

impl Links {
    pub(super) fn get(&self, kind: LinkKind, address: &str) -> Link {
        let mut links = self.0.lock();
        let is_it = |known: &&Watched| known.link.0.kind == kind && known.link.0.address == address;
        if let Some(known) = links.iter().find(is_it) {
            return known.link.clone();
        }
        let link = Link::new(kind, address);
        let (windows, totals) = (Windows::over(&link.0.latency), VecDeque::from([(0, 0)]));
        links.push(Watched { link: link.clone(), windows, totals, is_answered: false });
        link
    }

    /// Returns the table of all links; `None` if there are none. Must be called once a second.
    pub(super) fn section(&self) -> Option<Section> {
        let mut links = self.0.lock();
        if links.is_empty() {
            return None;
        }
        let columns = [
            ("link", Show::Text),
            ("address", Show::Text),
            ("attempts", Show::Count),
            ("lost", Show::Count),
            ("lost, 10 min", Show::Percent),
            ("p50", Show::Duration),
            ("p99", Show::Duration),
        ];
        let mut table = Table::new("Links of this process, times over 10 min", "There are none.", &columns);
        for watched in links.iter_mut() {
            let [(attempts, lost), recent] = watched.tick();
            let share = if recent.0 == 0 { Value::Null } else { json!(recent.1 as f64 / recent.0 as f64) };
            let (record, summary) = (&watched.link.0, watched.windows.summary());
            table.row(vec![
                json!(record.kind.as_str()),
                json!(record.address),
                json!(attempts),
                json!(lost),
                share,
                json!(summary.map(|summary| summary.p50)),
                json!(summary.map(|summary| summary.p99)),
            ]);
        }
        let mut section = Section::new("links", "Links");
        section.tables.push(table);
        Some(section)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_tells_which_link_is_bad() {
        let links = Links::default();
        let (good, bad) =
            (links.get(LinkKind::Store, "10.0.0.1:11211"), links.get(LinkKind::Store, "10.0.0.2:11211"));
        for _ in 0..99 {
            good.answered(Duration::from_micros(100));
            bad.answered(Duration::from_millis(44));
        }
        bad.lost(1);
        links.get(LinkKind::Store, "10.0.0.1:11211").answered(Duration::from_micros(100));
        let section = serde_json::to_value(links.section().unwrap()).unwrap();
        let rows = section["tables"][0]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "the same link is the same record");
        assert_eq!((&rows[0][2], &rows[0][3]), (&json!(100), &json!(0)));
        assert_eq!((&rows[1][2], &rows[1][3], &rows[1][4]), (&json!(100), &json!(1), &json!(0.01)));
        let p99 = rows[1][6].as_f64().unwrap();
        assert!((0.044..0.047).contains(&p99), "{p99}");
    }

    #[test]
    fn a_loss_and_a_first_answer_between_two_reads_are_no_negative_number() {
        let links = Links::default();
        let link = links.get(LinkKind::Store, "10.0.0.1:11211");
        link.0.lost_before.set(1).unwrap(); // as another thread sees it before the totals
        assert!(links.section().is_some());
    }

    #[test]
    fn a_loss_of_long_ago_is_in_the_total_and_no_longer_in_the_share() {
        let links = Links::default();
        let link = links.get(LinkKind::Issuer, "issuer.example:443");
        link.lost(1);
        let row = |links: &Links| {
            let section = serde_json::to_value(links.section().unwrap()).unwrap();
            let row = &section["tables"][0]["rows"][0];
            (row[3].clone(), row[4].clone())
        };
        assert_eq!(row(&links), (json!(1), json!(1.0)));
        (0..600).for_each(|_| drop(links.section()));
        link.answered(Duration::from_millis(1));
        assert_eq!(row(&links), (json!(1), json!(0.0)));
    }

    #[test]
    fn attempts_before_the_first_answer_count_only_while_there_is_none() {
        let links = Links::default();
        let link = links.get(LinkKind::Store, "10.0.0.1:11211");
        let share = |links: &Links| {
            serde_json::to_value(links.section().unwrap()).unwrap()["tables"][0]["rows"][0][4].clone()
        };
        link.lost(9);
        assert_eq!(share(&links), json!(1.0), "a server that never answered");
        link.lost(1);
        link.answered(Duration::from_millis(1));
        assert_eq!(share(&links), json!(0.0), "a server that was started later");
        link.lost(1);
        assert_eq!(share(&links), json!(0.5));
        assert_eq!(link.totals(), (12, 11));
    }

    #[test]
    fn no_link_no_table() {
        assert!(Links::default().section().is_none());
    }
}
