//! The file as written, with the place of everything in it.

use super::error::ConfigError;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A TOML file.
pub(super) struct Document<'a> {
    pub(super) name: &'a str,
    text: &'a str,
    pub(super) root: DeTable<'a>,
}

impl<'a> Document<'a> {
    pub(super) fn parse(name: &'a str, text: &'a str) -> Result<Self, ConfigError> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { name, text, root: root.into_inner() }),
            Err(error) => Err(not_toml(name, text, &error)),
        }
    }

    /// The values alone.
    pub(super) fn values(&self) -> Result<toml::Table, ConfigError> {
        toml::from_str(self.text).map_err(|error| not_toml(self.name, self.text, &error))
    }

    /// The place of a byte of the file: "gateway.toml, line 3".
    pub(super) fn place(&self, offset: usize) -> String {
        place(self.name, self.text, offset)
    }

    /// The place of the key at `path`, or of the nearest one above it; the file alone when there is none.
    pub(super) fn place_of(&self, path: &[String]) -> String {
        match self.find(path).0 {
            Some(span) => self.place(span.start),
            None => self.name.to_owned(),
        }
    }

    /// The path to the smallest value around `span`; empty when there is none, which means the whole file.
    pub(super) fn path_at(&self, span: Option<Range<usize>>) -> Vec<String> {
        let mut found = None;
        let Some(span) = span else { return Vec::new() };
        for (key, value) in &self.root {
            around(&span, &[key.get_ref().to_string()], value, &mut found);
        }
        found.map(|(_, path)| path).unwrap_or_default()
    }

    /// The value at `path` as it was written, on one line and not too long; nothing for a section.
    pub(super) fn written(&self, path: &[String]) -> Option<String> {
        let (_, value) = self.find(path);
        let written = self.text.get(value?)?;
        let line = written.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(match line.char_indices().nth(60) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        })
    }

    /// The place of the last key of `path` that exists, and that of the value when the whole path leads to one.
    fn find(&self, path: &[String]) -> (Option<Range<usize>>, Option<Range<usize>>) {
        let mut key_span = None;
        let mut steps = path.iter();
        let Some(first) = steps.next().and_then(|key| self.root.get_key_value(key.as_str())) else {
            return (None, None);
        };
        key_span.replace(first.0.span());
        let mut value = first.1;
        for step in steps {
            value = match value.get_ref() {
                DeValue::Table(table) => match table.get_key_value(step.as_str()) {
                    Some((key, inner)) => {
                        key_span = Some(key.span());
                        inner
                    }
                    None => return (key_span, None),
                },
                DeValue::Array(list) => match step.parse().ok().and_then(|index: usize| list.get(index)) {
                    Some(inner) => {
                        key_span = Some(inner.span());
                        inner
                    }
                    None => return (key_span, None),
                },
                _ => return (key_span, None),
            };
        }
        let is_section = matches!(value.get_ref(), DeValue::Table(_));
        (key_span, (!is_section).then(|| value.span()))
    }
}

/// Puts `path` into `found`, or one below it, if its value is the smallest around `span` so far. A section's own span is that of
/// its header, so its values are not within it.
fn around(
    span: &Range<usize>,
    path: &[String],
    value: &Spanned<DeValue<'_>>,
    found: &mut Option<(usize, Vec<String>)>,
) {
    let own = value.span();
    let is_smaller = found.as_ref().is_none_or(|(length, _)| own.len() <= *length);
    if own.start <= span.start && span.end <= own.end && is_smaller {
        *found = Some((own.len(), path.to_vec()));
    }
    let mut below = |step: String, value| around(span, &[path, &[step]].concat(), value, found);
    match value.get_ref() {
        DeValue::Table(table) => {
            table.iter().for_each(|(key, value)| below(key.get_ref().to_string(), value))
        }
        DeValue::Array(list) => list.iter().enumerate().for_each(|(at, value)| below(at.to_string(), value)),
        _ => {}
    }
}

fn not_toml(name: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let at = error.span().map_or_else(|| name.to_owned(), |span| place(name, text, span.start));
    let key = error.span().filter(|_| error.message() == "duplicate key").and_then(|span| text.get(span));
    ConfigError::new(
        &at,
        match key {
            Some(key) => {
                let key = key.trim_matches(['"', '\'']);
                format!("{key:?} is there a second time in its section: keep one of the two")
            }
            None => format!("this is not TOML: {}", error.message().replace('\n', ", ")),
        },
    )
}

fn place(name: &str, text: &str, offset: usize) -> String {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    format!("{name}, line {line}")
}

/// `egress.ports[1]`
pub(super) fn dotted(path: &[String]) -> String {
    let mut full = String::new();
    for step in path {
        if step.parse::<usize>().is_ok() {
            full.push_str(&format!("[{step}]"));
        } else {
            if !full.is_empty() {
                full.push('.');
            }
            full.push_str(step);
        }
    }
    full
}
