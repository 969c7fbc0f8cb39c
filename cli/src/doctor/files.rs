//! Finds, reads and examines the configurations of daemons and routers on this machine.

use super::config::{self, Loaded};
use super::processes::Process;
use super::routers::{Router, garbled};
use super::together::Configuration;
use crate::failure::Failure;
use crate::init::EXAMPLES;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use postern_daemon::examination::{Finding, PATIENCE, closed, way_in};
use postern_daemon::exit;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// A configuration file that was read. It is neither a daemon's nor a router's if it is unreadable for this user, not UTF-8, an
/// unedited example of the package, or if its examination panicked.
#[derive(Default)]
pub(super) struct Configured {
    pub(super) path: PathBuf,
    /// Findings from the file's content alone.
    pub(super) findings: Vec<Finding>,
    /// Exit code of a daemon's start, which would be refused.
    pub(super) refused: Option<u8>,
    /// Name of a daemon that starts with the configuration, with its article.
    daemon: Option<(&'static str, Loaded)>,
    router: Option<(Router, String)>,
}

impl Configured {
    pub(super) fn admin(&self) -> Option<SocketAddr> {
        self.daemon.as_ref().map(|(_, config)| config.admin())
    }

    /// Returns the daemon's configuration; `None` for a router's file and for a refused one.
    pub(super) fn configuration(&self) -> Option<Configuration<'_>> {
        self.daemon.as_ref().map(|(_, config)| (self.path.as_path(), config))
    }

    /// Judges a router's configuration against the gateways' configurations.
    pub(super) fn routing(&self, all: &[Configuration<'_>]) -> Vec<Finding> {
        let Some((router, text)) = &self.router else { return Vec::new() };
        router.judge(text, all.iter().map(|(_, config)| *config))
    }

    /// Checks that the daemon's ports are free, unless the daemon runs.
    pub(super) fn ports(&self, running: &[Process]) -> Vec<Finding> {
        let Some((name, config)) = &self.daemon else { return Vec::new() };
        if let Some(process) = running.iter().find(|process| process.admin == config.admin()) {
            let started = process.running.as_ref().filter(|running| running.has_started());
            let other = started.and_then(|running| config.other_answers(running.is_ready));
            let finding = |seen| {
                Finding::bad(
                    "process",
                    seen,
                    format!(
                        "what answers there is about another daemon; {name} with this file does not start meanwhile"
                    ),
                    format!(
                        "choose another listen.admin in this file, and start {name}; or stop that process"
                    ),
                )
            };
            return other.map(finding).into_iter().collect();
        }
        if let Some(seen) = config.held() {
            return vec![Finding::bad(
                "process",
                seen,
                format!(
                    "{name} does not start while another process has its files; of one that runs nothing is known"
                ),
                format!(
                    "restart that process if it is {name} that began with another listen.admin; else stop it, or name other files"
                ),
            )];
        }
        let listeners = config.listeners();
        let free: Vec<String> = listeners.iter().map(|(_, address)| address.to_string()).collect();
        let taken: Vec<Finding> =
            listeners.iter().filter_map(|(key, address)| unusable(key, *address)).collect();
        if taken.is_empty() {
            let seen = format!("{name} does not run; {} are free for it", free.join(" and "));
            return vec![Finding::well("process", seen)];
        }
        taken
    }
}

/// Returns the named files and, in named folders, the files that have a configuration's name. A folder without configurations is
/// an error only if `by_user`.
pub(super) fn find(named: &[PathBuf], by_user: bool) -> (Vec<PathBuf>, Vec<Finding>) {
    let (mut files, mut unread) = (Vec::new(), Vec::new());
    for path in named {
        if by_user && !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        match named_in(path, |name| is_ours(name) || Router::is_name(name)) {
            Ok(found) if found.is_empty() && by_user => {
                let seen = format!("{} has no configuration", path.display());
                let finding = Finding::bad(
                    "file",
                    seen,
                    "there is nothing to examine",
                    "name a file, or a folder with gateway.toml, issuer.toml, client.toml, postern*.toml, mcrouter*.json or nutcracker*.yml",
                );
                unread.push(finding);
            }
            Ok(found) => files.extend(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => unread.push(closed("file", &path.display().to_string(), path, &error)),
        }
    }
    (files, unread)
}

/// Returns the files of `folder` that are named like a daemon's configuration.
pub(crate) fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    named_in(folder, is_ours)
}

fn is_ours(name: &str) -> bool {
    let Some(name) = name.strip_suffix(".toml") else { return false };
    // A fleet has gateway-1.toml and gateway-2.toml.
    let known = ["issuer", "client", "gateway"].contains(&name) || name.starts_with("gateway-");
    known || name.starts_with("postern")
}

/// Returns the files of `folder` whose names match, sorted, without a leading "./".
fn named_in(folder: &Path, is_name: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let is_named = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(&is_name);
    let paths = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(is_named);
    let short = |path: PathBuf| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
    let mut paths: Vec<PathBuf> = paths.map(short).collect();
    paths.sort();
    Ok(paths)
}

pub(super) async fn read(paths: Vec<PathBuf>) -> Vec<Configured> {
    let reading: Vec<_> = paths.into_iter().map(|path| tokio::spawn(read_one(path))).collect();
    let mut configured = Vec::new();
    for reading in reading {
        configured.extend(reading.await.ok()); // a panic has already been printed
    }
    configured
}

/// Times that a process which computes is waited for: two minutes in all. One that reads without end is given up then.
const MOST_WAITS: u32 = 24;

async fn read_one(path: PathBuf) -> Configured {
    let of_thread = path.clone();
    let mut reading = tokio::task::spawn_blocking(move || hold(&of_thread));
    let mut waits = 0..MOST_WAITS;
    let read = loop {
        let before = computed();
        match timeout(PATIENCE, &mut reading).await {
            Ok(Ok(read)) => break read,
            Ok(Err(broken)) => {
                break only(Finding::look("file", format!("its examination broke off: {broken}")));
            }
            // Decrypting an issuer's keys takes seconds on a slow or busy machine. Who waits for a file computes nothing.
            Err(_) if waits.next().is_some() && computed().saturating_sub(before) > PATIENCE / 50 => {}
            Err(_) => {
                let finding = Finding::bad(
                    "file",
                    "the files that it names were not read in time: one may be a pipe, or on a disk that does not answer",
                    "its daemon does not start",
                    "name files that can be read at once",
                );
                break Configured { refused: Some(exit::CONFIG), ..only(finding) };
            }
        }
    };
    Configured { path, ..read }
}

/// Returns the processor time of this process.
fn computed() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    let time = usage.map_or(0, |usage| (usage.user_time() + usage.system_time()).num_microseconds());
    Duration::from_micros(time.try_into().unwrap_or(0))
}

fn only(finding: Finding) -> Configured {
    Configured { findings: vec![finding], ..Configured::default() }
}

fn hold(path: &Path) -> Configured {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return refused(path, "", &Failure::forbidden(&error));
        }
        read => read.unwrap_or_default(), // for a missing file, `config::examine` returns the daemon's own error
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if let Some(router) = Router::of(&text) {
        return match str::from_utf8(&bytes) {
            Ok(_) => Configured { router: Some((router, text)), ..Configured::default() },
            Err(_) => only(garbled()),
        };
    }
    match config::examine(path) {
        Ok((name, config, findings)) => {
            Configured { findings, daemon: Some((name, config)), ..Configured::default() }
        }
        Err(failure) => refused(path, &text, &failure),
    }
}

fn refused(path: &Path, text: &str, failure: &Failure) -> Configured {
    // The failure's sentence and the printed line both begin with the path.
    let place = format!("{}: ", path.display());
    let seen = failure.sentence.strip_prefix(&place).unwrap_or(&failure.sentence);
    if failure.is_forbidden {
        return only(
            Finding::look("file", seen)
                .costs("whether its daemon can be started is not known: it may be another user, who may read this")
                .remedy(way_in(path)),
        );
    }
    if EXAMPLES.contains(&text) {
        return only(
            Finding::look("file", "it is the example of the package, as it was installed")
                .costs(format!("no daemon starts with it: {seen}"))
                .remedy("edit it before you enable its unit (docs/operate/install.md); where none is to run, leave it"),
        );
    }
    let remedy = "correct what this says; docs/reference/configuration.md has every key";
    let finding = Finding::bad("file", seen, "no daemon starts with it", remedy);
    Configured { refused: Some(failure.code), ..only(finding) }
}

/// Examines the needs of each daemon, concurrently.
pub(super) async fn examine(configured: &[Configured]) -> Vec<Vec<Finding>> {
    let needs = configured.iter().map(|configured| {
        let config = configured.daemon.as_ref().map(|(_, config)| config.clone());
        tokio::spawn(async move {
            match config {
                Some(config) => config.needs().await,
                None => Vec::new(),
            }
        })
    });
    let mut found = Vec::new();
    for needs in needs.collect::<Vec<_>>() {
        found.push(needs.await.unwrap_or_default()); // a panic has already been printed
    }
    found
}

/// Returns a finding if a daemon cannot listen at `address` now.
fn unusable(key: &str, address: SocketAddr) -> Option<Finding> {
    let error = TcpListener::bind(address).err()?;
    let finding = Finding::look("process", format!("{address} ({key}) cannot be listened at: {error}"));
    Some(match error.kind() {
        io::ErrorKind::AddrInUse => finding
            .costs("its daemon does not start while another program has the port; its own systemd socket unit may have it")
            .remedy(format!("stop what listens there (ss -ltnp), or change {key}")),
        io::ErrorKind::PermissionDenied => finding
            .costs("its daemon does not start as this user")
            .remedy("start it by its systemd unit, or with CAP_NET_BIND_SERVICE, or choose a port above 1023"),
        _ => finding.costs("its daemon does not start").remedy(format!("write an address of this machine in {key}")),
    })
}
