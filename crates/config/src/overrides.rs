//! The environment variables that override what a file has.

use super::schema::{Leaf, Schema, VARIABLE_PREFIX};
use std::collections::BTreeMap;

/// The variables of this process that may be ours. Values that are not UTF-8 come with replacement characters, so
/// that they are refused by name and not passed over.
#[must_use]
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
        .collect()
}

/// The variables that took effect: from the path of the key to the variable's name and raw value.
pub(super) type Overrides = BTreeMap<Vec<String>, (String, String)>;

pub(super) fn lay_over(
    values: &mut toml::Table,
    schema: &Schema,
    env: impl IntoIterator<Item = (String, String)>,
) -> Overrides {
    let env: BTreeMap<String, String> = env.into_iter().collect();
    let mut overrides = Overrides::new();
    for leaf in schema.leaves() {
        let name = leaf.variable();
        if let Some(raw) = env.get(&name)
            && set(values, &leaf.path, value_of(&leaf, raw))
        {
            overrides.insert(leaf.path, (name, raw.clone()));
        }
    }
    overrides
}

/// The value that a variable's text stands for. Text that is not a TOML value stays text; deserializing it then fails
/// with what is expected in its place.
fn value_of(leaf: &Leaf<'_>, raw: &str) -> toml::Value {
    let text = || toml::Value::String(raw.to_owned());
    if leaf.node.is_text() {
        return text();
    }
    toml::de::ValueDeserializer::parse(raw)
        .and_then(<toml::Value as serde::Deserialize>::deserialize)
        .unwrap_or_else(|_| text())
}

/// False when the file has something else than a table on the way: that is refused later, by its own name.
fn set(table: &mut toml::Table, path: &[String], value: toml::Value) -> bool {
    match path {
        [] => false,
        [key] => {
            table.insert(key.clone(), value);
            true
        }
        [key, rest @ ..] => {
            match table.entry(key.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new())) {
                toml::Value::Table(inner) => set(inner, rest, value),
                _ => false,
            }
        }
    }
}
