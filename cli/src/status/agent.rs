//! Command `postern client status`: prints the state of a running agent, or the wallet of a stopped one.

use super::{NOT_READY, NOT_RUNNING};
use crate::args::AgentStatus;
use crate::daemon::environment;
use crate::failure::Failure;
use crate::running::{NoAnswer, get, other_process};
use crate::stdio::{print, print_line};
use http::StatusCode;
use postern_client::catalogue::Position;
use postern_client::status::{HopStatus, UdpStatus, report_name};
use postern_client::{Config, KeyTokens, wallet_by_key};
use postern_daemon::utc;
use postern_token::UnixSeconds;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

#[derive(Deserialize)]
struct Status {
    agent: HopStatus,
    #[serde(default)]
    first_hop: Option<HopStatus>,
    draining: bool,
    not_ready: Vec<String>,
    degraded: Vec<String>,
}

/// Prints the state of the agent. The exit code is 0 if the agent is ready, 1 if it is not, 3 if it does not run.
pub(crate) async fn status(args: &AgentStatus) -> Result<(), Failure> {
    let (config, _) = postern_config::open::<Config>(&args.config, environment())?;
    let url = format!("http://{}/status.json", config.listen.admin);
    let answer = match get(&url, |status| status == StatusCode::OK).await {
        Ok((_, body)) => body,
        Err(NoAnswer::NothingListens) => return not_running(&config, args),
        Err(none) => {
            let sentence = format_args!("{url}: {none}; is it an agent of this version that listens there?");
            return Err(Failure::new(NOT_READY, sentence));
        }
    };
    let unusable = |error| Failure::new(NOT_READY, format_args!("{url}: this is no agent's status: {error}"));
    let value: Value = serde_json::from_slice(&answer).map_err(unusable)?;
    let status = Status::deserialize(&value).map_err(unusable)?;
    if let Some(other) = other_process(config.listen.admin, "wallet.path", &config.wallet.path) {
        let place = args.config.display();
        let advice = format!("It is another agent: choose another listen.admin in {place}, or stop it");
        return Err(Failure::new(NOT_READY, format_args!("{other}. {advice}")));
    }
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
    let first = match (status.not_ready.is_empty() && !status.draining, status.degraded.is_empty()) {
        (true, true) => "ready".to_owned(),
        (true, false) => format!("ready, and needs attention: {}", status.degraded.join("; ")),
        (false, _) => "not ready".to_owned(),
    };
    let first_hop = status.first_hop.as_ref().map_or_else(String::new, |first| hop("first hop", first));
    format!("{first}\n{first_hop}{}", hop("agent", &status.agent))
}

fn hop(name: &str, hop: &HopStatus) -> String {
    let gateways = hop.gateways.iter();
    let gateways: String =
        gateways.map(|gateway| format!("  gateway     {}: {}\n", gateway.url, gateway.state)).collect();
    let key = hop.key.as_ref().map_or(String::new(), |key| format!("; key {key}"));
    let none = || "none since the start".to_owned();
    let minted = hop.last_minted.map_or_else(none, |at| utc::rfc3339(at.0));
    let failure = hop.last_failure.as_ref();
    let failure =
        failure.map_or_else(none, |failure| format!("{}: {}", utc::rfc3339(failure.at.0), failure.sentence));
    let udp = hop.udp.as_ref().map_or_else(String::new, |udp| {
        let UdpStatus { streams_open, streams_opened, datagrams_dropped } = udp;
        format!(
            "  udp         {streams_open} streams open, {streams_opened} opened, {datagrams_dropped} datagrams lost\n"
        )
    });
    format!(
        "\n{name}\n{gateways}  challenge   {}{key}\n{}  last mint   {minted}\n  last error  {failure}\n  next        {}\n{udp}",
        hop.challenge,
        wallet(&hop.wallet),
        hop.next
    )
}

fn wallet(keys: &[KeyTokens]) -> String {
    if keys.is_empty() {
        return "  wallet      no tokens\n".to_owned();
    }
    let line = |KeyTokens { key, token_type, tokens, not_after }: &KeyTokens| {
        let end = match not_after {
            Some(end) if *end <= UnixSeconds::now() => format!("ended at {}", utc::rfc3339(end.0)),
            Some(end) => format!("good until {}", utc::rfc3339(end.0)),
            None => "without a known end".to_owned(),
        };
        format!("  wallet      {tokens} of key {key}, type {token_type}, {end}\n")
    };
    keys.iter().map(line).collect()
}

/// Prints the contents of the wallets, as far as they are readable without an agent.
fn not_running(config: &Config, args: &AgentStatus) -> Result<(), Failure> {
    let hops = [
        (Position::First, config.first_hop.as_ref().map(|hop| &hop.wallet.path)),
        (Position::Last, Some(&config.wallet.path)),
    ];
    let mut found = json!({ "running": false });
    let mut text = String::new();
    for (position, path) in hops {
        let Some(path) = path else { continue };
        let (shown, json) = match look(path) {
            Ok(keys) => (wallet(&keys), json!({ "wallet": keys })),
            Err(reason) => (format!("  wallet      {reason}\n"), json!({ "wallet_error": reason })),
        };
        text += &format!("{} (stopped)\n{shown}", report_name(position));
        found[report_name(position)] = json;
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
