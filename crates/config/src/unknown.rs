//! Keys that a configuration does not have, and the nearest ones that it does.

use super::document::{ConfigError, Document, read_text};
use super::schema::{Node, Schema};
use schemars::JsonSchema;
use std::path::Path;
use toml::de::{DeTable, DeValue};

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
