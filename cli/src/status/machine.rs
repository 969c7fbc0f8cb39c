//! Command `postern status`: prints the daemons on this machine and their readiness.

use super::{NOT_READY, NOT_RUNNING};
use crate::args::Status;
use crate::doctor::config;
use crate::doctor::files::files_in;
use crate::doctor::processes::ADMIN_PORTS;
use crate::failure::Failure;
use crate::running::{NoAnswer, Running, UNKNOWN, metrics};
use crate::stdio::print_line;
use postern_daemon::examination::way_in;
use serde::Serialize;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Answer if the next of three replicas may be replaced.
const YES: &str = "yes";
/// Time in which no token of an earlier mark may be spent before a replica is replaced.
const OLDER: Duration = Duration::from_secs(1);

/// One daemon, or all daemons of a `postern up`.
#[derive(Debug, Default, Serialize)]
struct Daemon {
    /// "gateway", "issuer" or "agent"; "up" for all in one process.
    daemon: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<PathBuf>,
    page: String,
    state: State,
    /// Reasons from `/readyz` for which the daemon is not ready, or is degraded.
    reasons: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// For a gateway with three replicas: "yes" if the next one may be replaced, else the reason against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_replica: Option<&'static str>,
    /// Command that starts the daemon, if it does not run.
    #[serde(skip)]
    start: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ready,
    NotReady,
    #[default]
    NotRunning,
}

/// Prints the state of each daemon. The exit code is 0 if all are ready, 1 if one is not, 3 if none runs.
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
            if let (daemon, Some(_)) = ask(&url(&(Ipv4Addr::LOCALHOST, port).into()), None).await {
                found.push(daemon);
            }
        }
    }
    if args.json {
        print_line(serde_json::json!({ "daemons": found }))?;
    } else {
        print(&found)?;
    }
    judge(&found, files.is_empty())
}

async fn of_address(admin: &str, as_json: bool) -> Result<(), Failure> {
    let admin = admin.trim_end_matches('/');
    let (daemon, running) = ask(admin, None).await;
    let failure = match daemon.state {
        State::Ready => None,
        State::NotReady => Some((NOT_READY, "it is not ready: the lines above say why")),
        State::NotRunning => Some((NOT_RUNNING, "nothing listens there; give the listen.admin of a daemon")),
    };
    if as_json {
        print_line(serde_json::json!({ "daemons": [daemon] }))?;
    } else {
        print(&[daemon])?;
        running.as_ref().map_or(Ok(()), Running::print_links)?;
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

/// Returns the configurations in a folder; with none the default ports are tried.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    files_in(folder).map_err(|error| {
        let place = folder.display();
        if error.kind() == ErrorKind::NotFound {
            return Failure::configuration(format_args!(
                "there is no folder {place}; give the one with the configurations"
            ));
        }
        Failure::configuration(format_args!("{place} cannot be read: {error}; {}", way_in(folder)))
    })
}

async fn of_file(file: &Path) -> Result<Daemon, Failure> {
    let (command, config) = config::daemon(file)?;
    let name = if command == "client" { "agent" } else { command };
    let url = url(&config.admin());
    let (mut daemon, running) = ask(&url, Some(name)).await;
    let started = running.filter(Running::has_started);
    if let Some(other) = started.and_then(|running| config.other_answers(running.is_ready)) {
        daemon = Daemon::at(&url, name, State::NotReady);
        daemon
            .reasons
            .push(format!("{other}. Choose another listen.admin in {}, or stop it", file.display()));
    }
    if daemon.state == State::NotRunning
        && let Some(held) = config.held()
    {
        daemon.state = State::NotReady;
        let advice = format!("restart it if it is the {name} that began with another address, else stop it");
        daemon.reasons.push(format!("{held}: {advice}"));
    } else if daemon.state == State::NotRunning {
        daemon.start = Some(format!("postern {command} --config {}", file.display()));
    }
    daemon.config = Some(file.to_owned());
    Ok(daemon)
}

/// Returns [`YES`] if the next replica may be replaced, else the reason against it; `None` without three replicas.
fn next_replica(metrics: &str) -> Option<&'static str> {
    let away = values(metrics, "postern_store_replicas_away");
    let lacking = ["postern_store_buckets_lacking", "postern_store_buckets_torn"];
    let lacking = lacking.into_iter().flat_map(|name| values(metrics, name)).any(|buckets| buckets > 0.0);
    (away.len() > 1).then_some(match (away.into_iter().any(|is_away| is_away > 0.0), lacking) {
        (true, _) => "no: one of the three does not answer, lacks servers, or rejects records",
        (false, true) => {
            "no: one of the three does not know the present mark yet; the next follows within a minute, or within a day after three"
        }
        (false, false) => YES,
    })
}

/// Returns the answer of [`next_replica`] after another [`OLDER`]: it must stay [`YES`], and no tokens of earlier marks may have
/// been spent since `before`.
async fn next_replica_later(url: &str, before: &str) -> Option<&'static str> {
    tokio::time::sleep(OLDER).await;
    let now = metrics(url).await;
    let [then, later] = [before, &now].map(|metrics| values(metrics, "postern_store_older_marks_total"));
    match next_replica(&now) {
        Some(YES) if then != later => Some(
            "no: tokens of earlier marks are presented, which one replica less could make void; ask again",
        ),
        answer => answer,
    }
}

fn values(metrics: &str, name: &str) -> Vec<f64> {
    let series = metrics.lines().filter_map(|line| line.strip_prefix(name)?.split_once(' '));
    let of_name = series.filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'));
    of_name.filter_map(|(_, value)| value.trim().parse().ok()).collect()
}

impl Daemon {
    /// Creates a daemon of which only the admin URL, the name and the state are known.
    fn at(url: &str, name: &str, state: State) -> Self {
        Self { daemon: name.to_owned(), page: format!("{url}/"), state, ..Self::default() }
    }
}

/// Queries the admin listener at `url`; `name` is the daemon that is expected there. Returns no process if nothing of Postern
/// listens.
async fn ask(url: &str, name: Option<&str>) -> (Daemon, Option<Running>) {
    let mut daemon = Daemon::at(url, name.unwrap_or(UNKNOWN), State::NotRunning);
    let running = match Running::ask(url).await {
        Ok(running) => running,
        Err(NoAnswer::NothingListens) => return (daemon, None),
        Err(none) => {
            daemon.state = State::NotReady;
            daemon.reasons.push(match none {
                NoAnswer::Hangs(_) => format!("{none}: see its log, and restart it if it hangs"),
                _ => format!("no admin listener of Postern is there: {none}"),
            });
            return (daemon, None);
        }
    };
    let runs = running.daemon();
    daemon.daemon = name.unwrap_or(runs).to_owned();
    daemon.state = if running.is_ready { State::Ready } else { State::NotReady };
    daemon.reasons = running.said.lines().filter(|line| *line != "ready").map(str::to_owned).collect();
    if name.is_some_and(|name| ![name, "up", UNKNOWN].contains(&runs)) {
        daemon.state = State::NotReady;
        let reason = format!("it is the {runs} that listens there: two files name one address");
        daemon.reasons.insert(0, reason);
    }
    daemon.version = running.version().map(str::to_owned);
    daemon.next_replica = next_replica(&running.metrics);
    if daemon.next_replica == Some(YES) {
        daemon.next_replica = next_replica_later(url, &running.metrics).await;
    }
    (daemon, Some(running))
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
        assert_eq!(of(0, 0, 0), Some(YES));
        assert!(of(1, 1024, 0).unwrap().starts_with("no: one of the three does not answer"));
        assert!(of(0, 1024, 0).unwrap().starts_with("no: one of the three does not know the present mark"));
        assert!(of(0, 0, 1).unwrap().starts_with("no: "));
        assert_eq!(next_replica("postern_store_replicas_away{replica=\"1\"} 0\n"), None);
    }
}
