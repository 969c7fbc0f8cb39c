//! The report of each hop for `postern client status`, and its section of the live page. Neither contains a token, an API key or
//! a destination. The next step is computed by the rules of the refill.

use crate::catalogue::{AgentOutcome, Position};
pub use crate::hop::gateways::GatewayStatus;
use crate::hop::marks::Trial;
use crate::hop::tunnel::Opener;
use crate::mint::refill::Stock;
use crate::recorder::{Answers, Failure, Fate, Minting, Part, Recorder};
pub use crate::recorder::{FailureStatus, UdpStatus};
use crate::settings::TokenSettings;
use crate::wallet::file::KeyTokens;
use crate::wallet::supply::Demand;
use postern_daemon::admin::ProcessContext;
use postern_daemon::admin::live::{Endings, Section, Show, Stages, Table, Tokens, words};
use postern_daemon::utc::rough;
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// Returns the name of a hop's report.
#[must_use]
pub const fn report_name(hop: Position) -> &'static str {
    match hop {
        Position::First => "first_hop",
        Position::Last => "agent",
    }
}

/// The report of one hop: its gateways, its tokens, and what is minted next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopStatus {
    /// The gateways in order of preference.
    pub gateways: Vec<GatewayStatus>,
    /// A description of the gateway's challenge.
    pub challenge: String,
    /// The key that the challenge names: the first four bytes of its id, as 8 hex digits.
    pub key: Option<String>,
    /// The tokens in the wallet by key, in the order in which the keys end; keys without a known end come first.
    pub wallet: Vec<KeyTokens>,
    /// Time of the last token minted since the start.
    pub last_minted: Option<UnixSeconds>,
    /// The last failure since the start.
    pub last_failure: Option<FailureStatus>,
    /// A description of the next minting.
    pub next: String,
    /// UDP of programs; only for the gateway that opens tunnels to targets.
    pub udp: Option<UdpStatus>,
}

/// Registers a hop's report and its section of the live page, which do not keep the agent alive. Program requests appear in the
/// section of the last hop.
pub(crate) fn add(
    process: &ProcessContext,
    hop: Position,
    answers: &Arc<Answers>,
    opener: &Arc<Opener>,
    settings: watch::Receiver<TokenSettings>,
) {
    let (weak, reported) = (Arc::downgrade(opener), settings.clone());
    let counted = (hop == Position::Last).then(|| Arc::downgrade(answers));
    process.reports.add(report_name(hop), move || match weak.upgrade() {
        Some(opener) => {
            let udp = counted.as_ref().and_then(|answers| Some(answers.upgrade()?.udp()));
            json!(HopStatus { udp, ..HopStatus::of(&opener, &reported.borrow()) })
        }
        None => Value::Null,
    });
    let recorder = Arc::downgrade(&opener.recorder);
    process
        .live
        .tokens(move || recorder.upgrade().map_or_else(Vec::new, |recorder| held_and_lost(&recorder)));
    let mut section = section(hop, &opener.recorder, settings);
    let (answers, recorder) = (Arc::downgrade(answers), Arc::downgrade(&opener.recorder));
    process.live.add(move || match (answers.upgrade(), recorder.upgrade()) {
        (Some(answers), Some(recorder)) => section(&answers, &recorder),
        _ => Section::new(section_name(hop).0, "An agent that has stopped"),
    });
}

impl HopStatus {
    fn of(Opener { gateways, supply, recorder, .. }: &Opener, settings: &TokenSettings) -> Self {
        let demand = supply.demand();
        let current = demand.current.as_ref();
        let trial = current.and_then(|current| gateways.trial(current));
        let Minting { last_minted, last_failure, .. } = recorder.minting.lock().clone();
        Self {
            gateways: gateways.status(),
            challenge: current.map_or("not known yet: no gateway has given one".to_owned(), |current| {
                gateways.describe(current)
            }),
            key: current.and_then(|current| Some(current.key?.short())),
            wallet: supply.wallet.by_key(),
            last_minted,
            last_failure,
            next: next(&demand, settings, trial, Instant::now()),
            udp: None,
        }
    }
}

/// Describes the next minting, by the rules of the refill.
fn next(demand: &Demand, settings: &TokenSettings, trial: Option<Trial>, now: Instant) -> String {
    let Some(current) = &demand.current else { return "waits for the gateway's challenge".to_owned() };
    let TokenSettings { low, high, delay, .. } = *settings;
    let stock = Stock::of(demand, settings);
    let count = stock.to_mint(trial, !current.has_context);
    let pause = demand.failure.as_ref().map(|failure| failure.next_attempt.saturating_duration_since(now));
    match (count, pause.filter(|pause| !pause.is_zero())) {
        (1.., Some(pause)) => {
            let seconds = pause.as_secs_f64().ceil() as u64;
            format!("waits {}, then tries again to mint {}", rough(seconds), tokens(count))
        }
        (1.., None) if stock.can_wait() && !delay.is_zero() => {
            format!("mints {} at some moment within {}", tokens(count), rough(delay.as_secs()))
        }
        (1.., None) => format!("mints {} now", tokens(count)),
        (0, _) if current.has_context || low == 0 => {
            "nothing to do: a token is minted when a request needs one".to_owned()
        }
        (0, _) => match trial {
            Some(trial) => format!(
                "nothing to do: no stock is kept for {} more, and each request has a token minted",
                rough(trial.left.as_secs())
            ),
            None => format!("nothing to do: {} of {high} kept, mints again below {low}", demand.held()),
        },
    }
}

fn tokens(count: usize) -> String {
    if count == 1 { "1 token".to_owned() } else { format!("{count} tokens") }
}

// ---- The live page, built once a second on its own thread, from counts kept for the metrics ----

fn section_name(hop: Position) -> (&'static str, &'static str) {
    match hop {
        Position::First => ("first-hop", "Agent, first hop"),
        Position::Last => ("agent", "Agent"),
    }
}

fn section(
    hop: Position,
    recorder: &Recorder,
    settings: watch::Receiver<TokenSettings>,
) -> impl FnMut(&Answers, &Recorder) -> Section + Send + use<> {
    let mut parts = Stages::over(Part::ALL.iter().map(|part| (part.as_str(), recorder.latency(*part))));
    let mut endings = Endings::default();
    move |answers, recorder| {
        let (low, high) = {
            let settings = settings.borrow();
            (settings.low, settings.high)
        };
        let (key, title) = section_name(hop);
        let mut section = Section::new(key, title)
            .tile("Wallet", Show::Count, recorder.wallet() as f64)
            .tile("Low water", Show::Count, low as f64)
            .tile("High water", Show::Count, high as f64);
        if hop == Position::Last {
            let totals = AgentOutcome::ALL.iter().map(|outcome| (outcome.as_str(), answers.total(*outcome)));
            let (outcomes, requests) = endings.tick("Answers by outcome", "No requests yet.", totals);
            section = section.tile("Requests", Show::Rate, requests);
            section.tables.push(outcomes);
            let UdpStatus { streams_open, streams_opened, datagrams_dropped } = answers.udp();
            section = section
                .tile("UDP streams open", Show::Count, streams_open as f64)
                .tile("UDP streams opened", Show::Count, streams_opened as f64)
                .tile("UDP datagrams lost", Show::Count, datagrams_dropped as f64);
        }
        section = section.tile("Tunnels open", Show::Count, recorder.tunnels() as f64);
        section.latency = Some(parts.tick());
        section.tables.extend([minting(recorder.minting.lock().trouble.clone()), fates(recorder)]);
        section
    }
}

fn held_and_lost(recorder: &Recorder) -> Vec<(Tokens, u64)> {
    let lost = Fate::ALL.iter().filter(|fate| fate.is_lost()).map(|fate| recorder.fates(*fate)).sum();
    vec![(Tokens::Held, u64::try_from(recorder.wallet()).unwrap_or(0)), (Tokens::Lost, lost)]
}

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

fn minting(trouble: Option<(Failure, bool)>) -> Table {
    let columns = [("last failure", Show::State), ("next attempt in", Show::Age)];
    let mut table = Table::new("Minting", "The last attempt did not fail.", &columns);
    if let Some((Failure { sentence, next_attempt, .. }, is_stocked)) = trouble {
        let state = if is_stocked { "warn" } else { "bad" };
        // Once the pause is over, the next attempt comes when a token is needed.
        let pause = next_attempt.checked_duration_since(Instant::now());
        let pause = pause.map_or(Value::Null, |pause| json!(pause.as_secs_f64().ceil()));
        table.row(vec![json!(format!("{state}: {sentence}")), pause]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::FailureKind;
    use crate::wallet::challenge::tests::named;
    use std::time::Duration;

    fn demand(level: usize) -> Demand {
        let current = Some(Arc::new(named(None, &["proxy.example"], 1)));
        Demand { current, level, older: 0, waiting: 0, asked_again: false, has_doubts: false, failure: None }
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_step_is_said_in_words() {
        let delay = Duration::from_secs(60);
        let settings = TokenSettings { low: 20, high: 100, delay, ..TokenSettings::default() };
        let now = Instant::now();
        let said = |demand: &Demand, trial| next(demand, &settings, trial, now);
        assert_eq!(said(&demand(60), None), "nothing to do: 60 of 100 kept, mints again below 20");
        assert_eq!(said(&demand(12), None), "mints 88 tokens at some moment within 60 s");
        assert_eq!(said(&demand(9), None), "mints 91 tokens now");
        assert_eq!(said(&Demand { waiting: 1, ..demand(12) }, None), "mints 88 tokens now");
        let next_attempt = now + Duration::from_millis(42_100);
        let sentence = "the issuer is away".to_owned();
        let failure = Some(Failure { sentence, kind: FailureKind::Passing, next_attempt });
        assert_eq!(
            said(&Demand { failure, ..demand(99) }, None),
            "nothing to do: 99 of 100 kept, mints again below 20"
        );
        let failed = Demand { waiting: 1, ..demand(0) };
        let sentence = String::new();
        let failure = Some(Failure { sentence, kind: FailureKind::Passing, next_attempt });
        assert_eq!(
            said(&Demand { failure, ..failed.clone() }, None),
            "waits 43 s, then tries again to mint 100 tokens"
        );
        let trial = Some(Trial { left: Duration::from_secs(600), is_proven: false });
        assert_eq!(said(&failed, trial), "mints 1 token now");
        assert!(said(&demand(0), trial).starts_with("nothing to do: no stock is kept for 10 min more"));
        let context = Some(Arc::new(named(Some([1; 32]), &["proxy.example"], 1)));
        assert!(said(&Demand { current: context, ..demand(0) }, None).ends_with("when a request needs one"));
        assert_eq!(said(&Demand { current: None, ..demand(0) }, None), "waits for the gateway's challenge");
    }
}
