//! Keys that a configuration must have.

use super::document::{Document, dotted};
use super::error::ConfigError;
use super::schema::{Leaf, Node, Schema};
use toml::{Table, Value};

/// All of the required keys that are absent, in one error. `values` holds those of the variables, too.
pub(super) fn refuse_missing_keys(
    document: &Document<'_>,
    schema: &Schema,
    values: &Table,
) -> Result<(), ConfigError> {
    let mut absent = Vec::new();
    search_table(values, &schema.root(), &[], &mut absent);
    ConfigError::from_sentences(absent.iter().map(|path| sentence(document, schema, path)).collect())
}

fn search_table(table: &Table, node: &Node<'_>, path: &[String], absent: &mut Vec<Vec<String>>) {
    let below = |key: &str| [path, &[key.to_owned()]].concat();
    absent.extend(node.required().into_iter().filter(|key| !table.contains_key(*key)).map(below));
    for (key, value) in table {
        if let Some(inner) = node.key(key) {
            search_value(value, &inner, &below(key), absent);
        }
    }
}

fn search_value(value: &Value, node: &Node<'_>, path: &[String], absent: &mut Vec<Vec<String>>) {
    match value {
        Value::Table(table) => search_table(table, node, path, absent),
        Value::Array(list) => {
            let Some(items) = node.items() else { return };
            for (index, item) in list.iter().enumerate() {
                search_value(item, &items, &[path, &[index.to_string()]].concat(), absent);
            }
        }
        _ => {}
    }
}

fn sentence(document: &Document<'_>, schema: &Schema, path: &[String]) -> String {
    let place = document.place_of(path);
    let full = dotted(path);
    let Some(node) = schema.at(path) else { return format!("{place}: {full} is missing") };
    if node.is_section() {
        return format!("{place}: the section [{full}] is missing");
    }
    let variable = schema.leaves().iter().find(|leaf| leaf.path == path).map(Leaf::variable);
    let or_set = variable.map(|name| format!(", or set {name}")).unwrap_or_default();
    format!("{place}: {full} is missing; write {}{or_set}", node.accepted())
}
