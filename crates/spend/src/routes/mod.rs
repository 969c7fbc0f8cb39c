//! Checks of router configurations for recording spent tokens: mcrouter's ([`judge_mcrouter`]) and twemproxy's
//! ([`judge_twemproxy`]).
//!
//! A router is fit if each key has one owner among its servers, `add` and `get` reach the same owner, and all records of a
//! bucket (`|<digest>|#|<name>`, `memcached::bucket`) have one owner. The checks accept only the few configurations known to be
//! fit and refuse everything else, including a file that the router would not load.
//!
//! A file shows neither the router's command-line options nor the servers behind a server that is itself a proxy.

mod mcrouter;
mod twemproxy;

#[cfg(test)]
mod tests;

pub use mcrouter::judge_mcrouter;
use std::time::Duration;
pub use twemproxy::judge_twemproxy;

/// The consequence of several owners for the records of a bucket.
const PARTED: &str = "records of one bucket then lie on several servers, and when one comes back empty, a witness on another \
     admits its spent tokens again";
const LONGEST_NAME: usize = 80;
/// The gateway's default timeout.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// For information.
    Note,
    /// No token is admitted twice, but honest ones are refused, or every peer that can reach the router is trusted.
    Warn,
    /// May admit a token twice, does not load, or is unknown.
    Refuse,
}

/// One finding, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// The place in the file: `line 4 column 7`, or `pool spent`. Empty for the whole file.
    pub place: String,
    /// The reason, as a sentence.
    pub reason: String,
    /// The remedy, as a sentence. Empty if nothing needs to be done.
    pub instead: String,
}

/// The findings so far, without duplicates.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

/// Judges a file. Returns the findings by descending severity; equal ones stay in the order in which `judge` found them. An
/// error of `judge` is the reason why the file cannot be read.
fn judged(judge: impl FnOnce(&mut Findings) -> Result<(), String>) -> Vec<Finding> {
    let mut findings = Findings::default();
    if let Err(reason) = judge(&mut findings) {
        findings.add(Severity::Refuse, "", reason, "");
    }
    findings.0.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings.0
}

impl Findings {
    fn add(&mut self, severity: Severity, place: &str, reason: String, instead: &str) {
        let finding = Finding { severity, place: place.to_owned(), reason, instead: instead.to_owned() };
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    /// Warns of a router that gives up on a server no sooner than the gateway (or, with `None`, never).
    fn judge_timeout(
        &mut self,
        place: &str,
        (name, timeout): (&str, Option<Duration>),
        patience: Option<Duration>,
    ) {
        let patience = patience.unwrap_or(PATIENCE);
        if timeout.is_some_and(|timeout| timeout < patience) {
            return;
        }
        let waits = timeout.map_or("without end".to_owned(), |timeout| format!("{} ms", timeout.as_millis()));
        let reason = format!(
            "it waits {waits} for a server that hangs: the gateway gives up first, after {} ms, and closes the connection with \
             everyone on it.",
            patience.as_millis()
        );
        let half = patience.as_millis().div_ceil(2).max(1);
        self.add(Severity::Warn, place, reason, &format!("Write {half} (milliseconds) as `{name}`."));
    }

    fn refused(&self) -> bool {
        self.0.iter().any(|finding| finding.severity == Severity::Refuse)
    }
}

/// Returns a name from the file for use in a sentence: short, and without control characters.
fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST_NAME).is_some() {
        shown.push('…');
    }
    shown
}
