//! The live page: what every daemon of the process shows of itself, once a second.
//!
//! ```text
//! daemons ── sources ──> Live ── tick, once a second ──> snapshot ──> /events, /live.json
//! ```
//!
//! A daemon adds a source: a function that makes one section of the page. A thread calls all of them once a second and
//! publishes the result as text, the same bytes for every browser. So twenty of them cost what one costs, and nothing
//! of it is on the way of a request.

mod events;
mod latency;
mod links;
mod rate;
mod section;
mod stages;

pub use events::events;
pub use latency::{Latency, WINDOWS, Windows};
pub use links::Link;
pub use rate::Rate;
pub use section::{
    Column, DurationSummary, Heat, PercentileRow, Percentiles, Section, Show, Snapshot, Table, Tile,
};
pub use stages::{Endings, Stages};

use crate::catalogue::LinkKind;
use bytes::Bytes;
use links::Links;
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Readiness;
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// How often the page is made anew.
const TICK: Duration = Duration::from_secs(1);
/// Columns of a heat map that a page which is opened later still gets.
const HISTORY: usize = 300;

/// Sections at the top of the page, by id: what an operator needs first. The others follow in the order they were
/// added.
const FIRST: [&str; 4] = ["checks", "store", "tunnels", "keys"];

/// The page itself: one file for the browser, six for people who edit it.
#[must_use]
pub fn page() -> String {
    include_str!("page.html").replace("/*STYLE*/", include_str!("page.css")).replace(
        "/*SCRIPT*/",
        concat!(
            include_str!("numbers.js"),
            include_str!("page.js"),
            include_str!("heat.js"),
            include_str!("stream.js")
        ),
    )
}

/// A source: the section as it is now. Called once a second, on a thread of its own.
type Source = Box<dyn FnMut() -> Section + Send>;

/// What the live page of a process shows. Clones share it.
#[derive(Clone)]
pub struct Live(Arc<Shared>);

struct Shared {
    sources: Mutex<Vec<Source>>,
    links: Links,
    /// The latest snapshot, as JSON.
    latest: watch::Sender<Bytes>,
    /// The last columns of each heat map, by section.
    history: Mutex<BTreeMap<&'static str, VecDeque<Vec<u64>>>>,
    started: Instant,
}

impl Default for Live {
    fn default() -> Self {
        Self(Arc::new(Shared {
            sources: Mutex::default(),
            links: Links::default(),
            latest: watch::Sender::new(Bytes::from_static(b"{}")),
            history: Mutex::default(),
            started: Instant::now(),
        }))
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Live({} sections)", self.0.sources.lock().len())
    }
}

impl Live {
    /// Adds a section to the page.
    pub fn add(&self, source: impl FnMut() -> Section + Send + 'static) {
        self.0.sources.lock().push(Box::new(source));
    }

    /// The record of a link, made at the first call for its kind and address. `address` comes from the configuration
    /// and becomes a label: no client or destination belongs in it.
    #[must_use]
    pub fn link(&self, kind: LinkKind, address: &str) -> Link {
        self.0.links.get(kind, address)
    }

    /// Makes snapshots until the last clone is dropped.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(&self, readiness: Readiness, shutdown: Shutdown) -> std::io::Result<()> {
        let shared = Arc::downgrade(&self.0);
        std::thread::Builder::new().name("live".to_owned()).spawn(move || {
            let mut next = Instant::now();
            while tick(&shared, &readiness, &shutdown) {
                next += TICK;
                let now = Instant::now();
                if next < now {
                    next = now + TICK; // a machine that slept does not catch up
                }
                std::thread::sleep(next - now);
            }
        })?;
        Ok(())
    }

    /// The latest snapshot, as JSON.
    #[must_use]
    pub fn latest(&self) -> Bytes {
        self.0.latest.borrow().clone()
    }

    /// Every snapshot from now on.
    fn subscribe(&self) -> watch::Receiver<Bytes> {
        self.0.latest.subscribe()
    }

    /// The last minutes of each heat map, as JSON, without the column that the latest snapshot has.
    fn history(&self) -> String {
        let history = self.0.history.lock();
        let before =
            |columns: &VecDeque<Vec<u64>>| json!(columns.range(..columns.len() - 1).collect::<Vec<_>>());
        let heat: BTreeMap<_, _> = history.iter().map(|(id, columns)| (*id, before(columns))).collect();
        json!({ "heat": heat }).to_string()
    }
}

/// Makes one snapshot; false when no handle can read it any more.
fn tick(shared: &Weak<Shared>, readiness: &Readiness, shutdown: &Shutdown) -> bool {
    let Some(shared) = shared.upgrade() else { return false };
    let mut sections: Vec<Section> = shared.sources.lock().iter_mut().map(|source| source()).collect();
    sections.sort_by_key(|section| FIRST.iter().position(|id| *id == section.id).unwrap_or(FIRST.len()));
    sections.extend(shared.links.section());
    shared.remember(&sections);
    let (state, reasons) = state(readiness, shutdown);
    let snapshot = Snapshot {
        name: "postern",
        version: env!("CARGO_PKG_VERSION"),
        at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        uptime: shared.started.elapsed().as_secs(),
        state,
        reasons,
        sections,
    };
    match serde_json::to_vec(&snapshot) {
        Ok(text) => drop(shared.latest.send_replace(Bytes::from(text))),
        Err(error) => {
            tracing::warn!(%error, "the live page cannot be drawn and stays as it is; metrics are not affected. \
                Please report this line")
        }
    }
    true
}

impl Shared {
    fn remember(&self, sections: &[Section]) {
        let mut history = self.history.lock();
        for (id, heat) in sections.iter().filter_map(|section| Some((section.id, section.heat.as_ref()?))) {
            let columns = history.entry(id).or_default();
            columns.push_back(heat.column.clone());
            if columns.len() > HISTORY {
                columns.pop_front();
            }
        }
    }
}

fn state(readiness: &Readiness, shutdown: &Shutdown) -> (&'static str, Vec<String>) {
    let (missing, degraded) = (readiness.reasons(), readiness.degraded());
    if shutdown.is_draining() {
        ("draining", missing)
    } else if !missing.is_empty() {
        ("not_ready", missing)
    } else if !degraded.is_empty() {
        ("degraded", degraded)
    } else {
        ("ready", Vec::new())
    }
}
