//! The findings of a check.

use std::fmt;
use std::time::Duration;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// For information.
    Note,
    /// No token is admitted twice, but honest ones are refused, or every peer that can reach the router is trusted.
    Warn,
    /// May admit a token twice, does not load, or is unknown.
    Refuse,
}

impl Severity {
    /// Returns the severity as one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Refuse => "refuse",
        }
    }
}

/// One finding, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The place in the file: `line 4 column 7`, or `pool spent`. Empty for the whole file.
    pub place: String,
    /// The reason, as a sentence.
    pub reason: String,
    /// The remedy, as a sentence. Empty if nothing needs to be done.
    pub instead: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity.word())?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.reason)?;
        if !self.instead.is_empty() {
            write!(f, " {}", self.instead)?;
        }
        Ok(())
    }
}

/// The findings so far, without duplicates.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

/// The largest number of findings reported.
const MOST: usize = 100;
/// Characters shown of a name.
const LONGEST_NAME: usize = 80;
/// The gateway's default timeout.
const PATIENCE: Duration = Duration::from_millis(100);

/// The longest text that is checked. Real configurations are a thousand times smaller.
pub(super) const LONGEST_TEXT: usize = 4 << 20;

/// Judges a text of bounded length. Returns the findings by descending severity; equal ones stay in the order in which `judge`
/// found them. An error of `judge` is the reason why the text cannot be read.
pub(super) fn judged(text: &str, judge: impl FnOnce(&mut Findings) -> Result<(), String>) -> Vec<Finding> {
    let mut findings = Findings::default();
    let read = if text.len() > LONGEST_TEXT {
        Err(format!("it is longer than {} MiB, the most that is checked.", LONGEST_TEXT >> 20))
    } else {
        judge(&mut findings)
    };
    if let Err(reason) = read {
        findings.add(Severity::Refuse, "", reason, "");
    }
    findings.0.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings.0
}

impl Findings {
    pub(super) fn add(&mut self, severity: Severity, place: &str, reason: String, instead: &str) {
        let finding = Finding { severity, place: place.to_owned(), reason, instead: instead.to_owned() };
        let room = self.0.len() < MOST || (severity == Severity::Refuse && !self.refused());
        if room && !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    /// Warns of a router that gives up on a server no sooner than the gateway (or, with `None`, never).
    pub(super) fn judge_timeout(
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

    pub(super) fn refused(&self) -> bool {
        self.0.iter().any(|finding| finding.severity == Severity::Refuse)
    }
}

/// Returns a name from the file for use in a sentence: short, and without control characters.
pub(super) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST_NAME).is_some() {
        shown.push('…');
    }
    shown
}
