//! `postern client status`: what a running agent does, or what is in the wallet of one that does not run.

use super::{NOT_READY, NOT_RUNNING};
use crate::args::AgentStatus;
use crate::daemon::environment;
use crate::failure::Failure;
use crate::running::admin::get;
use crate::stdio::{print, print_line};
use http::StatusCode;
use postern_client::catalogue::Position;
use postern_client::status::{HopStatus, report_name};
use postern_client::{Config, KeyTokens, wallet_by_key};
use postern_daemon::utc;
use postern_token::UnixSeconds;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// The answer of `/status.json`.
#[derive(Deserialize)]
struct Status {
    agent: HopStatus,
    #[serde(default)]
    first_hop: Option<HopStatus>,
    draining: bool,
    not_ready: Vec<String>,
    degraded: Vec<String>,
}

/// Prints the state of the agent; the exit code is 0 when it is ready, 1 when it is not, 3 when it does not run.
pub(crate) async fn status(args: &AgentStatus) -> Result<(), Failure> {
    let (config, _) = postern_config::open::<Config>(&args.config, environment())?;
    let url = format!("http://{}/status.json", config.listen.admin);
    let answer = match get(&url, |status| status == StatusCode::OK).await {
        Ok((_, body)) => body,
        Err(none) if none.nothing_listens => return not_running(&config, args),
        Err(none) => {
            return Err(Failure::runtime(format_args!(
                "{url}: {none}; is it an agent of this version that listens there?"
            )));
        }
    };
    let unusable = |error| Failure::runtime(format_args!("{url}: this is no agent's status: {error}"));
    let value: Value = serde_json::from_slice(&answer).map_err(unusable)?;
    let status = Status::deserialize(&value).map_err(unusable)?;
    match args.json {
        true => print_line(value)?,
        false => print(text(&status))?,
    }
    let reasons = match status.draining {
        true => "it is stopping".to_owned(),
        false if status.not_ready.is_empty() => return Ok(()),
        false => status.not_ready.join("; "),
    };
    Err(Failure::new(NOT_READY, format_args!("the agent is not ready: {reasons}")))
}

fn text(status: &Status) -> String {
    let mut text = match (status.not_ready.is_empty() && !status.draining, status.degraded.is_empty()) {
        (true, true) => "ready\n".to_owned(),
        (true, false) => format!("ready, and needs attention: {}\n", status.degraded.join("; ")),
        (false, _) => "not ready\n".to_owned(),
    };
    if let Some(first) = &status.first_hop {
        hop(&mut text, "first hop", first);
    }
    hop(&mut text, "agent", &status.agent);
    text
}

/// Writing to a String cannot fail.
fn hop(text: &mut String, name: &str, hop: &HopStatus) {
    let _ = writeln!(text, "\n{name}");
    for gateway in &hop.gateways {
        let _ = writeln!(text, "  gateway     {}: {}", gateway.url, gateway.state);
    }
    let key = hop.key.as_ref().map_or(String::new(), |key| format!("; key {key}"));
    let _ = writeln!(text, "  challenge   {}{key}", hop.challenge);
    wallet(text, &hop.wallet);
    let minted = hop.last_minted.map_or("none since the start".to_owned(), |at| utc::rfc3339(at.0));
    let _ = writeln!(text, "  last mint   {minted}");
    match &hop.last_failure {
        Some(failure) => {
            let _ = writeln!(text, "  last error  {}: {}", utc::rfc3339(failure.at.0), failure.sentence);
        }
        None => text.push_str("  last error  none since the start\n"),
    }
    let _ = writeln!(text, "  next        {}", hop.next);
}

fn wallet(text: &mut String, keys: &[KeyTokens]) {
    if keys.is_empty() {
        text.push_str("  wallet      no tokens\n");
    }
    for KeyTokens { key, token_type, tokens, not_after } in keys {
        let end = match not_after {
            Some(end) if *end <= UnixSeconds::now() => format!("ended at {}", utc::rfc3339(end.0)),
            Some(end) => format!("good until {}", utc::rfc3339(end.0)),
            None => "without a known end".to_owned(),
        };
        let _ = writeln!(text, "  wallet      {tokens} of key {key}, type {token_type}, {end}");
    }
}

/// Says what is in the wallets, as far as that can be read without an agent.
fn not_running(config: &Config, args: &AgentStatus) -> Result<(), Failure> {
    let hops = [
        (Position::First, config.first_hop.as_ref().map(|hop| &hop.wallet.path)),
        (Position::Last, Some(&config.wallet.path)),
    ];
    let mut found = json!({ "running": false });
    let mut text = String::new();
    for (position, path) in hops {
        let Some(path) = path else { continue };
        let _ = writeln!(text, "{} (stopped)", report_name(position));
        found[report_name(position)] = match look(path) {
            Ok(keys) => {
                wallet(&mut text, &keys);
                json!({ "wallet": keys })
            }
            Err(reason) => {
                let _ = writeln!(text, "  wallet      {reason}");
                json!({ "wallet_error": reason })
            }
        };
    }
    match args.json {
        true => print_line(found)?,
        false => print(text)?,
    }
    Err(Failure::new(
        NOT_RUNNING,
        format_args!(
            "no agent runs at {} (listen.admin): start it with postern client --config {}",
            config.listen.admin,
            args.config.display()
        ),
    ))
}

fn look(path: &Path) -> Result<Vec<KeyTokens>, String> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    wallet_by_key(path).map_err(|error| error.to_string())
}
