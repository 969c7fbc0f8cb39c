//! The differences between two readings of a configuration, as sentences for operators. Trees here may hold secrets;
//! the sentences do not.

use super::document::cut;
use super::schema::Schema;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of names of a list in a sentence.
const NAMED: usize = 10;
/// The keys that identify a table in a list; the first that is present is used.
const NAMES: [&str; 2] = ["name", "url"];

pub(super) struct Change {
    /// Dotted path.
    pub(super) key: String,
    pub(super) sentence: String,
}

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

/// Sets `key` in `tree` to its value in `old`. If only one of the two has the section of `key`, the whole section is added or
/// removed.
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

/// Returns every value that is not a section, by its path. Unset keys are absent.
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

fn shown(value: &Value) -> String {
    cut(value.to_string())
}

/// Summarizes the changes of a list of tables by the names of its entries. `None` if a value is not such a list.
fn tables(old: Option<&Value>, new: Option<&Value>) -> Option<String> {
    let (old, new) = (by_name(old)?, by_name(new)?);
    if old.is_empty() && new.is_empty() {
        return None;
    }
    let added = new.keys().filter(|name| !old.contains_key(*name)).map(|name| format!("{name:?}")).collect();
    let removed =
        old.keys().filter(|name| !new.contains_key(*name)).map(|name| format!("{name:?}")).collect();
    let changed = new.iter().filter_map(|(name, table)| {
        let before = old.get(name).filter(|before| *before != table)?;
        let differs = |key: &&String| before.get(*key) != table.get(*key);
        let keys: BTreeSet<&String> = before.keys().chain(table.keys()).filter(differs).collect();
        let keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        Some(format!("{name:?} ({})", keys.join(", ")))
    });
    let kinds: [(_, Vec<String>); 3] =
        [("added", added), ("removed", removed), ("changed", changed.collect())];
    let said: Vec<String> = kinds.into_iter().filter_map(|(what, entries)| list(what, &entries)).collect();
    Some(if said.is_empty() { "in another order".to_owned() } else { said.join("; ") })
}

fn list(what: &str, entries: &[String]) -> Option<String> {
    let (named, rest) = entries.split_at(entries.len().min(NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    (!named.is_empty()).then(|| format!("{what} {}{more}", named.join(", ")))
}

/// Returns the tables of a list by name, or by position if they have none. `None` if an entry is not a table.
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
