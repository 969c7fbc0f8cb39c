//! Bare `postern doctor`: this machine, and whatever of Postern is on it, in about ten lines.

use super::admin::readyz;
use super::findings::Findings;
use super::kernel::{self, Link};
use super::{config, links};
use crate::failure::Failure;
use http::StatusCode;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where admin listeners are by default: a gateway's and that of `postern up`, an issuer's, an agent's.
pub(crate) const ADMIN_PORTS: [u16; 3] = [9090, 9091, 9092];
/// Where `postern up` listens by default, and with which argument it listens elsewhere.
const UP_PORTS: [(u16, &str); 4] =
    [(8118, "--client"), (8080, "--gateway"), (8081, "--issuer"), (9090, "--admin")];
/// Where configuration files are looked for.
const FOLDERS: [&str; 2] = [".", "/etc/postern"];
/// The data directory of `postern up`.
const DATA: &str = "postern-data";
/// With less free space than this the next key, count or spent record may not find room.
const LEAST_FREE_KIB: u64 = 100 * 1024;
/// A tunnel takes two descriptors.
const LEAST_DESCRIPTORS: u64 = 1024;

/// Looks at everything; a failure when something is bad. `link` is the way to the clients, where it is named.
pub(super) async fn check(link: Option<Link>) -> Result<(), Failure> {
    let mut findings = Findings::default();
    look_at_machine(&mut findings);
    kernel::look(link, &mut findings);
    look_at_clock(&mut findings);
    let mut running = 0;
    for port in ADMIN_PORTS {
        running += usize::from(look_at_process(port, &mut findings).await);
    }
    if running == 0 {
        look_at_ports(&mut findings);
    }
    for file in files() {
        look_at_file(&file, &mut findings);
    }
    look_at_data(&mut findings);
    findings.sum()
}

// ---- The machine ----

fn look_at_machine(findings: &mut Findings) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let memory = field(&read("/proc/meminfo"), "MemTotal:")
        .map_or_else(String::new, |kib| format!(", {:.1} GiB of memory", kib as f64 / f64::from(1 << 20)));
    let Some(files) = open_files(&read("/proc/self/limits")) else {
        return findings.well("machine", format_args!("{cores} cores{memory}"));
    };
    let summary = format!("{cores} cores{memory}, {files} open files for a process");
    if files < LEAST_DESCRIPTORS {
        findings.look(
            "machine",
            format_args!("{summary}: a tunnel takes two; raise it (ulimit -Hn, or LimitNOFILE)"),
        );
    } else {
        findings.well("machine", summary);
    }
}

/// Says nothing where no service of the machine says whether its clock is right.
fn look_at_clock(findings: &mut Findings) {
    let shown = Command::new("timedatectl").args(["show", "--property=NTPSynchronized", "--value"]).output();
    match shown.ok().filter(|shown| shown.status.success()).map(|shown| shown.stdout) {
        Some(answer) if answer.starts_with(b"yes") => findings.well("clock", "it is synchronized"),
        Some(answer) if answer.starts_with(b"no") => findings.look(
            "clock",
            "it is not synchronized: keys, challenges, certificates and quotas begin and end by it; install chrony, or \
             timedatectl set-ntp true",
        ),
        _ => {}
    }
}

/// The hard limit, to which each daemon raises its own: the second number of the line.
fn open_files(limits: &str) -> Option<u64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.trim_start();
    field(soft, soft.split_whitespace().next()?)
}

/// The first number after `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace()
        .find_map(|word| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() })
}

// ---- What runs ----

/// Whether a process of Postern answers at the admin port.
async fn look_at_process(port: u16, findings: &mut Findings) -> bool {
    let url = format!("http://127.0.0.1:{port}");
    let (status, body) = match readyz(&url).await {
        Ok(Some(answer)) => answer,
        Ok(None) => return false,
        Err(reason) => {
            findings.look("process", format_args!("{url} is no admin listener of Postern: {reason}"));
            return false;
        }
    };
    let what = links::daemons(&url).await.unwrap_or_else(|_| "process".to_owned());
    let lines = body.trim_end().replace('\n', "; ");
    if status != StatusCode::OK {
        findings.bad(&what, format_args!("{url} is not ready: {lines}"));
        return true;
    }
    match links::bad(&url).await {
        Ok(bad) if !bad.is_empty() => {
            let bad = bad.join(", ");
            findings.bad(&what, format_args!("{url} lost more than 1 of 100 attempts in 10 minutes: {bad}"));
        }
        _ if lines != "ready" => findings.look(&what, format_args!("{url} is {lines}")),
        _ => findings.well(&what, format_args!("{url} is ready")),
    }
    true
}

/// Whether `postern up` finds its ports free.
fn look_at_ports(findings: &mut Findings) {
    let taken = |(port, _): &&(u16, &str)| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err();
    let taken: Vec<String> = UP_PORTS
        .iter()
        .filter(taken)
        .map(|(port, argument)| format!("{port} (choose another with {argument} 127.0.0.1:PORT)"))
        .collect();
    if taken.is_empty() {
        findings.well("process", "nothing of Postern runs here; postern up starts a whole system");
    } else {
        let taken = taken.join(", ");
        findings.look(
            "process",
            format_args!(
                "nothing of Postern runs here, and postern up would find these ports taken: {taken}"
            ),
        );
    }
}

// ---- What is on the disk ----

/// Files with the names that configurations have.
fn files() -> Vec<PathBuf> {
    FOLDERS.iter().flat_map(|folder| files_in(Path::new(folder))).collect()
}

/// Those in one folder, in the order of their names.
pub(crate) fn files_in(folder: &Path) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = name.strip_suffix(".toml") else { return false };
        // gateway-1.toml and gateway-2.toml are of a fleet.
        let known = ["issuer", "client", "gateway"].contains(&name) || name.starts_with("gateway-");
        known || name.starts_with("postern")
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_ours).collect();
    paths.sort();
    paths
}

fn look_at_file(path: &Path, findings: &mut Findings) {
    match config::examine(path) {
        Ok(examined) => {
            let name = examined.name;
            let place = path.display();
            match examined.warnings.as_slice() {
                [] => findings.well("file", format_args!("{place}: {name} can be started with it")),
                warnings => {
                    let warnings = warnings.join("; ");
                    findings
                        .look("file", format_args!("{place}: {name} can be started with it, but {warnings}"));
                }
            }
        }
        Err(failure) => findings.bad("file", failure.sentence),
    }
}

fn look_at_data(findings: &mut Findings) {
    let path = Path::new(DATA);
    if !path.exists() {
        return;
    }
    if let Err(error) = std::fs::read_dir(path) {
        return findings
            .bad("data", format_args!("{DATA} cannot be read: {error}; who owns it must run postern"));
    }
    match free_kib(path) {
        Some(free) if free < LEAST_FREE_KIB => findings.bad(
            "data",
            format_args!(
                "{DATA} has {} MiB of free space: spent records and keys may not find room",
                free / 1024
            ),
        ),
        Some(free) => {
            findings.well("data", format_args!("{DATA} is there, with {} MiB of free space", free / 1024))
        }
        None => findings.well("data", format_args!("{DATA} is there")),
    }
}

/// As reported by `df`, where there is one.
fn free_kib(path: &Path) -> Option<u64> {
    let df = Command::new("df").arg("-Pk").arg(path).output().ok()?;
    let text = String::from_utf8(df.stdout).ok()?;
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_kernel_are_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(open_files(limits), Some(524_288));
        assert_eq!(field("MemTotal:        8052252 kB\n", "MemTotal:"), Some(8_052_252));
        assert_eq!(open_files("Max open files  1024  unlimited files\n"), Some(u64::MAX));
        assert_eq!(field("", "MemTotal:"), None);
    }
}
