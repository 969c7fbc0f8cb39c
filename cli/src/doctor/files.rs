//! The configurations on this machine: would their daemons start, is what they need there, and are their routers fit?

use super::config::{self, Examined};
use super::routers::{Router, garbled};
use super::together::Configuration;
use crate::failure::Failure;
use crate::init::EXAMPLES;
use postern_daemon::examination::{Finding, PATIENCE, closed, way_in};
use postern_daemon::exit;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tokio::time::timeout;

/// A configuration file that was read.
pub(super) struct Configured {
    pub(super) path: PathBuf,
    /// What its content shows.
    pub(super) findings: Vec<Finding>,
    held: Held,
}

/// What a file holds.
enum Held {
    /// A configuration with which its daemon starts.
    Daemon(Examined),
    Router(Router, String),
    /// The exit code of a start with it.
    Refused(u8),
    /// This user cannot tell, or nobody is to start it.
    Unknown,
}

impl Configured {
    /// Where its daemon's admin listener is.
    pub(super) fn admin(&self) -> Option<SocketAddr> {
        self.examined().map(|examined| examined.config.listeners()[1].1)
    }

    /// What the file holds; nothing where it is a router's, or its daemon would not start.
    pub(super) fn configuration(&self) -> Option<Configuration<'_>> {
        Some((&self.path, &self.examined()?.config))
    }

    fn examined(&self) -> Option<&Examined> {
        match &self.held {
            Held::Daemon(examined) => Some(examined),
            _ => None,
        }
    }

    /// The exit code for a start that would be refused.
    pub(super) fn refused(&self) -> Option<u8> {
        match self.held {
            Held::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// Judges a router's configuration beside those of gateways.
    pub(super) fn routing(&self, all: &[Configuration<'_>]) -> Vec<Finding> {
        let Held::Router(router, text) = &self.held else { return Vec::new() };
        router.judge(text, all.iter().map(|(_, config)| *config))
    }

    /// Whether the ports are free that its daemon listens at, unless it runs.
    pub(super) fn ports(&self, running: &[SocketAddr]) -> Vec<Finding> {
        let Some(examined) = self.examined() else { return Vec::new() };
        if self.admin().is_some_and(|admin| running.contains(&admin)) {
            return Vec::new();
        }
        let listeners = examined.config.listeners();
        let free: Vec<String> = listeners.iter().map(|(_, address)| address.to_string()).collect();
        let taken: Vec<Finding> =
            listeners.iter().filter_map(|(key, address)| unusable(key, *address)).collect();
        if taken.is_empty() {
            let seen = format!("{} does not run; {} are free for it", examined.name, free.join(" and "));
            return vec![Finding::well("process", seen)];
        }
        taken
    }
}

/// The files that are named, and those with the names of configurations in the folders that are. A folder without any is an error
/// only where someone named it.
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
                let finding = Finding::bad("file", seen).costs("there is nothing to examine").remedy(
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

/// Files of one folder with the names that daemons' configurations have.
pub(crate) fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    named_in(folder, is_ours)
}

fn is_ours(name: &str) -> bool {
    let Some(name) = name.strip_suffix(".toml") else { return false };
    // gateway-1.toml and gateway-2.toml are of a fleet.
    let known = ["issuer", "client", "gateway"].contains(&name) || name.starts_with("gateway-");
    known || name.starts_with("postern")
}

/// Files of one folder with certain names, in their order, without "./" before them.
fn named_in(folder: &Path, is_name: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let is_named = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(&is_name);
    let paths = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(is_named);
    let short = |path: PathBuf| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
    let mut paths: Vec<PathBuf> = paths.map(short).collect();
    paths.sort();
    Ok(paths)
}

/// Reads them side by side.
pub(super) async fn read(paths: Vec<PathBuf>) -> Vec<Configured> {
    let reading: Vec<_> = paths.into_iter().map(|path| tokio::spawn(read_one(path))).collect();
    let mut configured = Vec::new();
    for reading in reading {
        configured.extend(reading.await.ok()); // a panic is printed
    }
    configured
}

async fn read_one(path: PathBuf) -> Configured {
    let of_thread = path.clone();
    let reading = tokio::task::spawn_blocking(move || hold(&of_thread));
    let (held, findings) = match timeout(PATIENCE, reading).await {
        Ok(Ok(read)) => read,
        Ok(Err(broken)) => {
            (Held::Unknown, vec![Finding::look("file", format!("its examination broke off: {broken}"))])
        }
        Err(_) => {
            let seen = "the files that it names were not read in time: one may be a pipe, or on a disk that does not answer";
            let finding = Finding::bad("file", seen)
                .costs("its daemon does not start")
                .remedy("name files that can be read at once");
            (Held::Refused(exit::CONFIG), vec![finding])
        }
    };
    Configured { path, findings, held }
}

/// Reads a file: what it holds, and what that shows.
fn hold(path: &Path) -> (Held, Vec<Finding>) {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return refused(path, "", &Failure::forbidden(&error));
        }
        read => read.unwrap_or_default(), // the daemon's own sentence about a file that is not there
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if let Some(router) = Router::of(&text) {
        let is_utf8 = str::from_utf8(&bytes).is_ok();
        return if is_utf8 {
            (Held::Router(router, text), Vec::new())
        } else {
            (Held::Unknown, vec![garbled()])
        };
    }
    match config::examine(path) {
        Ok(examined) => {
            let findings = examined.findings();
            (Held::Daemon(examined), findings)
        }
        Err(failure) => refused(path, &text, &failure),
    }
}

fn refused(path: &Path, text: &str, failure: &Failure) -> (Held, Vec<Finding>) {
    // It begins with the path, as does the line.
    let place = format!("{}: ", path.display());
    let seen = failure.sentence.strip_prefix(&place).unwrap_or(&failure.sentence);
    if failure.is_forbidden {
        let finding = Finding::look("file", seen)
            .costs(
                "whether its daemon can be started is not known: it may be another user, who may read this",
            )
            .remedy(way_in(path));
        return (Held::Unknown, vec![finding]);
    }
    if EXAMPLES.contains(&text) {
        let finding = Finding::look("file", "it is the example of the package, as it was installed")
            .costs(format!("no daemon starts with it: {seen}"))
            .remedy("edit it before you enable its unit (docs/operate/install.md); where none is to run, leave it");
        return (Held::Unknown, vec![finding]);
    }
    (Held::Refused(failure.code), vec![Finding::bad("file", seen)])
}

/// What each of them needs, side by side.
pub(super) async fn examine(configured: &[Configured]) -> Vec<Vec<Finding>> {
    let needs = configured.iter().map(|configured| {
        let config = configured.examined().map(|examined| examined.config.clone());
        tokio::spawn(async move {
            match config {
                Some(config) => config.needs().await,
                None => Vec::new(),
            }
        })
    });
    let mut found = Vec::new();
    for needs in needs.collect::<Vec<_>>() {
        found.push(needs.await.unwrap_or_default()); // a panic is printed
    }
    found
}

/// Why a daemon could not listen at `address` now.
fn unusable(key: &str, address: SocketAddr) -> Option<Finding> {
    let error = TcpListener::bind(address).err()?;
    let finding = Finding::look("process", format!("{address} ({key}) cannot be listened at: {error}"));
    Some(match error.kind() {
        io::ErrorKind::AddrInUse => finding
            .costs("its daemon does not start while another program has the port; a systemd socket unit of its own may have it")
            .remedy(format!("stop what listens there (ss -ltnp), or change {key}")),
        io::ErrorKind::PermissionDenied => finding
            .costs("its daemon does not start as this user")
            .remedy("start it by its systemd unit, or with CAP_NET_BIND_SERVICE, or choose a port above 1023"),
        _ => finding.costs("its daemon does not start").remedy(format!("write an address of this machine in {key}")),
    })
}
