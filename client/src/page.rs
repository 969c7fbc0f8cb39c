//! The agent's part of the live page: wallet, requests by outcome, where a tunnel's time goes, why minting fails.
//!
//! It is made once a second on a thread of the page's own, from what is counted anyway.

use crate::recorder::{Part, Recorder, Trouble};
use postern_service::live::{Live, PercentileRow, Percentiles, Rate, Section, Show, Table, WINDOWS, Windows};
use postern_service::names::AgentOutcome;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use tokio::time::Instant;

/// Adds the agent's section; `waters` are the levels between which the wallet is filled. It does not keep the agent alive.
pub(crate) fn add(live: &Live, recorder: &Arc<Recorder>, waters: (usize, usize)) {
    let mut section = section(recorder, waters);
    let recorder: Weak<Recorder> = Arc::downgrade(recorder);
    live.add(move || match recorder.upgrade() {
        Some(recorder) => section(&recorder),
        None => Section::new("agent", "An agent that has stopped"),
    });
}

fn section(
    recorder: &Recorder,
    (low, high): (usize, usize),
) -> impl FnMut(&Recorder) -> Section + Send + use<> {
    let mut parts = Part::ALL.map(|part| (part, Windows::over(recorder.spread(part))));
    let mut rates = vec![Rate::default(); AgentOutcome::ALL.len()];
    move |recorder| {
        let (outcomes, requests) = outcomes(recorder, &mut rates);
        let mut section = Section::new("agent", "Agent")
            .tile("Wallet", Show::Count, recorder.wallet() as f64)
            .tile("Low water", Show::Count, low as f64)
            .tile("High water", Show::Count, high as f64)
            .tile("Requests", Show::Rate, requests)
            .tile("Tunnels open", Show::Count, recorder.tunnels() as f64);
        parts.iter_mut().for_each(|(_, windows)| windows.tick());
        let row = |(part, windows): &(Part, Windows)| PercentileRow {
            label: part.as_str(),
            windows: windows.spreads(),
        };
        section.latency = Some(Percentiles { windows: WINDOWS, rows: parts.iter().map(row).collect() });
        section.tables = vec![outcomes, minting(recorder.trouble())];
        section
    }
}

/// The table of answers, and how many requests a second they are together.
fn outcomes(recorder: &Recorder, rates: &mut [Rate]) -> (Table, f64) {
    let columns = [("outcome", Show::Text), ("now", Show::Rate), ("total", Show::Count)];
    let mut table = Table::new("Answers by outcome", "Nothing was asked yet.", &columns);
    let mut all = 0.0;
    for (outcome, rate) in AgentOutcome::ALL.iter().zip(rates) {
        let total = recorder.total(*outcome);
        let rate = rate.tick(total);
        all += rate;
        if total > 0 {
            table.row(vec![json!(outcome.as_str()), json!(rate), json!(total)]);
        }
    }
    (table, all)
}

fn minting(trouble: Option<Trouble>) -> Table {
    let columns = [("last failure", Show::State), ("next attempt in", Show::Age)];
    let mut table = Table::new("Minting", "The last attempt did not fail.", &columns);
    if let Some(Trouble { cause, next_attempt, is_stocked }) = trouble {
        let state = if is_stocked { "warn" } else { "bad" };
        // Once the pause is over, the next attempt comes when a token is needed.
        let pause = next_attempt.checked_duration_since(Instant::now());
        let pause = pause.map_or(Value::Null, |pause| json!(pause.as_secs_f64().ceil()));
        table.row(vec![json!(format!("{state}: {cause}")), pause]);
    }
    table
}
