//! Keys and names that a configuration does not know, and the nearest ones that it does.

use super::document::Document;
use super::error::ConfigError;
use super::schema::{Node, Schema};
use toml::de::{DeTable, DeValue};

/// All of the keys that the schema does not know, in one error.
pub(super) fn refuse_unknown_keys(document: &Document<'_>, schema: &Schema) -> Result<(), ConfigError> {
    let mut search = Search { document, schema, found: Vec::new() };
    search.table(&document.root, &schema.root(), &[]);
    search.found.sort();
    ConfigError::from_sentences(search.found.into_iter().map(|(_, sentence)| sentence).collect())
}

struct Search<'a> {
    document: &'a Document<'a>,
    schema: &'a Schema,
    /// Where each key stands, and its sentence.
    found: Vec<(usize, String)>,
}

impl Search<'_> {
    fn table(&mut self, table: &DeTable<'_>, node: &Node<'_>, path: &[String]) {
        for (key, value) in table {
            let path = [path, &[key.get_ref().clone().into_owned()]].concat();
            match node.key(key.get_ref()) {
                Some(inner) => self.value(value.get_ref(), &inner, &path),
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

/// The nearest known name, within one edit for every three letters, two at least.
pub(super) fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (key.chars().count() / 3).max(2);
    known
        .map(|name| (strsim::damerau_levenshtein(key, name), name))
        .filter(|(distance, name)| *distance <= allowed && *distance < name.chars().count())
        .min()
        .map(|(_, name)| name)
}
