//! The agent's part of the live page: requests by outcome, and of each hop its wallet, where a tunnel's time goes, why minting
//! fails.
//!
//! The page's own thread makes it once a second, from counts kept for the metrics.

use crate::catalogue::{AgentOutcome, Position};
use crate::config::HopSettings;
use crate::recorder::{Answers, Fate, Part, Recorder, Trouble};
use postern_admin::live::{Endings, Live, Section, Show, Stages, Table, Tokens, words};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// Adds a hop's section; `settings` has the levels between which its wallet is filled. The requests of programs stand in that of
/// the last hop. It does not keep the agent alive.
pub(crate) fn add(
    live: &Live,
    hop: Position,
    records: (&Arc<Answers>, &Arc<Recorder>),
    settings: watch::Receiver<HopSettings>,
) {
    let mut section = section(hop, records.1, settings);
    let records = (Arc::downgrade(records.0), Arc::downgrade(records.1));
    let tokens = records.1.clone();
    live.tokens(move || tokens.upgrade().map_or_else(Vec::new, |recorder| held_and_lost(&recorder)));
    live.add(move || match (records.0.upgrade(), records.1.upgrade()) {
        (Some(answers), Some(recorder)) => section(&answers, &recorder),
        _ => Section::new(name(hop).0, "An agent that has stopped"),
    });
}

fn name(hop: Position) -> (&'static str, &'static str) {
    match hop {
        Position::First => ("first-hop", "Agent, first hop"),
        Position::Last => ("agent", "Agent"),
    }
}

fn section(
    hop: Position,
    recorder: &Recorder,
    settings: watch::Receiver<HopSettings>,
) -> impl FnMut(&Answers, &Recorder) -> Section + Send + use<> {
    let mut parts = Stages::over(Part::ALL.iter().map(|part| (part.as_str(), recorder.latency(*part))));
    let mut endings = Endings::default();
    move |answers, recorder| {
        let (low, high) = {
            let settings = settings.borrow();
            (settings.low, settings.high)
        };
        let (key, title) = name(hop);
        let mut section = Section::new(key, title)
            .tile("Wallet", Show::Count, recorder.wallet() as f64)
            .tile("Low water", Show::Count, low as f64)
            .tile("High water", Show::Count, high as f64);
        if hop == Position::Last {
            let totals = AgentOutcome::ALL.iter().map(|outcome| (outcome.as_str(), answers.total(*outcome)));
            let (outcomes, requests) = endings.tick("Answers by outcome", "No requests yet.", totals);
            section = section.tile("Requests", Show::Rate, requests);
            section.tables.push(outcomes);
        }
        section = section.tile("Tunnels open", Show::Count, recorder.tunnels() as f64);
        section.latency = Some(parts.tick());
        section.tables.extend([minting(recorder.trouble()), fates(recorder)]);
        section
    }
}

fn held_and_lost(recorder: &Recorder) -> Vec<(Tokens, u64)> {
    let lost = Fate::ALL.iter().filter(|fate| fate.is_lost()).map(|fate| recorder.fates(*fate)).sum();
    vec![(Tokens::Held, u64::try_from(recorder.wallet()).unwrap_or(0)), (Tokens::Lost, lost)]
}

/// What became of the tokens since the start.
fn fates(recorder: &Recorder) -> Table {
    let columns = [("tokens", Show::Text), ("in all", Show::Count)];
    let mut table = Table::new("Tokens since the start", "None was minted or used yet.", &columns);
    for fate in Fate::ALL {
        match recorder.fates(*fate) {
            0 => {}
            number => table.row(vec![json!(words(fate.as_str())), json!(number)]),
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
