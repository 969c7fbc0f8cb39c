//! This machine, what of Postern runs on it, and what each configuration needs.

use super::files::{self, Configured};
use super::findings::Findings;
use super::{kernel, processes, together};
use crate::args::Doctor;
use crate::failure::Failure;
use nix::sys::resource::{Resource, getrlimit};
use postern_daemon::examination::{Examinations, Finding, directory};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where configuration files are looked for.
const FOLDERS: [&str; 2] = [".", "/etc/postern"];
/// The data directory of `postern up`.
const DATA: &str = "postern-data";
/// A tunnel takes two descriptors.
const LEAST_DESCRIPTORS: u64 = 1024;

/// Looks at everything; a failure when something is bad.
pub(super) async fn check(doctor: &Doctor) -> Result<(), Failure> {
    let mut findings = Findings::default();
    let mut of_machine = Examinations::default();
    let slow =
        Finding::look("clock", "timedatectl does not answer, so whether the clock is right is not known");
    of_machine.begin(slow, async { on_a_thread(clock).await.unwrap_or_default().into_iter().collect() });
    let slow = Finding::bad("disk", "the disk of the data directory does not answer");
    of_machine.begin(slow, async { on_a_thread(data).await.unwrap_or_default().into_iter().collect() });

    let named: Vec<PathBuf> = match doctor.paths.as_slice() {
        [] => FOLDERS.iter().map(PathBuf::from).collect(),
        paths => paths.to_vec(),
    };
    let (paths, unread) = files::find(&named, !doctor.paths.is_empty());
    let configured = files::read(paths).await;
    let (running, needs) = tokio::join!(
        processes::examine(configured.iter().filter_map(Configured::admin)),
        files::examine(&configured)
    );

    findings.add([machine()]);
    findings.add(kernel::examine());
    findings.add(of_machine.findings().await);
    findings.add(running.findings);
    if running.found.is_empty() && configured.is_empty() {
        findings.add([processes::ports_of_up()]);
    }
    findings.add(unread);
    let all: Vec<_> = configured.iter().filter_map(Configured::configuration).collect();
    for (configured, needs) in configured.iter().zip(needs) {
        let ports = configured.ports(&running.found);
        let beside = configured.configuration().map(|one| together::examine(one, &all)).unwrap_or_default();
        let routing = configured.routing(&all);
        let found =
            configured.findings.iter().cloned().chain(beside).chain(routing).chain(ports).chain(needs);
        findings.add_of(&configured.path, found);
    }
    findings.print(doctor.json, configured.iter().find_map(Configured::refused))
}

/// Runs what blocks. Nothing where it panicked, which is printed.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn machine() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_kib(&text));
    let memory = memory
        .map_or_else(String::new, |kib| format!(", {:.1} GiB of memory", kib as f64 / f64::from(1 << 20)));
    // Each daemon raises its own limit to the hard one.
    let Ok((_, files)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Finding::well("machine", format!("{cores} cores{memory}"));
    };
    let seen = format!("{cores} cores{memory}, {files} open files for a process");
    if files >= LEAST_DESCRIPTORS {
        return Finding::well("machine", seen);
    }
    Finding::look("machine", seen)
        .costs("a tunnel takes two open files")
        .remedy("raise the limit: ulimit -Hn, or LimitNOFILE= of a unit")
}

fn total_kib(meminfo: &str) -> Option<u64> {
    meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?.parse().ok()
}

/// Says nothing where no service of the machine says whether its clock is right.
fn clock() -> Option<Finding> {
    let shown = Command::new("timedatectl").args(["show", "--property=NTPSynchronized", "--value"]).output();
    match shown.ok().filter(|shown| shown.status.success())?.stdout.as_slice() {
        [b'y', b'e', b's', ..] => Some(Finding::well("clock", "it is synchronized")),
        [b'n', b'o', ..] => Some(
            Finding::look("clock", "it is not synchronized")
                .costs("keys, challenges, certificates and quotas begin and end by it")
                .remedy("install chrony, or timedatectl set-ntp true"),
        ),
        _ => None,
    }
}

/// The data directory of `postern up`, where there is one here.
fn data() -> Option<Finding> {
    let path = Path::new(DATA);
    path.exists().then(|| directory("the data of postern up", path, "spent records and keys may not fit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_read() {
        assert_eq!(total_kib("MemTotal:        8052252 kB\nMemFree: 1 kB\n"), Some(8_052_252));
        assert_eq!(total_kib(""), None);
    }
}
