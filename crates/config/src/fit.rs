//! Finds which of several configurations a file was written for.

use super::document::Document;
use super::error::ConfigError;
use super::load::read_text;
use super::schema::{Node, Schema};
use schemars::JsonSchema;
use std::path::Path;
use toml::Value;

/// How well a file fits a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Sections and keys of the file that the configuration has.
    pub known: usize,
    /// Sections and keys that it does not have, not counting those below an unknown section.
    pub unknown: usize,
}

/// How well the file at `path` fits the configuration `T`, regardless of its values.
///
/// # Errors
/// When the file cannot be read or is not TOML.
pub fn fit<T: JsonSchema>(path: &Path) -> Result<Fit, ConfigError> {
    let name = path.display().to_string();
    let text = read_text(path, &name)?;
    let values = Document::parse(&name, &text)?.values()?;
    let mut fit = Fit::default();
    count(&Value::Table(values), &Schema::of::<T>().root(), &mut fit);
    Ok(fit)
}

fn count(value: &Value, node: &Node<'_>, fit: &mut Fit) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                match node.key(key) {
                    Some(inner) => {
                        fit.known += 1;
                        count(value, &inner, fit);
                    }
                    None => fit.unknown += 1,
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = node.items() else { return };
            list.iter().for_each(|value| count(value, &items, fit));
        }
        _ => {}
    }
}
