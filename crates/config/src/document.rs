//! The TOML file as written, with the position of everything in it.

use super::schema::{Node, Schema};
use schemars::JsonSchema;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A configuration that cannot be used, as sentences. Daemons exit with 64 on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .sentences.join("\n"))]
pub struct ConfigError {
    sentences: Vec<String>,
}

impl ConfigError {
    /// Creates an error of one sentence about `place` (a file, or a file and a key), for a daemon's own checks:
    /// "place: sentence".
    pub fn new(place: &str, sentence: impl std::fmt::Display) -> Self {
        Self { sentences: vec![format!("{place}: {sentence}")] }
    }

    pub(super) fn from_sentences(sentences: Vec<String>) -> Result<(), Self> {
        if sentences.is_empty() { Ok(()) } else { Err(Self { sentences }) }
    }
}

/// Maximum number of characters of a value in a sentence.
const SHOWN: usize = 60;

/// Returns the text, cut to `SHOWN` characters.
pub(super) fn cut(text: String) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

pub(super) fn read_text(path: &Path, name: &str) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|error| ConfigError::new(name, format!("cannot read the configuration: {error}")))
}

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

    /// Returns the values without their positions.
    pub(super) fn values(&self) -> Result<toml::Table, ConfigError> {
        toml::from_str(self.text).map_err(|error| not_toml(self.name, self.text, &error))
    }

    /// Returns the line of a byte of the file: "gateway.toml, line 3".
    pub(super) fn place(&self, offset: usize) -> String {
        place(self.name, self.text, offset)
    }

    /// Returns the line of the key at `path`, or of its nearest existing ancestor; only the file's name if there is neither.
    pub(super) fn place_of(&self, path: &[String]) -> String {
        match self.find(path).0 {
            Some(span) => self.place(span.start),
            None => self.name.to_owned(),
        }
    }

    /// Returns the path of the smallest value around `span`; empty if there is none, which stands for the whole file.
    pub(super) fn path_at(&self, span: Option<Range<usize>>) -> Vec<String> {
        let mut found = None;
        let Some(span) = span else { return Vec::new() };
        for (key, value) in &self.root {
            around(&span, &[key.get_ref().to_string()], value, &mut found);
        }
        found.map(|(_, path)| path).unwrap_or_default()
    }

    /// Returns the value at `path` as written, on one line, cut to 60 characters. `None` for a section.
    pub(super) fn written(&self, path: &[String]) -> Option<String> {
        let (_, value) = self.find(path);
        let written = self.text.get(value?)?;
        Some(cut(written.split_whitespace().collect::<Vec<_>>().join(" ")))
    }

    /// Returns the span of the last existing key of `path`, and the value's span if the whole path leads to a value.
    fn find(&self, path: &[String]) -> (Option<Range<usize>>, Option<Range<usize>>) {
        let mut found: Option<(Range<usize>, &Spanned<DeValue<'_>>)> = None;
        for step in path {
            let next = match found.as_ref().map(|(_, value)| value.get_ref()) {
                None => in_table(&self.root, step),
                Some(DeValue::Table(table)) => in_table(table, step),
                Some(DeValue::Array(list)) => {
                    step.parse().ok().and_then(|index: usize| list.get(index)).map(|item| (item.span(), item))
                }
                Some(_) => None,
            };
            if next.is_none() {
                return (found.map(|(key, _)| key), None);
            }
            found = next;
        }
        let Some((key, value)) = found else { return (None, None) };
        let is_section = matches!(value.get_ref(), DeValue::Table(_));
        (Some(key), (!is_section).then(|| value.span()))
    }
}

fn in_table<'a, 'b>(table: &'b DeTable<'a>, key: &str) -> Option<(Range<usize>, &'b Spanned<DeValue<'a>>)> {
    table.get_key_value(key).map(|(key, value)| (key.span(), value))
}

/// Sets `found` to the path of the smallest value around `span`, searching `value` and everything below it. The span of a section
/// is that of its header, and does not contain its values.
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

/// Returns a path as text: `egress.ports[1]`.
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

/// The match between a file and a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Sections and keys of the file that the configuration has.
    pub known: usize,
    /// Sections and keys that the configuration does not have, not counting those below an unknown section.
    pub unknown: usize,
}

/// Compares the keys of the file at `path` with those of the configuration `T`, regardless of values.
pub fn fit<T: JsonSchema>(path: &Path) -> Result<Fit, ConfigError> {
    let name = path.display().to_string();
    let text = read_text(path, &name)?;
    let (document, schema) = (Document::parse(&name, &text)?, Schema::of::<T>());
    let search = Search::of(&document, &schema);
    Ok(Fit { known: search.known, unknown: search.found.len() })
}

/// Reports all keys that the schema does not have in one error.
pub(super) fn refuse_unknown_keys(document: &Document<'_>, schema: &Schema) -> Result<(), ConfigError> {
    let mut search = Search::of(document, schema);
    search.found.sort();
    ConfigError::from_sentences(search.found.into_iter().map(|(_, sentence)| sentence).collect())
}

struct Search<'a> {
    document: &'a Document<'a>,
    schema: &'a Schema,
    known: usize,
    /// (offset of the key in the file, sentence) of each unknown key
    found: Vec<(usize, String)>,
}

impl<'a> Search<'a> {
    fn of(document: &'a Document<'a>, schema: &'a Schema) -> Self {
        let mut search = Self { document, schema, known: 0, found: Vec::new() };
        search.table(&document.root, &schema.root(), &[]);
        search
    }

    fn table(&mut self, table: &DeTable<'_>, node: &Node<'_>, path: &[String]) {
        for (key, value) in table {
            let path = [path, &[key.get_ref().clone().into_owned()]].concat();
            match node.key(key.get_ref()) {
                Some(inner) => {
                    self.known += 1;
                    self.value(value.get_ref(), &inner, &path);
                }
                None if node.is_open() => {}
                None => {
                    let start = key.span().start;
                    let sentence = unknown_key(&self.document.place(start), self.schema, node, &path);
                    self.found.push((start, sentence));
                }
            }
        }
    }

    fn value(&mut self, value: &DeValue<'_>, node: &Node<'_>, path: &[String]) {
        match value {
            DeValue::Table(table) if node.is_section() || node.is_open() => self.table(table, node, path),
            DeValue::Array(list) => {
                let Some(items) = node.items() else { return };
                for item in list {
                    self.value(item.get_ref(), &items, path);
                }
            }
            _ => {}
        }
    }
}

fn unknown_key(place: &str, schema: &Schema, section: &Node<'_>, path: &[String]) -> String {
    let full = path.join(".");
    let sentence = format!("{place}: unknown key \"{full}\"");
    let Some((key, above)) = path.split_last() else { return sentence };
    let keys = section.keys();
    if let Some(near) = nearest(key, keys.keys().copied()) {
        return format!("{sentence}; did you mean \"{}\"?", [above, &[near.to_owned()]].concat().join("."));
    }
    // The right key in the wrong section.
    if let Some(leaf) = schema.leaves().into_iter().find(|leaf| leaf.path.last() == Some(key)) {
        return format!("{sentence}; did you mean \"{}\"?", leaf.path.join("."));
    }
    let known = keys.into_keys().collect::<Vec<_>>().join(", ");
    match above {
        [] => format!("{sentence}; the file may have {known}"),
        _ => format!("{sentence}; [{}] may have {known}", above.join(".")),
    }
}

/// Returns the nearest known name that is within one edit for every three letters of `key`, or within two edits.
pub(super) fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (key.chars().count() / 3).max(2);
    known
        .map(|name| (strsim::damerau_levenshtein(key, name), name))
        .filter(|(distance, name)| *distance <= allowed && *distance < name.chars().count())
        .min()
        .map(|(_, name)| name)
}
