//! The findings of a check.

use std::fmt;

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// For information.
    Note,
    /// Never admits a token twice, but refuses honest ones or is slower than it need be.
    Warn,
    /// May admit a token twice, cannot admit any, or cannot be judged.
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

/// One thing found, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it weighs.
    pub severity: Severity,
    /// The way to the route or pool in the file, such as `route.operation_policies.add.children[1]`. Empty: the file.
    pub path: String,
    /// The route's type, such as `FailoverRoute`, or `pool`. Empty: the file.
    pub route: String,
    /// Why, as a sentence.
    pub reason: String,
    /// What to do instead, as a sentence. Empty where nothing need be done.
    pub instead: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity.word())?;
        match (self.path.is_empty(), self.route.is_empty()) {
            (true, _) => {}
            (false, true) => write!(f, "{}: ", self.path)?,
            (false, false) => write!(f, "{} ({}): ", self.path, self.route)?,
        }
        f.write_str(&self.reason)?;
        if !self.instead.is_empty() {
            write!(f, " {}", self.instead)?;
        }
        Ok(())
    }
}

/// A name from the file as it may stand in a sentence: short, and without control characters.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST_NAME).is_some() {
        shown.push('…');
    }
    shown
}

/// Characters of a name that are shown.
const LONGEST_NAME: usize = 80;

/// The findings so far, each once.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

/// More findings than anyone reads.
const MOST: usize = 200;

impl Findings {
    pub(crate) fn add(&mut self, severity: Severity, place: (&str, &str), reason: &str, instead: &str) {
        let finding = Finding {
            severity,
            path: place.0.to_owned(),
            route: shown(place.1),
            reason: reason.to_owned(),
            instead: instead.to_owned(),
        };
        if !self.0.contains(&finding)
            && (self.0.len() < MOST || (severity == Severity::Refuse && !self.refused()))
        {
            self.0.push(finding);
        }
    }

    pub(crate) fn refused(&self) -> bool {
        self.0.iter().any(|finding| finding.severity == Severity::Refuse)
    }

    /// The weightiest first; among equals, as they were found.
    pub(crate) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.0
    }
}
