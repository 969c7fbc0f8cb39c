//! The issuer's part of the live page: tokens, where their time goes, answers by outcome, keys.
//!
//! It is made once a second on a thread of the page's own, from what is counted anyway.

use crate::recorder::{Part, Recorder};
use crate::ring::{KeyView, Ring};
use crate::server::Routes;
use postern_service::live::{Live, PercentileRow, Percentiles, Rate, Section, Show, Table, WINDOWS, Windows};
use postern_service::names::IssuerOutcome;
use postern_token::UnixSeconds;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Adds the issuer's section. It does not keep the issuer alive.
pub(crate) fn add(live: &Live, routes: &Arc<Routes>) {
    let mut section = section(&routes.recorder);
    let routes: Weak<Routes> = Arc::downgrade(routes);
    live.add(move || match routes.upgrade() {
        Some(routes) => section(&routes.recorder, &routes.ring),
        None => Section::new("issuer", "An issuer that has stopped"),
    });
}

fn section(recorder: &Recorder) -> impl FnMut(&Recorder, &Ring) -> Section + Send + use<> {
    let mut parts = Part::ALL.map(|part| (part, Windows::over(recorder.spread(part))));
    let mut rates = vec![Rate::default(); IssuerOutcome::ALL.len()];
    let mut tokens = Rate::default();
    move |recorder, ring| {
        let (outcomes, requests) = outcomes(recorder, &mut rates);
        let (queue, limit) = recorder.queue();
        let mut section = Section::new("issuer", "Issuer")
            .tile("Tokens", Show::Rate, tokens.tick(recorder.tokens()))
            .tile("Requests", Show::Rate, requests)
            .tile("Queue", Show::Count, queue as f64)
            .tile("Queue limit", Show::Count, limit as f64);
        parts.iter_mut().for_each(|(_, windows)| windows.tick());
        let row = |(part, windows): &(Part, Windows)| PercentileRow {
            label: part.as_str(),
            windows: windows.spreads(),
        };
        section.latency = Some(Percentiles { windows: WINDOWS, rows: parts.iter().map(row).collect() });
        section.tables = vec![outcomes, keys(ring, UnixSeconds::now())];
        section
    }
}

/// The table of answers, and how many requests a second they are together.
fn outcomes(recorder: &Recorder, rates: &mut [Rate]) -> (Table, f64) {
    let columns = [("outcome", Show::Text), ("now", Show::Rate), ("total", Show::Count)];
    let mut table = Table::new("Answers by outcome", "Nothing was asked yet.", &columns);
    let mut all = 0.0;
    for (outcome, rate) in IssuerOutcome::ALL.iter().zip(rates) {
        let total = recorder.total(*outcome);
        let rate = rate.tick(total);
        all += rate;
        if total > 0 {
            table.row(vec![json!(outcome.as_str()), json!(rate), json!(total)]);
        }
    }
    (table, all)
}

fn keys(ring: &Ring, now: UnixSeconds) -> Table {
    let columns = [
        ("key", Show::Text),
        ("phase", Show::Text),
        ("in use in", Show::Age),
        ("in use for", Show::Age),
        ("replaced in", Show::Age),
        ("retires in", Show::Age),
    ];
    let mut table = Table::new("Token keys", "There is none: nothing can be signed.", &columns);
    for KeyView { id, phase, life } in ring.view(now) {
        let [a, b, c, d, ..] = id.0; // as in the name of its file
        table.row(vec![
            json!(format!("{a:02x}{b:02x}{c:02x}{d:02x}…")),
            json!(phase.as_str()),
            seconds(now.until(life.not_before)),
            seconds(life.not_before.until(now)),
            seconds(now.until(life.issue_until)),
            seconds(now.until(life.not_after)),
        ]);
    }
    table
}

/// Nothing where the moment has passed, or has not come.
fn seconds(span: Duration) -> Value {
    if span.is_zero() { Value::Null } else { json!(span.as_secs()) }
}
