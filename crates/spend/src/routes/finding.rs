//! The findings of a check.

use std::fmt;
use std::time::Duration;

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// For information.
    Note,
    /// Admits no token twice, but refuses honest ones, or trusts all that can reach the router.
    Warn,
    /// May admit a token twice, does not load, or is not known.
    Refuse,
}

impl Severity {
    /// The severity as one word.
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
    /// Its weight.
    pub severity: Severity,
    /// The place in the file: `line 4 column 7`, or `pool spent`. Empty: the file.
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

/// The findings so far, each once.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

/// More findings than anyone reads.
const MOST: usize = 100;
/// Characters of a name that are shown.
const LONGEST_NAME: usize = 80;
/// The time that a gateway waits, unless its file says another.
const PATIENCE: Duration = Duration::from_millis(100);

impl Findings {
    pub(super) fn add(&mut self, severity: Severity, place: &str, reason: String, instead: &str) {
        let finding = Finding { severity, place: place.to_owned(), reason, instead: instead.to_owned() };
        let room = self.0.len() < MOST || (severity == Severity::Refuse && !self.refused());
        if room && !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    /// Warns of a router that gives up on a server no sooner than the gateway, or, with `None`, never.
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

    /// The weightiest first; among equals, as they were found.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.0
    }
}

/// A name from the file as it may stand in a sentence: short, and without control characters.
pub(super) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST_NAME).is_some() {
        shown.push('…');
    }
    shown
}
