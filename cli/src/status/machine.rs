//! `postern status`: what runs on this machine and whether it is ready.

use super::{NOT_READY, NOT_RUNNING};
use crate::args::Status;
use crate::doctor::admin::{get, readyz};
use crate::doctor::config::admin;
use crate::doctor::links::daemons;
use crate::doctor::machine::{ADMIN_PORTS, files_in};
use crate::failure::Failure;
use http::StatusCode;
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The metric whose label is the version that runs.
const BUILD_INFO: &str = "postern_build_info{version=\"";

/// One daemon, or the several of `postern up`.
#[derive(Debug, Serialize)]
struct Daemon {
    /// "gateway", "issuer" or "agent"; "up" for all in one process.
    daemon: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<PathBuf>,
    /// The live page.
    page: String,
    state: State,
    /// What keeps it from being ready, or degrades it, in its own words.
    reasons: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// The command that starts it, where it does not run.
    #[serde(skip)]
    start: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ready,
    NotReady,
    NotRunning,
}

/// Prints the state of each daemon; the exit code is 0 when all are ready, 1 when one is not, 3 when none runs.
pub(crate) async fn status(args: &Status) -> Result<(), Failure> {
    let files = if args.config.is_empty() { in_folder(&args.directory) } else { args.config.clone() };
    let mut found = Vec::new();
    for file in &files {
        found.push(of_file(file).await?);
    }
    if files.is_empty() {
        for port in ADMIN_PORTS {
            let (daemon, _) = ask((Ipv4Addr::LOCALHOST, port).into(), None).await;
            found.extend(daemon.filter(|daemon| daemon.state != State::NotRunning));
        }
    }
    if args.json {
        println!("{}", serde_json::json!({ "daemons": found }));
    } else {
        print(&found);
    }
    judge(&found, files.is_empty())
}

fn judge(found: &[Daemon], by_port: bool) -> Result<(), Failure> {
    if found.iter().all(|daemon| daemon.state == State::NotRunning) {
        let sentence = match by_port {
            true => {
                "nothing of Postern runs at the default admin ports, and no configuration is in this folder: postern up starts \
                     a whole system, and postern status DIR or --config FILE looks elsewhere"
            }
            false => "none of them runs",
        };
        return Err(Failure::new(NOT_RUNNING, sentence));
    }
    match found.iter().filter(|daemon| daemon.state != State::Ready).count() {
        0 => Ok(()),
        count => Err(Failure::new(NOT_READY, format_args!("{count} of {} are not ready", found.len()))),
    }
}

/// Without "./" before each name.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let short = |path: PathBuf| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
    files_in(folder).into_iter().map(short).collect()
}

async fn of_file(file: &Path) -> Result<Daemon, Failure> {
    let (kind, address) = admin(file)?;
    let name = if kind.command() == "client" { "agent" } else { kind.command() };
    let (answered, reason) = ask(address, Some(name)).await;
    let mut daemon = answered.unwrap_or_else(|| Daemon {
        daemon: name.to_owned(),
        config: None,
        page: page(address),
        state: State::NotReady,
        reasons: vec![reason],
        version: None,
        start: None,
    });
    if daemon.state == State::NotRunning {
        daemon.start = Some(format!("postern {} --config {}", kind.command(), file.display()));
    }
    daemon.config = Some(file.to_owned());
    Ok(daemon)
}

/// Asks an admin listener; nothing and the reason where something else listens there.
async fn ask(address: SocketAddr, name: Option<&str>) -> (Option<Daemon>, String) {
    let url = format!("http://{address}");
    let daemon = |name: &str, state, reasons| Daemon {
        daemon: name.to_owned(),
        config: None,
        page: page(address),
        state,
        reasons,
        version: None,
        start: None,
    };
    let (status, body) = match readyz(&url).await {
        Ok(Some(answer)) => answer,
        Ok(None) => {
            return (Some(daemon(name.unwrap_or("process"), State::NotRunning, Vec::new())), String::new());
        }
        Err(reason) => return (None, format!("no admin listener of Postern is there: {reason}")),
    };
    let runs = daemons(&url).await.unwrap_or_else(|_| "process".to_owned());
    let mut reasons: Vec<String> = body.lines().filter(|line| *line != "ready").map(str::to_owned).collect();
    let mut state = if status == StatusCode::OK { State::Ready } else { State::NotReady };
    if let Some(name) = name
        && ![name, "up", "process"].contains(&runs.as_str())
    {
        state = State::NotReady;
        reasons.insert(0, format!("it is the {runs} that listens there: two files name one address"));
    }
    let version = version(&url).await;
    (Some(Daemon { version, ..daemon(name.unwrap_or(&runs), state, reasons) }), String::new())
}

fn page(address: SocketAddr) -> String {
    format!("http://{address}/")
}

/// The version in the metrics of a process.
async fn version(url: &str) -> Option<String> {
    let (_, body) = get(&format!("{url}/metrics"), |status| status == StatusCode::OK).await.ok()?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let rest = text.lines().find_map(|line| line.strip_prefix(BUILD_INFO))?;
    rest.split_once('"').map(|(version, _)| version.to_owned())
}

fn print(found: &[Daemon]) {
    for Daemon { daemon, page, state, reasons, version, start, .. } in found {
        let version = version.as_deref().unwrap_or("-");
        let state = match (state, reasons.is_empty()) {
            (State::Ready, true) => "ready",
            (State::Ready, false) => "ready, and needs attention",
            (State::NotReady, _) => "not ready",
            (State::NotRunning, _) => "not running",
        };
        println!("{daemon:<8} {page:<28} {version:<10} {state}");
        for reason in reasons {
            println!("{:9}{reason}", "");
        }
        if let Some(start) = start {
            println!("{:9}start it: {start}", "");
        }
    }
}
