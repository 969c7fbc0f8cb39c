//! Command `postern doctor`: examines this machine, the running daemons and their configurations; explains a gateway's egress
//! decision.

pub(crate) mod config;
pub(crate) mod files;
mod kernel;
pub(crate) mod processes;
mod routers;
mod together;

use crate::args::{Doctor, EgressQuestion, Question};
use crate::failure::Failure;
use crate::stdio::{print, print_line};
use files::Configured;
use nix::sys::resource::{Resource, getrlimit};
use postern_daemon::examination::{Examinations, Finding, Verdict};
use postern_daemon::exit;
use postern_gateway::{End, explain};
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::task::spawn_blocking;

const FOLDERS: [&str; 2] = [".", "/etc/postern"];
/// Minimum number of descriptors. A tunnel takes two.
const LEAST_DESCRIPTORS: u64 = 1024;

pub(crate) async fn run(doctor: &Doctor) -> Result<(), Failure> {
    match &doctor.question {
        Some(Question::Egress(question)) => egress(question).await,
        None => everything(doctor).await,
    }
}

/// Explains the decision of a gateway's `[egress]` about one target: prints a sentence for the target and one for each of its
/// addresses.
async fn egress(question: &EgressQuestion) -> Result<(), Failure> {
    let gateway = config::gateway(&question.config)?;
    let limit = gateway.limits.dial_timeout.get();
    let explanation = explain(&gateway.egress, &question.target, limit).await.map_err(Failure::runtime)?;
    for remark in gateway.egress.remarks() {
        print_line(format_args!("warning: {remark}"))?;
    }
    explanation.sentences.into_iter().try_for_each(print_line)?;
    let target = question.target.authority();
    let refusal = match explanation.end {
        End::Allowed => {
            return print_line(format_args!(
                "{target}: tunnels of TCP may go there ([egress] udp decides on UDP). Whether it answers was not tried."
            ));
        }
        End::RefusedUnspent => "tunnels may not go there; a refusal costs no token",
        End::RefusedSpent => {
            "tunnels do not get there; each attempt costs its token, which is spent before this is found out"
        }
    };
    Err(Failure::runtime(format_args!("{target}: {refusal}")))
}

async fn everything(doctor: &Doctor) -> Result<(), Failure> {
    let mut findings = Findings::default();
    let mut of_machine = Examinations::default();
    let slow =
        Finding::look("clock", "timedatectl does not answer, so whether the clock is right is not known");
    // A panic has been printed.
    of_machine.begin(slow, async { spawn_blocking(clock).await.ok().flatten().into_iter().collect() });

    let named: Vec<PathBuf> = match doctor.paths.as_slice() {
        [] => FOLDERS.iter().map(PathBuf::from).collect(),
        paths => paths.to_vec(),
    };
    let (paths, unread) = files::find(&named, !doctor.paths.is_empty());
    let configured = files::read(paths).await;
    let ((running, processes), needs) = tokio::join!(
        processes::examine(configured.iter().filter_map(Configured::admin)),
        files::examine(&configured)
    );

    findings.add([machine()]);
    findings.add(kernel::examine());
    findings.add(of_machine.findings().await);
    findings.add(processes);
    if running.is_empty() && configured.is_empty() {
        findings.add([Finding::well(
            "process",
            "nothing of Postern runs here; postern up starts a whole system",
        )]);
    }
    findings.add(unread);
    let all: Vec<_> = configured.iter().filter_map(Configured::configuration).collect();
    for (configured, needs) in configured.iter().zip(needs) {
        let ports = configured.ports(&running);
        let between = configured.configuration().map(|one| together::examine(one, &all)).unwrap_or_default();
        let routing = configured.routing(&all);
        let found =
            configured.findings.iter().cloned().chain(between).chain(routing).chain(ports).chain(needs);
        findings.add_of(&configured.path, found);
    }
    findings.print(doctor.json, configured.iter().find_map(|configured| configured.refused))
}

fn machine() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_kib(&text));
    let memory = memory
        .map_or_else(String::new, |kib| format!(", {:.1} GiB of memory", kib as f64 / f64::from(1 << 20)));
    // Each daemon raises its soft limit to the hard limit.
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

/// Returns `None` if no time service reports synchronization.
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

/// Width of the columns before a finding's text, and indent of its continuation lines.
const INDENT: usize = 18;

#[derive(Default)]
struct Findings(Vec<Found>);

#[derive(Serialize)]
struct Found {
    /// Configuration that the finding is about; `None` for the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(flatten)]
    finding: Finding,
}

impl Findings {
    fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.0.extend(findings.into_iter().map(|finding| Found { file: None, finding }));
    }

    fn add_of(&mut self, file: &Path, findings: impl IntoIterator<Item = Finding>) {
        self.0.extend(findings.into_iter().map(|finding| Found { file: Some(file.to_owned()), finding }));
    }

    /// Prints the findings. Fails if one is bad: with the exit code `refused` if given, else `CONFIG` for an unfit router, else
    /// `RUNTIME`.
    fn print(&self, as_json: bool, refused: Option<u8>) -> Result<(), Failure> {
        let count = |verdict| self.0.iter().filter(|found| found.finding.verdict == verdict).count();
        let (bad, looks) = (count(Verdict::Bad), count(Verdict::Look));
        if as_json {
            print_line(json!({ "findings": self.0 }))?;
        } else {
            self.0.iter().try_for_each(|found| print(found.text()))?;
        }
        match (bad, looks) {
            _ if as_json && bad == 0 => {}
            (0, 0) => print_line("All is well.")?,
            (0, looks) => print_line(format_args!("Nothing is bad; {looks} to look at."))?,
            (bad, _) => {
                let is_unfit = |found: &Found| {
                    found.finding.verdict == Verdict::Bad && found.finding.what == routers::WHAT
                };
                let unfit = self.0.iter().any(is_unfit).then_some(exit::CONFIG);
                let code = refused.or(unfit).unwrap_or(exit::RUNTIME);
                return Err(Failure::new(code, format_args!("{bad} bad: each has its remedy above")));
            }
        }
        Ok(())
    }
}

impl Found {
    fn text(&self) -> String {
        let Finding { verdict, what, seen, cost, remedy } = &self.finding;
        let verdict = match verdict {
            Verdict::Well => "well",
            Verdict::Look => "look",
            Verdict::Bad => "bad",
        };
        let place = self.file.as_ref().map_or_else(String::new, |file| format!("{}: ", file.display()));
        let mut text = format!("{verdict:<5} {what:<11} {place}{}\n", one_line(seen));
        for (label, said) in [("cost:", cost), ("do:", remedy)] {
            if let Some(said) = said {
                text.push_str(&format!("{:INDENT$}{label:<6}{}\n", "", one_line(said)));
            }
        }
        text
    }
}

fn one_line(text: &str) -> String {
    text.trim_end().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_read() {
        assert_eq!(total_kib("MemTotal:        8052252 kB\nMemFree: 1 kB\n"), Some(8_052_252));
        assert_eq!(total_kib(""), None);
    }

    #[test]
    fn a_finding_has_a_line_for_what_was_seen_its_cost_and_its_remedy() {
        let finding = Finding::bad("store", "it is\naway", "503", "start it");
        let found = Found { file: Some("gateway.toml".into()), finding };
        assert_eq!(
            found.text(),
            "bad   store       gateway.toml: it is; away\n                  cost: 503\n                  do:   start it\n"
        );
        assert_eq!(
            serde_json::to_string(&found).unwrap(),
            r#"{"file":"gateway.toml","verdict":"bad","what":"store","seen":"it is\naway","cost":"503","remedy":"start it"}"#
        );
    }
}
