//! Errors for values that the configuration's types refuse.
//!
//! Whether the schema alone explains a refusal is decided by holding the value against the schema. serde's message is
//! shown, never interpreted, and only where the value fits the schema: then it comes from the type's own parser.

use super::document::{Document, dotted};
use super::error::ConfigError;
use super::overrides::Overrides;
use super::schema::{Node, Schema};
use toml::Value;

/// What a refusal is explained with.
pub(super) struct Refusal<'a> {
    pub(super) document: &'a Document<'a>,
    pub(super) schema: &'a Schema,
    pub(super) overrides: &'a Overrides,
    /// What was deserialized: the file with the variables laid over it.
    pub(super) values: &'a Value,
}

impl Refusal<'_> {
    /// The deserializer's message about the value at `path`, with the place in the file or the variable that it came from.
    pub(super) fn of(&self, path: &[String], message: &str) -> ConfigError {
        let node = self.schema.at(path);
        let from_env = (1..=path.len()).rev().find_map(|length| self.overrides.get(&path[..length]));
        let (place, written) = match from_env {
            Some((variable, raw)) => {
                (format!("the environment variable {variable}"), Some(format!("{raw:?}")))
            }
            None => (self.document.place_of(path), self.document.written(path)),
        };
        let full = dotted(path);
        let subject = match written {
            _ if path.is_empty() => "the configuration".to_owned(),
            _ if node.as_ref().is_some_and(Node::is_secret) => full,
            Some(written) => format!("{full} = {written}"),
            None => format!("[{full}]"),
        };
        let why = why(node.as_ref(), value_at(self.values, path), message);
        ConfigError::new(&place, format!("{subject} is not accepted{why}"))
    }
}

fn value_at<'a>(values: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(values, |value, step| match value {
        Value::Array(list) => list.get(step.parse::<usize>().ok()?),
        value => value.get(step),
    })
}

/// The reason, and what to write instead. A value that does not fit the schema needs no reason but the schema's own.
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
