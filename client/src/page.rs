//! The agent's part of the live page: wallet, requests by outcome, where a tunnel's time goes, why minting fails.
//!
//! The page's own thread makes it once a second, from counts kept for the metrics.

use crate::catalogue::AgentOutcome;
use crate::recorder::{Fate, Part, Recorder, Trouble};
use crate::reload::Settings;
use postern_admin::live::{Endings, Live, Section, Show, Stages, Table};
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use tokio::time::Instant;

/// Adds the agent's section; `settings` has the levels between which the wallet is filled. It does not keep the agent
/// alive.
pub(crate) fn add(live: &Live, recorder: &Arc<Recorder>, settings: watch::Receiver<Settings>) {
    let mut section = section(recorder, settings);
    let recorder: Weak<Recorder> = Arc::downgrade(recorder);
    live.add(move || match recorder.upgrade() {
        Some(recorder) => section(&recorder),
        None => Section::new("agent", "An agent that has stopped"),
    });
}

fn section(
    recorder: &Recorder,
    settings: watch::Receiver<Settings>,
) -> impl FnMut(&Recorder) -> Section + Send + use<> {
    let mut parts = Stages::over(Part::ALL.iter().map(|part| (part.as_str(), recorder.latency(*part))));
    let mut answers = Endings::default();
    move |recorder| {
        let (low, high) = {
            let settings = settings.borrow();
            (settings.low, settings.high)
        };
        let totals = AgentOutcome::ALL.iter().map(|outcome| (outcome.as_str(), recorder.total(*outcome)));
        let (outcomes, requests) = answers.tick("Answers by outcome", "No requests yet.", totals);
        let mut section = Section::new("agent", "Agent")
            .tile("Wallet", Show::Count, recorder.wallet() as f64)
            .tile("Low water", Show::Count, low as f64)
            .tile("High water", Show::Count, high as f64)
            .tile("Requests", Show::Rate, requests)
            .tile("Tunnels open", Show::Count, recorder.tunnels() as f64);
        section.latency = Some(parts.tick());
        section.tables = vec![outcomes, minting(recorder.trouble()), fates(recorder)];
        section
    }
}

/// What became of the tokens since the start.
fn fates(recorder: &Recorder) -> Table {
    let columns = [("tokens", Show::Text), ("in all", Show::Count)];
    let mut table = Table::new("Tokens since the start", "None was minted or used yet.", &columns);
    for fate in Fate::ALL {
        match recorder.fates(*fate) {
            0 => {}
            number => table.row(vec![json!(fate.as_str()), json!(number)]),
        }
    }
    table
}

fn minting(trouble: Option<Trouble>) -> Table {
    let columns = [("last failure", Show::State), ("next attempt in", Show::Age)];
    let mut table = Table::new("Minting", "The last attempt did not fail.", &columns);
    if let Some(Trouble { sentence, next_attempt, is_stocked }) = trouble {
        let state = if is_stocked { "warn" } else { "bad" };
        // Once the pause is over, the next attempt comes when a token is needed.
        let pause = next_attempt.checked_duration_since(Instant::now());
        let pause = pause.map_or(Value::Null, |pause| json!(pause.as_secs_f64().ceil()));
        table.row(vec![json!(format!("{state}: {sentence}")), pause]);
    }
    table
}
