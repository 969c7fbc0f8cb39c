//! `postern status`: what runs on this machine and whether it is ready.

use super::{NOT_READY, NOT_RUNNING};
use crate::args::Status;
use crate::doctor::config::{admin, has_replicas};
use crate::doctor::files::files_in;
use crate::doctor::processes::ADMIN_PORTS;
use crate::failure::Failure;
use crate::running::admin::{metrics, readyz, version};
use crate::running::links::{self, Snapshot, UNKNOWN};
use crate::stdio::print_line;
use http::StatusCode;
use postern_daemon::examination::way_in;
use serde::Serialize;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

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
    /// Of a gateway with three replicas: may the next one be replaced?
    #[serde(skip_serializing_if = "Option::is_none")]
    next_replica: Option<&'static str>,
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
    if let Some(admin) = args.admin() {
        return of_address(admin, args.json).await;
    }
    let files = if args.config.is_empty() { in_folder(Path::new(&args.place))? } else { args.config.clone() };
    let mut found = Vec::new();
    for file in &files {
        found.push(of_file(file).await?);
    }
    if files.is_empty() {
        for port in ADMIN_PORTS {
            let daemon = ask(&url(&(Ipv4Addr::LOCALHOST, port).into()), None, false).await.ok();
            found.extend(daemon.map(|(daemon, _)| daemon).filter(|daemon| daemon.state != State::NotRunning));
        }
    }
    if args.json {
        print_line(serde_json::json!({ "daemons": found }))?;
    } else {
        print(&found)?;
    }
    judge(&found, files.is_empty())
}

/// The daemon of one admin listener, and its links.
async fn of_address(admin: &str, as_json: bool) -> Result<(), Failure> {
    let admin = admin.trim_end_matches('/');
    let elsewhere =
        |reason| (Daemon { reasons: vec![reason], ..Daemon::at(admin, UNKNOWN, State::NotReady) }, None);
    let (daemon, snapshot) = ask(admin, None, false).await.unwrap_or_else(elsewhere);
    let failure = match daemon.state {
        State::Ready => None,
        State::NotReady => Some((NOT_READY, "it is not ready: the lines above say why")),
        State::NotRunning => Some((NOT_RUNNING, "nothing listens there; give the listen.admin of a daemon")),
    };
    if as_json {
        print_line(serde_json::json!({ "daemons": [daemon] }))?;
    } else {
        print(&[daemon])?;
        snapshot.as_ref().map_or(Ok(()), Snapshot::print_links)?;
    }
    failure.map_or(Ok(()), |(code, reason)| Err(Failure::new(code, format_args!("{admin}: {reason}"))))
}

fn judge(found: &[Daemon], by_port: bool) -> Result<(), Failure> {
    if found.iter().all(|daemon| daemon.state == State::NotRunning) {
        let sentence = match by_port {
            true => {
                "nothing of Postern runs at the default admin ports, and no configuration is in this folder: postern up starts \
                     a whole system, and postern status DIR, URL or --config FILE looks elsewhere"
            }
            false => "none of them runs",
        };
        return Err(Failure::new(NOT_RUNNING, sentence));
    }
    match found.iter().filter(|daemon| daemon.state != State::Ready).count() {
        0 => Ok(()),
        1 => Err(Failure::new(NOT_READY, format_args!("1 of {} is not ready", found.len()))),
        count => Err(Failure::new(NOT_READY, format_args!("{count} of {} are not ready", found.len()))),
    }
}

/// None in a folder that is not there: then the default ports are asked.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    match files_in(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let place = folder.display();
            Err(Failure::configuration(format_args!("{place} cannot be read: {error}; {}", way_in(folder))))
        }
        found => Ok(found.unwrap_or_default()),
    }
}

async fn of_file(file: &Path) -> Result<Daemon, Failure> {
    let (kind, address) = admin(file)?;
    let name = if kind.command() == "client" { "agent" } else { kind.command() };
    let url = url(&address);
    let elsewhere =
        |reason| (Daemon { reasons: vec![reason], ..Daemon::at(&url, name, State::NotReady) }, None);
    let has_replicas = kind.command() == "gateway" && has_replicas(file);
    let (mut daemon, _) = ask(&url, Some(name), has_replicas).await.unwrap_or_else(elsewhere);
    if daemon.state == State::NotRunning {
        daemon.start = Some(format!("postern {} --config {}", kind.command(), file.display()));
    }
    daemon.config = Some(file.to_owned());
    Ok(daemon)
}

/// Whether the next replica may be replaced, or why not; `None` where the gauges are missing.
fn next_replica(metrics: &str) -> Option<&'static str> {
    let gauge = |name: &str| {
        let series = metrics.lines().filter_map(|line| line.strip_prefix(name)?.split_once(' '));
        let of_name = series.filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'));
        of_name.map(|(_, value)| value.trim().parse::<f64>().ok()).reduce(|sum, value| Some(sum? + value?))?
    };
    let away = gauge("postern_store_replicas_away")?;
    let lacking = gauge("postern_store_buckets_lacking")? + gauge("postern_store_buckets_torn")?;
    Some(match (away > 0.0, lacking > 0.0) {
        (true, _) => "no: one of the three does not answer, lacks servers, or rejects records",
        (false, true) => {
            "no: one of the three does not know the present mark yet; the next follows within a minute, or within a day after three"
        }
        (false, false) => "yes",
    })
}

impl Daemon {
    /// One whose admin listener is at `url`, of which nothing else is known.
    fn at(url: &str, name: &str, state: State) -> Self {
        let (daemon, page) = (name.to_owned(), format!("{url}/"));
        Self {
            daemon,
            config: None,
            page,
            state,
            reasons: Vec::new(),
            version: None,
            next_replica: None,
            start: None,
        }
    }
}

/// What the admin listener at `url` says, of the daemon `name` if it is known; why it is none of Postern's.
async fn ask(
    url: &str,
    name: Option<&str>,
    has_replicas: bool,
) -> Result<(Daemon, Option<Snapshot>), String> {
    let Some((status, body)) =
        readyz(url).await.map_err(|reason| format!("no admin listener of Postern is there: {reason}"))?
    else {
        return Ok((Daemon::at(url, name.unwrap_or(UNKNOWN), State::NotRunning), None));
    };
    let snapshot = links::snapshot(url).await;
    let runs = snapshot.as_ref().map_or(UNKNOWN, Snapshot::daemon);
    let state = if status == StatusCode::OK { State::Ready } else { State::NotReady };
    let mut daemon = Daemon::at(url, name.unwrap_or(runs), state);
    daemon.reasons = body.lines().filter(|line| *line != "ready").map(str::to_owned).collect();
    if name.is_some_and(|name| ![name, "up", UNKNOWN].contains(&runs)) {
        daemon.state = State::NotReady;
        let reason = format!("it is the {runs} that listens there: two files name one address");
        daemon.reasons.insert(0, reason);
    }
    let metrics = metrics(url).await.unwrap_or_default();
    daemon.version = version(&metrics);
    daemon.next_replica = if has_replicas { next_replica(&metrics) } else { None };
    Ok((daemon, snapshot))
}

fn url(admin: &SocketAddr) -> String {
    format!("http://{admin}")
}

fn print(found: &[Daemon]) -> Result<(), Failure> {
    for Daemon { daemon, page, state, reasons, version, next_replica, start, .. } in found {
        let version = version.as_deref().unwrap_or("-");
        let state = match (state, reasons.is_empty()) {
            (State::Ready, true) => "ready",
            (State::Ready, false) => "ready, and needs attention",
            (State::NotReady, _) => "not ready",
            (State::NotRunning, _) => "not running",
        };
        print_line(format_args!("{daemon:<8} {page:<28} {version:<10} {state}"))?;
        for reason in reasons {
            print_line(format_args!("{:9}{reason}", ""))?;
        }
        if let Some(answer) = next_replica {
            print_line(format_args!("{:9}the next replica may be replaced: {answer}", ""))?;
        }
        if let Some(start) = start {
            print_line(format_args!("{:9}start it: {start}", ""))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_not_ready_are_counted_in_english() {
        let daemon = |state| Daemon::at("http://127.0.0.1:1", "gateway", state);
        let said = |states: &[State]| {
            let found: Vec<Daemon> = states.iter().map(|state| daemon(*state)).collect();
            judge(&found, false).unwrap_err().sentence
        };
        assert_eq!(said(&[State::Ready, State::NotReady, State::Ready]), "1 of 3 is not ready");
        assert_eq!(said(&[State::Ready, State::NotReady, State::NotRunning]), "2 of 3 are not ready");
    }

    #[test]
    fn the_next_replica_waits_for_an_answer_and_a_mark_of_each() {
        let of = |away: u32, lacking: u32, torn: u32| {
            next_replica(&format!(
                "# HELP postern_store_replicas_away Of three\npostern_store_replicas_away{{replica=\"1\"}} 0\n\
                 postern_store_replicas_away{{replica=\"2\"}} {away}\n\
                 postern_store_buckets_lacking {lacking}\npostern_store_buckets_torn {torn}\n"
            ))
        };
        assert_eq!(of(0, 0, 0), Some("yes"));
        assert!(of(1, 1024, 0).unwrap().starts_with("no: one of the three does not answer"));
        assert!(of(0, 1024, 0).unwrap().starts_with("no: one of the three does not know the present mark"));
        assert!(of(0, 0, 1).unwrap().starts_with("no: "));
        assert_eq!(next_replica("postern_store_replicas_away{replica=\"1\"} 0\n"), None);
    }
}
