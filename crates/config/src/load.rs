//! Loads a configuration: parses the file, applies the variables, and checks the result.

use super::document::{ConfigError, Document, dotted, read_text, refuse_unknown_keys};
use super::environment::{Overrides, lay_over};
use super::schema::{Leaf, Node, Schema};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::path::Path;
use toml::{Table, Value};

/// Reads the file at `path`, applies the variables of `env`, and checks everything.
///
/// # Errors
/// Sentences, one per line, that name the file, the line, the key, and what to write instead.
pub fn load<T: DeserializeOwned + JsonSchema>(
    path: &Path,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    read(path, env).map(|(config, _)| config)
}

pub(super) fn read<T: DeserializeOwned + JsonSchema>(
    path: &Path,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<(T, Value), ConfigError> {
    let name = path.display().to_string();
    let text = read_text(path, &name)?;
    parse_with_values(&name, &text, env)
}

/// Parses `text` as [`load`] does; `name` stands for the file in errors.
pub fn parse<T: DeserializeOwned + JsonSchema>(
    name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    parse_with_values(name, text, env).map(|(config, _)| config)
}

/// Returns the configuration, and the values it was read from: the file's, overridden by variables.
fn parse_with_values<T: DeserializeOwned + JsonSchema>(
    name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<(T, Value), ConfigError> {
    let schema = Schema::of::<T>();
    let document = Document::parse(name, text)?;
    refuse_unknown_keys(&document, &schema)?;
    let mut values = document.values()?;
    let overrides = lay_over(&mut values, &schema, env);
    refuse_missing_keys(&document, &schema, &values)?;
    // Serialized again because values of variables need a span, too: the span of an error leads to its key.
    let merged = toml::to_string(&values).map_err(|error| ConfigError::new(name, error))?;
    let values = Value::Table(values);
    let config = toml::from_str(&merged).map_err(|error| {
        let path =
            Document::parse(name, &merged).map_or_else(|_| Vec::new(), |merged| merged.path_at(error.span()));
        refusal(&document, &schema, (&overrides, &values), &path, error.message())
    })?;
    Ok((config, values))
}

/// Reports all missing required keys in one error. `values` includes those of variables.
fn refuse_missing_keys(document: &Document<'_>, schema: &Schema, values: &Table) -> Result<(), ConfigError> {
    let mut absent = Vec::new();
    search_table(values, &schema.root(), &[], &mut absent);
    ConfigError::from_sentences(absent.iter().map(|path| missing(document, schema, path)).collect())
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

fn missing(document: &Document<'_>, schema: &Schema, path: &[String]) -> String {
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

/// Returns the error about the value at `path`, which the configuration's types reject, with the line of the file or the variable
/// that the value came from. If the value does not fit the schema, the schema explains the error. Otherwise serde's message comes
/// from the type's own parser; it is shown, never interpreted. `values` are the file's, overridden by variables.
fn refusal(
    document: &Document<'_>,
    schema: &Schema,
    (overrides, values): (&Overrides, &Value),
    path: &[String],
    message: &str,
) -> ConfigError {
    let node = schema.at(path);
    let from_env = (1..=path.len()).rev().find_map(|length| overrides.get(&path[..length]));
    let (place, written) = match from_env {
        Some((variable, raw)) => (format!("the environment variable {variable}"), Some(format!("{raw:?}"))),
        None => (document.place_of(path), document.written(path)),
    };
    let full = dotted(path);
    let subject = match written {
        _ if path.is_empty() => "the configuration".to_owned(),
        _ if node.as_ref().is_some_and(Node::is_secret) => full,
        Some(written) => format!("{full} = {written}"),
        None => format!("[{full}]"),
    };
    let why = why(node.as_ref(), value_at(values, path), message);
    ConfigError::new(&place, format!("{subject} is not accepted{why}"))
}

fn value_at<'a>(values: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(values, |value, step| match value {
        Value::Array(list) => list.get(step.parse::<usize>().ok()?),
        value => value.get(step),
    })
}

/// Returns the reason, and what to write instead. A value that does not fit the schema is explained by the schema alone.
fn why(node: Option<&Node<'_>>, value: Option<&Value>, reason: &str) -> String {
    let Some(node) = node else { return format!(": {reason}") };
    let accepted = node.accepted();
    let reason = match value {
        Some(value) if !accepted.is_empty() && !node.admits(value) => node.reason_against(value),
        _ => Some(reason),
    };
    match reason {
        None => format!("; write {accepted}"),
        Some(reason) if node.accepted_in_words().is_some() => format!(": {reason}; write {accepted}"),
        Some(reason) => format!(": {reason}"),
    }
}
