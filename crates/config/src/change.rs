//! The differences between two readings of a configuration, as sentences for operators. Trees here may hold secrets;
//! the sentences do not.

use super::schema::Schema;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The most characters of a value that are shown.
const SHOWN: usize = 60;
/// The most names of a list that are shown.
const NAMED: usize = 10;
/// The keys that identify a table in a list; the first that is present is used.
const NAMES: [&str; 2] = ["name", "url"];

/// A difference between two readings.
pub(super) struct Change {
    /// Its dotted path.
    pub(super) key: String,
    pub(super) sentence: String,
}

/// The differences from `old` to `new`, one for each key.
pub(super) fn changes(old: &Value, new: &Value, schema: &Schema) -> Vec<Change> {
    let (old, new) = (leaves(old), leaves(new));
    let paths: BTreeSet<&Vec<String>> = old.keys().chain(new.keys()).collect();
    paths
        .into_iter()
        .filter(|path| old.get(*path) != new.get(*path))
        .map(|path| Change {
            key: path.join("."),
            sentence: sentence(path, old.get(path).copied(), new.get(path).copied(), schema),
        })
        .collect()
}

/// Copies what `old` has under `key` to `tree`. A section that only one of them has comes or goes with the key.
pub(super) fn keep(tree: &mut Value, old: &Value, key: &str) {
    let (step, rest) = key.split_once('.').map_or((key, None), |(step, rest)| (step, Some(rest)));
    let (Value::Object(now), Value::Object(before)) = (&mut *tree, old) else {
        tree.clone_from(old);
        return;
    };
    let (now, before) = (now.entry(step).or_insert(Value::Null), before.get(step).unwrap_or(&Value::Null));
    match rest {
        Some(rest) => keep(now, before, rest),
        None => now.clone_from(before),
    }
}

/// Every value that is not a section, by its path. Unset keys are absent.
fn leaves(tree: &Value) -> BTreeMap<Vec<String>, &Value> {
    let mut found = BTreeMap::new();
    collect(tree, &[], &mut found);
    found
}

fn collect<'a>(tree: &'a Value, path: &[String], found: &mut BTreeMap<Vec<String>, &'a Value>) {
    match tree {
        Value::Null => {}
        Value::Object(section) => {
            for (key, value) in section {
                collect(value, &[path, std::slice::from_ref(key)].concat(), found);
            }
        }
        value => {
            found.insert(path.to_vec(), value);
        }
    }
}

fn sentence(path: &[String], old: Option<&Value>, new: Option<&Value>, schema: &Schema) -> String {
    let key = path.join(".");
    if let Some(summary) = tables(old, new) {
        return format!("{key}: {summary}");
    }
    if schema.at(path).is_some_and(|node| node.is_secret()) {
        return match (old, new) {
            (None, _) => format!("{key} is set"),
            (_, None) => format!("{key} is no longer set"),
            _ => format!("{key} has another value"),
        };
    }
    match (old, new) {
        (Some(old), Some(new)) => format!("{key} = {} (was {})", shown(new), shown(old)),
        (None, Some(new)) => format!("{key} = {} (was not set)", shown(new)),
        (Some(old), None) => format!("{key} is no longer set (was {})", shown(old)),
        (None, None) => key,
    }
}

/// A value, shortened if it is long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What happened to a list of tables, by the names of its entries; nothing when it is no such list.
fn tables(old: Option<&Value>, new: Option<&Value>) -> Option<String> {
    let (old, new) = (by_name(old)?, by_name(new)?);
    if old.is_empty() && new.is_empty() {
        return None;
    }
    let added = new.keys().filter(|name| !old.contains_key(*name)).map(|name| quoted(name)).collect();
    let removed = old.keys().filter(|name| !new.contains_key(*name)).map(|name| quoted(name)).collect();
    let changed = new.iter().filter_map(|(name, table)| {
        let before = old.get(name).filter(|before| *before != table)?;
        let differs = |key: &&String| before.get(*key) != table.get(*key);
        let keys: BTreeSet<&String> = before.keys().chain(table.keys()).filter(differs).collect();
        let keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        Some(format!("{} ({})", quoted(name), keys.join(", ")))
    });
    let mut summary = String::new();
    for (what, entries) in [("added", added), ("removed", removed), ("changed", changed.collect())] {
        describe(&mut summary, what, entries);
    }
    if summary.is_empty() {
        summary.push_str("in another order");
    }
    Some(summary)
}

fn quoted(name: &str) -> String {
    format!("{name:?}")
}

fn describe(summary: &mut String, what: &str, entries: Vec<String>) {
    if entries.is_empty() {
        return;
    }
    let separator = if summary.is_empty() { "" } else { "; " };
    let list = entries.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let _ = write!(summary, "{separator}{what} {list}"); // writing to a String cannot fail
    if entries.len() > NAMED {
        let _ = write!(summary, " and {} more", entries.len() - NAMED);
    }
}

/// The tables of a list by what names them, else by their place; nothing when something in it is no table.
fn by_name(list: Option<&Value>) -> Option<BTreeMap<String, &Map<String, Value>>> {
    let entries = match list {
        None => &[],
        Some(list) => list.as_array()?.as_slice(),
    };
    let named = entries.iter().enumerate().map(|(place, entry)| {
        let table = entry.as_object()?;
        let name = NAMES.iter().find_map(|key| table.get(*key)?.as_str());
        Some((name.map_or_else(|| format!("entry {}", place + 1), str::to_owned), table))
    });
    named.collect()
}
