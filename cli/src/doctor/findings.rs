//! What `postern doctor` found, for people and for programs.

use super::routers;
use crate::failure::Failure;
use crate::stdio::{print, print_line};
use postern_daemon::examination::{Finding, Verdict};
use postern_daemon::exit;
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Before what is said of a finding, and its continuation lines.
const INDENT: usize = 18;

/// Findings in the order in which they are printed.
#[derive(Default)]
pub(super) struct Findings(Vec<Found>);

#[derive(Serialize)]
struct Found {
    /// The configuration that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(flatten)]
    finding: Finding,
}

impl Findings {
    /// Of this machine.
    pub(super) fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.0.extend(findings.into_iter().map(|finding| Found { file: None, finding }));
    }

    /// Of a configuration.
    pub(super) fn add_of(&mut self, file: &Path, findings: impl IntoIterator<Item = Finding>) {
        self.0.extend(findings.into_iter().map(|finding| Found { file: Some(file.to_owned()), finding }));
    }

    /// Prints them; a failure when something is bad, with the exit code of a start that would be `refused`.
    pub(super) fn print(&self, as_json: bool, refused: Option<u8>) -> Result<(), Failure> {
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
    fn a_finding_has_a_line_for_what_was_seen_its_cost_and_its_remedy() {
        let finding = Finding::bad("store", "it is\naway").costs("503").remedy("start it");
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
