//! Errors of configurations, as sentences for operators.

use super::Overrides;
use super::document::Document;
use super::schema::{Leaf, Node, Schema};
use serde_path_to_error::Segment;

/// A configuration that cannot be used, as sentences. Daemons exit with 64 on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .sentences.join("\n"))]
pub struct ConfigError {
    sentences: Vec<String>,
}

impl ConfigError {
    /// One thing wrong at `place` (a file, or a file and a key), for the checks that a daemon makes of its own:
    /// "place: sentence".
    #[must_use]
    pub fn new(place: &str, sentence: impl std::fmt::Display) -> Self {
        Self { sentences: vec![format!("{place}: {sentence}")] }
    }

    pub(super) fn from_sentences(sentences: Vec<String>) -> Result<(), Self> {
        if sentences.is_empty() { Ok(()) } else { Err(Self { sentences }) }
    }
}

pub(super) fn unknown_key(place: &str, schema: &Schema, section: &Node<'_>, path: &[String]) -> String {
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

/// The deserializer's error, with the place in the file or the variable that it came from.
pub(super) fn refused(
    document: &Document<'_>,
    schema: &Schema,
    overrides: &Overrides,
    error: &serde_path_to_error::Error<toml::de::Error>,
) -> ConfigError {
    let path: Vec<String> = error
        .path()
        .iter()
        .filter_map(|segment| match segment {
            Segment::Map { key } => Some(key.clone()),
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Enum { variant } => Some(variant.clone()),
            Segment::Unknown => None,
        })
        .collect();
    let reason = error.inner().message();
    if let Some(key) = reason.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return missing(document, schema, &path, key);
    }
    let node = schema.at(&path);
    let from_env = (1..=path.len()).rev().find_map(|length| overrides.get(&path[..length]));
    let (place, written) = match from_env {
        Some((variable, raw)) => (format!("the environment variable {variable}"), Some(format!("{raw:?}"))),
        None => (document.place_of(&path), document.written(&path)),
    };
    let full = dotted(&path);
    let subject = match written {
        _ if path.is_empty() => "the configuration".to_owned(),
        _ if node.as_ref().is_some_and(Node::is_secret) => full,
        Some(written) => format!("{full} = {written}"),
        None => format!("[{full}]"),
    };
    ConfigError::new(&place, format!("{subject} is not accepted{}", why(node.as_ref(), reason)))
}

/// serde's reason when it is more precise than the schema, and what to write instead when the schema has it.
fn why(node: Option<&Node<'_>>, reason: &str) -> String {
    const SAYS_NO_MORE: [&str; 4] =
        ["invalid type: ", "invalid value: integer", "unknown variant ", "data did not match any variant"];
    let plain = SAYS_NO_MORE.iter().any(|prefix| reason.starts_with(prefix));
    let accepted = node.map(Node::accepted).filter(|accepted| !accepted.is_empty());
    let exact = node.is_some_and(|node| node.accepted_in_words().is_some() || !node.choices().is_empty());
    match accepted {
        Some(accepted) if plain => format!("; write {accepted}"),
        Some(accepted) if exact => format!(": {reason}; write {accepted}"),
        _ => format!(": {reason}"),
    }
}

fn missing(document: &Document<'_>, schema: &Schema, above: &[String], key: &str) -> ConfigError {
    let path = [above, &[key.to_owned()]].concat();
    let place = document.place_of(&path);
    let full = dotted(&path);
    let Some(node) = schema.at(&path) else {
        return ConfigError::new(&place, format!("{full} is missing"));
    };
    if node.is_section() {
        return ConfigError::new(&place, format!("the section [{full}] is missing"));
    }
    let variable = schema.leaves().iter().find(|leaf| leaf.path == path).map(Leaf::variable);
    let or_set = variable.map(|name| format!(", or set {name}")).unwrap_or_default();
    ConfigError::new(&place, format!("{full} is missing; write {}{or_set}", node.accepted()))
}

/// `egress.ports[1]`
fn dotted(path: &[String]) -> String {
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
