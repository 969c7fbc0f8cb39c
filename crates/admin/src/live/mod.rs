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
mod tokens;

pub use events::events;
pub use latency::{Latency, WINDOWS, Windows};
pub use links::Link;
pub use rate::Rate;
pub use section::{
    Column, DurationSummary, Heat, Line, PercentileRow, Percentiles, Section, Show, Snapshot, Table, Tile,
};
pub use stages::{Endings, Stages, words};
pub use tokens::Tokens;

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
use tokens::TokenSources;
use tokio::sync::watch;

/// How often the page is made anew.
const TICK: Duration = Duration::from_secs(1);
/// Seconds of heat maps and lines that a page which is opened later still gets.
const HISTORY: usize = 300;

/// Sections at the top of the page, by id: what an operator needs first. The others follow in the order they were
/// added.
const FIRST: [&str; 5] = ["checks", "tokens", "store", "tunnels", "keys"];

/// The page itself: one file for the browser, seven for people who edit it.
#[must_use]
pub fn page() -> String {
    include_str!("page.html").replace("/*STYLE*/", include_str!("page.css")).replace(
        "/*SCRIPT*/",
        concat!(
            include_str!("numbers.js"),
            include_str!("page.js"),
            include_str!("heat.js"),
            include_str!("lines.js"),
            include_str!("stream.js")
        ),
    )
}

/// The last [`HISTORY`] seconds, oldest first.
#[derive(Default)]
struct History {
    /// The columns of each heat map, by section.
    heat: BTreeMap<&'static str, VecDeque<Vec<u64>>>,
    /// The values of each line, by section and label.
    lines: BTreeMap<(&'static str, &'static str), VecDeque<u64>>,
}

/// A source: the section as it is now. Called once a second, on a thread of its own.
type Source = Box<dyn FnMut() -> Section + Send>;

/// What the live page of a process shows. Clones share it.
#[derive(Clone)]
pub struct Live(Arc<Shared>);

struct Shared {
    sources: Mutex<Vec<Source>>,
    links: Links,
    tokens: TokenSources,
    /// The latest snapshot, as JSON.
    latest: watch::Sender<Bytes>,
    history: Mutex<History>,
    started: Instant,
}

impl Default for Live {
    fn default() -> Self {
        Self(Arc::new(Shared {
            sources: Mutex::default(),
            links: Links::default(),
            tokens: TokenSources::default(),
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

    /// Adds one section of another page, which is not shown itself, under another id and title.
    pub fn adopt(&self, other: &Self, id: &'static str, (own_id, title): (&'static str, &'static str)) {
        let other = other.clone();
        self.add(move || {
            // All of them count seconds.
            let sections: Vec<Section> = other.0.sources.lock().iter_mut().map(|source| source()).collect();
            let adopted = sections.into_iter().find(|section| section.id == id);
            let adopted = adopted.unwrap_or_else(|| Section::new(own_id, title));
            Section { id: own_id, title, ..adopted }
        });
    }

    /// The record of a link, made at the first call for its kind and address. `address` comes from the configuration
    /// and becomes a label: no client or destination belongs in it.
    #[must_use]
    pub fn link(&self, kind: LinkKind, address: &str) -> Link {
        self.0.links.get(kind, address)
    }

    /// Adds numbers of tokens to the page's section about them: since the start, or now for what is held. Called once a
    /// second, on the page's own thread.
    pub fn tokens(&self, source: impl FnMut() -> Vec<(Tokens, u64)> + Send + 'static) {
        self.0.tokens.add(source);
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

    /// The last minutes of each heat map and line, as JSON, without the second that the latest snapshot has.
    fn history(&self) -> String {
        let History { heat, lines } = &*self.0.history.lock();
        let heat: BTreeMap<_, _> = heat.iter().map(|(id, columns)| (*id, before(columns))).collect();
        let mut by_section: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for ((id, label), values) in lines {
            by_section.entry(*id).or_default().insert(*label, before(values));
        }
        json!({ "heat": heat, "lines": by_section }).to_string()
    }
}

/// All but the last.
fn before<T>(seconds: &VecDeque<T>) -> Vec<&T> {
    seconds.iter().take(seconds.len().saturating_sub(1)).collect()
}

/// Makes one snapshot; false when no handle can read it any more.
fn tick(shared: &Weak<Shared>, readiness: &Readiness, shutdown: &Shutdown) -> bool {
    let Some(shared) = shared.upgrade() else { return false };
    let mut sections: Vec<Section> = shared.sources.lock().iter_mut().map(|source| source()).collect();
    sections.extend(shared.tokens.section());
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
        let History { heat, lines } = &mut *self.history.lock();
        for section in sections {
            if let Some(map) = &section.heat {
                push(heat.entry(section.id).or_default(), map.column.clone());
            }
            for line in &section.lines {
                push(lines.entry((section.id, line.label)).or_default(), line.value);
            }
        }
    }
}

fn push<T>(seconds: &mut VecDeque<T>, second: T) {
    seconds.push_back(second);
    if seconds.len() > HISTORY {
        seconds.pop_front();
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
