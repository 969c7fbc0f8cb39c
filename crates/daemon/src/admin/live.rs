//! The live page: the sections of all daemons of the process, updated once a second.
//!
//! ```text
//! daemons ── sources ──> Live ── tick, once a second ──> snapshot ──> /events, /live.json
//! ```
//!
//! A daemon adds a source: a function that returns one section of the page. A thread calls all sources once a second and
//! publishes the result as text, the same bytes for every browser. Twenty browsers therefore cost as much as one, and no request
//! waits for them.

mod latency;
mod links;
mod section;
mod stages;
mod tokens;

pub use latency::Latency;
pub use links::Link;
pub use section::{Heat, Section, Show, Table};
pub use stages::{Endings, Rate, Stages, words};
pub use tokens::Tokens;

use super::catalogue::LinkKind;
use crate::drain::Shutdown;
use crate::readiness::Readiness;
use crate::utc::unix_now;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{Stream, unfold};
use http_body::Frame;
use links::Links;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokens::TokenSources;
use tokio::sync::watch;

/// Interval between snapshots.
const TICK: Duration = Duration::from_secs(1);
/// Seconds of heat maps and lines that a newly opened page receives.
const HISTORY: usize = 300;

/// Ids of the sections at the top of the page, which an operator needs first. The others follow in the order in which they were
/// added.
const FIRST: [&str; 5] = ["checks", "tokens", "store", "tunnels", "keys"];

/// Returns the page as one file for browsers, made of seven for editors.
pub(crate) fn page() -> String {
    include_str!("live/page.html").replace("/*STYLE*/", include_str!("live/page.css")).replace(
        "/*SCRIPT*/",
        concat!(
            include_str!("live/numbers.js"),
            include_str!("live/page.js"),
            include_str!("live/heat.js"),
            include_str!("live/lines.js"),
            include_str!("live/stream.js")
        ),
    )
}

#[derive(Serialize)]
struct Snapshot {
    name: &'static str,
    version: &'static str,
    /// Unix time, in seconds.
    at: u64,
    /// Time since the start of the process, in seconds.
    uptime: u64,
    /// "ready", "degraded", "not_ready" or "draining".
    state: &'static str,
    reasons: Vec<String>,
    sections: Vec<Section>,
}

/// The last [`HISTORY`] seconds, oldest first.
#[derive(Default)]
struct History {
    /// Columns of each heat map, by section.
    heat: BTreeMap<&'static str, VecDeque<Vec<u64>>>,
    /// Values of each line, by section and label.
    lines: BTreeMap<(&'static str, &'static str), VecDeque<u64>>,
}

/// A function that returns a section as it is now; called once a second on the page's thread.
type Source = Box<dyn FnMut() -> Section + Send>;

/// The live page of a process. Clones share it.
#[derive(Clone)]
pub struct Live(Arc<Shared>);

struct Shared {
    sources: Mutex<Vec<Source>>,
    links: Links,
    tokens: TokenSources,
    /// The latest snapshot as JSON.
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
    pub fn add(&self, source: impl FnMut() -> Section + Send + 'static) {
        self.0.sources.lock().push(Box::new(source));
    }

    /// Adds one section of another page, which is not shown, under a different id and title.
    pub fn adopt(&self, other: &Self, id: &'static str, (own_id, title): (&'static str, &'static str)) {
        let other = other.clone();
        self.add(move || {
            // Calls all sources of the other page, because each of them counts seconds.
            let sections: Vec<Section> = other.0.sources.lock().iter_mut().map(|source| source()).collect();
            let adopted = sections.into_iter().find(|section| section.id == id);
            let adopted = adopted.unwrap_or_else(|| Section::new(own_id, title));
            Section { id: own_id, title, ..adopted }
        });
    }

    /// Returns the statistics of a link, created at the first call for its kind and address. `address` comes from the
    /// configuration and becomes a label: it must not contain a client or a destination.
    pub fn link(&self, kind: LinkKind, address: &str) -> Link {
        self.0.links.get(kind, address)
    }

    /// Adds numbers of tokens to the page's section about them: totals since the start, or the present number of held ones. The
    /// source is called once a second on the page's thread.
    pub fn tokens(&self, source: impl FnMut() -> Vec<(Tokens, u64)> + Send + 'static) {
        self.0.tokens.add(source);
    }

    /// Starts a thread that makes snapshots until the last clone is dropped.
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

    /// Returns the latest snapshot as JSON.
    pub fn latest(&self) -> Bytes {
        self.0.latest.borrow().clone()
    }

    /// Returns the last minutes of each heat map and line as JSON, without the second of the latest snapshot.
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

/// Returns all elements but the last.
fn before<T>(seconds: &VecDeque<T>) -> Vec<&T> {
    seconds.iter().take(seconds.len().saturating_sub(1)).collect()
}

/// Makes one snapshot; returns `false` once no handle can read it.
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
        at: unix_now(),
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

/// Returns the server-sent events of one browser (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): `history`
/// first, then one `snapshot` a second. A slow browser gets the latest one, never a queue of old ones. The stream ends with the
/// process.
pub(crate) fn events(live: &Live) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + use<> {
    let (mut snapshots, history) = (live.0.latest.subscribe(), live.history());
    snapshots.mark_changed(); // the present one is sent at once
    let first = Bytes::from(format!("retry: 1000\nevent: history\ndata: {history}\n\n"));
    unfold((Some(first), snapshots), async |(first, mut snapshots)| {
        let event = match first {
            Some(history) => history,
            None => snapshot(&mut snapshots).await?,
        };
        Some((Ok(Frame::data(event)), (None, snapshots)))
    })
}

async fn snapshot(snapshots: &mut watch::Receiver<Bytes>) -> Option<Bytes> {
    snapshots.changed().await.ok()?;
    let json = snapshots.borrow_and_update().clone();
    let mut event = BytesMut::with_capacity(json.len() + 32);
    event.put_slice(b"event: snapshot\ndata: "); // compact JSON has no line break
    event.put_slice(&json);
    event.put_slice(b"\n\n");
    Some(event.freeze())
}
