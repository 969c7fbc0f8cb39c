//! Links: how each hop to another program behaves, so that one look tells which of them is bad.

use super::{Latency, Section, Show, Table, Windows};
use crate::names::{self, LinkKind};
use metrics::{Counter, Histogram, counter, histogram};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The record of one link. Clones share it.
#[derive(Clone)]
pub struct Link(Arc<Record>);

struct Record {
    kind: LinkKind,
    address: String,
    attempts: AtomicU64,
    lost: AtomicU64,
    latency: Latency,
    counters: (Counter, Counter),
    histogram: Histogram,
}

impl Link {
    fn new(kind: LinkKind, address: &str) -> Self {
        let labels =
            [(LinkKind::LABEL, kind.as_str().to_owned()), (names::ADDRESS_LABEL, address.to_owned())];
        Self(Arc::new(Record {
            kind,
            address: address.to_owned(),
            attempts: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            latency: Latency::default(),
            counters: (counter!(names::LINK_ATTEMPTS, &labels), counter!(names::LINK_LOST, &labels)),
            histogram: histogram!(names::LINK_DURATION, &labels),
        }))
    }

    /// An attempt was answered, whatever the answer said.
    pub fn answered(&self, took: Duration) {
        self.0.attempts.fetch_add(1, Relaxed);
        self.0.counters.0.increment(1);
        self.0.latency.record(took);
        self.0.histogram.record(took);
    }

    /// So many attempts got no answer.
    pub fn lost(&self, number: u64) {
        self.0.attempts.fetch_add(number, Relaxed);
        self.0.lost.fetch_add(number, Relaxed);
        self.0.counters.0.increment(number);
        self.0.counters.1.increment(number);
    }

    /// What was recorded so far: attempts, and how many of them were lost.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.0.attempts.load(Relaxed), self.0.lost.load(Relaxed))
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({} {})", self.0.kind.as_str(), self.0.address)
    }
}

/// All links of a process.
#[derive(Default)]
pub(super) struct Links(Mutex<Vec<(Link, Windows)>>);

impl Links {
    pub(super) fn get(&self, kind: LinkKind, address: &str) -> Link {
        let mut links = self.0.lock();
        let known = links.iter().find(|(link, _)| link.0.kind == kind && link.0.address == address);
        if let Some((link, _)) = known {
            return link.clone();
        }
        let link = Link::new(kind, address);
        links.push((link.clone(), Windows::over(&link.0.latency)));
        link
    }

    /// The table of all links, if there are any.
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
            ("lost share", Show::Percent),
            ("p50", Show::Duration),
            ("p99", Show::Duration),
        ];
        let mut table = Table::new("Links of this process, times over 10 min", "There are none.", &columns);
        for (link, windows) in links.iter_mut() {
            windows.tick();
            let (attempts, lost) = link.totals();
            let share = if attempts == 0 { Value::Null } else { json!(lost as f64 / attempts as f64) };
            let spread = windows.spread();
            table.row(vec![
                json!(link.0.kind.as_str()),
                json!(link.0.address),
                json!(attempts),
                json!(lost),
                share,
                json!(spread.map(|spread| spread.p50)),
                json!(spread.map(|spread| spread.p99)),
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
    fn no_link_no_table() {
        assert!(Links::default().section().is_none());
    }
}
