//! The issuer's section of the live page: tokens, their latency, answers by outcome, keys.
//!
//! The page's own thread renders it once a second, from the counts of the metrics.

use crate::accounts::Shown;
use crate::catalogue::IssuerOutcome;
use crate::keyring::Keyring;
use crate::keys::TokenKey;
use crate::recorder::{Part, Recorder};
use crate::server::Routes;
use postern_daemon::admin::live::{Endings, Live, Rate, Section, Show, Stages, Table, Tokens};
use postern_token::UnixSeconds;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Adds the issuer's section. It does not keep the issuer alive.
pub(crate) fn add(live: &Live, routes: &Arc<Routes>) {
    let mut section = section(&routes.issuance.recorder);
    let routes: Weak<Routes> = Arc::downgrade(routes);
    let issuing = routes.clone();
    live.tokens(move || {
        issuing
            .upgrade()
            .map(|routes| (Tokens::Issued, routes.issuance.recorder.tokens()))
            .into_iter()
            .collect()
    });
    live.add(move || match routes.upgrade() {
        Some(routes) => {
            let mut section = section(&routes.issuance.recorder, &routes.issuance.keyring);
            section.tables.extend(routes.issuance.accounts.shown(UnixSeconds::now()).map(accounts));
            section
        }
        None => Section::new("issuer", "An issuer that has stopped"),
    });
}

fn section(recorder: &Recorder) -> impl FnMut(&Recorder, &Keyring) -> Section + Send + use<> {
    let mut parts = Stages::over(Part::ALL.iter().map(|part| (part.as_str(), recorder.latency(*part))));
    let mut answers = Endings::default();
    let mut tokens = Rate::default();
    move |recorder, keyring| {
        let totals = IssuerOutcome::ALL.iter().map(|outcome| (outcome.as_str(), recorder.total(*outcome)));
        let (outcomes, requests) = answers.tick("Answers by outcome", "No requests yet.", totals);
        let (queue, limit) = recorder.queue();
        let mut section = Section::new("issuer", "Issuer")
            .tile("Tokens", Show::Rate, tokens.tick(recorder.tokens()))
            .tile("Requests", Show::Rate, requests)
            .tile("Queue", Show::Count, queue as f64)
            .tile("Queue limit", Show::Count, limit as f64)
            .tile("Active accounts", Show::Count, recorder.active_accounts() as f64);
        section.latency = Some(parts.tick());
        section.tables = vec![outcomes, keys(keyring, UnixSeconds::now())];
        section
    }
}

/// Maximum number of rows in the table of accounts.
const MOST_ACCOUNTS: usize = 50;

fn accounts(shown: Vec<Shown>) -> Table {
    let columns =
        [("account", Show::Text), ("used", Show::Count), ("quota", Show::Count), ("period", Show::Text)];
    let nobody = "No account has requested a token within a minute.";
    let mut table = Table::new("Accounts, by tokens in the present period", nobody, &columns);
    for Shown { name, used, quota } in shown.into_iter().take(MOST_ACCOUNTS) {
        table.row(vec![json!(&*name), json!(used), json!(quota.tokens()), json!(quota.period().to_string())]);
    }
    table
}

fn keys(keyring: &Keyring, now: UnixSeconds) -> Table {
    let columns = [
        ("key", Show::Text),
        ("type", Show::Text),
        ("phase", Show::Text),
        ("in use in", Show::Age),
        ("in use for", Show::Age),
        ("replaced in", Show::Age),
        ("retires in", Show::Age),
    ];
    let mut table = Table::new("Token keys", "There is none: nothing can be signed.", &columns);
    for (TokenKey { signing, life }, phase) in keyring.view(now) {
        table.row(vec![
            json!(format!("{}…", signing.id().short())),
            json!(signing.token_type().code().to_string()),
            json!(phase.as_str()),
            seconds(now.until(life.not_before)),
            seconds(life.not_before.until(now)),
            seconds(now.until(life.issue_until)),
            seconds(now.until(life.not_after)),
        ]);
    }
    table
}

/// Returns the seconds; null if zero: the moment has passed, or has not come.
fn seconds(span: Duration) -> Value {
    if span.is_zero() { Value::Null } else { json!(span.as_secs()) }
}
