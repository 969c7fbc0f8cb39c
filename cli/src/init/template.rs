//! A configuration based on one of `deploy/examples`: comments stay, values are replaced.
//!
//! An example has each key at most once per section, as `key = value` or, switched off, as `#key = value`. A section's header has
//! the same two forms. A comment for people begins with "# ".

use crate::failure::Failure;
use serde_json::Value;
use std::path::Path;

pub(super) struct Template {
    name: &'static str,
    lines: Vec<String>,
}

impl Template {
    pub(super) fn new(name: &'static str, text: &str) -> Self {
        Self { name, lines: text.lines().map(str::to_owned).collect() }
    }

    /// Sets a key, and switches the key and its section's header on.
    pub(super) fn set(mut self, section: &str, key: &str, value: impl Into<Value>) -> Result<Self, Failure> {
        let header = format!("[{section}]");
        let at = self.position(0, |line| line == header)?;
        let end = self.lines[at + 1..].iter().position(|line| is_header(switched_on(line)));
        let end = end.map_or(self.lines.len(), |length| at + 1 + length);
        let begins = format!("{key} = ");
        let found = self.position(at, |line| line.starts_with(&begins))?;
        if found >= end {
            return Err(self.lacks(&format!("{key} in {header}")));
        }
        self.lines[at] = header;
        self.lines[found] = format!("{begins}{}", toml(&value.into()));
        Ok(self)
    }

    pub(super) fn set_path(self, section: &str, key: &str, path: &Path) -> Result<Self, Failure> {
        self.set(section, key, path.display().to_string())
    }

    /// Switches on a section with all its keys.
    pub(super) fn switch_on(mut self, section: &str) -> Result<Self, Failure> {
        let header = format!("[{section}]");
        let at = self.position(0, |line| line == header)?;
        let of_section = self.lines[at + 1..].iter().take_while(|line| !is_header(switched_on(line))).count();
        for line in &mut self.lines[at..=at + of_section] {
            *line = switched_on(line).to_owned();
        }
        Ok(self)
    }

    /// Replaces `old`, which must occur in one line only.
    pub(super) fn replace(mut self, old: &str, new: &str) -> Result<Self, Failure> {
        let at = self.lines.iter().position(|line| line.contains(old)).ok_or_else(|| self.lacks(old))?;
        self.lines[at] = self.lines[at].replace(old, new);
        Ok(self)
    }

    /// Returns the text below `preface`, which becomes a comment.
    pub(super) fn finish(self, preface: &[String]) -> String {
        let apart = preface.first().map(|_| "#".to_owned());
        let preface = preface.iter().map(|line| format!("# {line}")).chain(apart);
        preface.chain(self.lines).map(|line| line + "\n").collect()
    }

    fn position(&self, from: usize, matches: impl Fn(&str) -> bool) -> Result<usize, Failure> {
        let found = self.lines[from..].iter().position(|line| matches(switched_on(line)));
        found.map(|index| from + index).ok_or_else(|| self.lacks("a line"))
    }

    /// Creates the failure for a missing line. Only a change of an example causes it, and a test detects it.
    fn lacks(&self, what: &str) -> Failure {
        Failure::runtime(format_args!(
            "the example {} in this postern has no {what}: please report it",
            self.name
        ))
    }
}

/// Returns a switched-off line in its switched-on form.
fn switched_on(line: &str) -> &str {
    match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest,
        _ => line,
    }
}

fn is_header(line: &str) -> bool {
    line.starts_with('[') && line.ends_with(']')
}

/// Formats a value as TOML: JSON's strings and arrays are valid TOML, except U+007F, which JSON does not escape.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        value => value.to_string().replace('\u{7f}', "\\u007F"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "[a]\n# Of key = 1.\nkey = 1\n#[b]\n#key = 2\n[[c]]\nname = 3\n\n# End.\n[d]\nother = 4\n";

    fn template() -> Template {
        Template::new("test", TEXT)
    }

    #[test]
    fn a_key_is_set_in_its_own_section_and_comments_stay() {
        let text = template().set("b", "key", "x\u{7f}").unwrap().finish(&["Made.".to_owned()]);
        assert_eq!(
            text,
            format!("# Made.\n#\n{}", TEXT.replace("#[b]\n#key = 2", "[b]\nkey = \"x\\u007F\""))
        );
        let list = serde_json::json!([["x"], ["y", "z"]]);
        let text = template().set("a", "key", list).unwrap().finish(&[]);
        assert_eq!(text, TEXT.replace("key = 1\n", "key = [[\"x\"], [\"y\", \"z\"]]\n"));
        assert!(template().set("a", "other", 5).is_err(), "a key of a later section");
        assert!(template().set("e", "key", 5).is_err());
    }

    #[test]
    fn a_section_is_switched_on_with_its_keys() {
        let text = template().switch_on("b").unwrap().finish(&[]);
        assert_eq!(text, TEXT.replace("#[b]\n#key", "[b]\nkey"));
    }
}
