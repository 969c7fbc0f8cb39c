//! Configuration: a TOML file, every value of which an environment variable can override.
//!
//! A daemon's configuration is a struct that derives `Deserialize`, `Serialize` (for the defaults in the
//! reference) and `JsonSchema`; `#[serde(default)]` on a section makes it optional. The schema is where names come
//! from: which keys exist, what the nearest known one is, which environment variable stands for which value, and
//! the text of [`reference()`]. A field may describe what it accepts with
//! `#[schemars(extend("x-accepted" = "a port, such as 443"))]`.
//!
//! The variable of `[store.memcached] addresses` is `POSTERN_STORE_MEMCACHED_ADDRESSES`. It holds a TOML value
//! (`["127.0.0.1:5000"]`, `true`, `10`), or the bare text where a string is expected. Keys inside lists of tables and
//! inside maps have no variable. `environment` handles `POSTERN_` variables that name no key.
//!
//! ```
//! use postern_config::{Size, ConfigDuration, parse};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Limits {
//!     header_timeout: ConfigDuration,
//!     header_size: Size,
//! }
//!
//! let text = "header_timeout = \"10s\"\nheader_size = \"16KiB\"";
//! let limits: Limits = parse("limits.toml", text, []).unwrap();
//! assert_eq!((limits.header_timeout.get().as_secs(), limits.header_size.0), (10, 16 * 1024));
//!
//! let refused = parse::<Limits>("limits.toml", "header_timout = \"10s\"", []).err().unwrap();
//! assert!(refused.to_string().contains("did you mean \"header_timeout\"?"));
//! ```

pub mod address;
mod change;
mod document;
mod environment;
mod error;
mod fit;
mod reference;
mod reload;
mod schema;
#[cfg(test)]
mod tests;
mod units;

pub use address::{Address, AddressError};
pub use environment::{Environment, variables};
pub use error::ConfigError;
pub use fit::{Fit, fit};
pub use reference::reference;
pub use reload::{ConfigFile, Reading, open};
pub use units::{ConfigDuration, Secret, Size, UnitError};

use document::Document;
use schema::{Leaf, Schema};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the file at `path`, lays the variables of `env` over it, and checks everything.
///
/// # Errors
/// Sentences, one a line, that name the file, the line, the key, and what to write instead.
pub fn load<T: DeserializeOwned + JsonSchema>(
    path: &Path,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    read(path, env).map(|(config, _)| config)
}

fn read<T: DeserializeOwned + JsonSchema>(
    path: &Path,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<(T, toml::Table), ConfigError> {
    let name = path.display().to_string();
    let text = read_text(path, &name)?;
    parse_with_values(&name, &text, env)
}

fn read_text(path: &Path, name: &str) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|error| ConfigError::new(name, format!("cannot read the configuration: {error}")))
}

/// As [`load`], from `text`; `name` stands for the file in errors.
///
/// # Errors
/// As [`load`].
pub fn parse<T: DeserializeOwned + JsonSchema>(
    name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    parse_with_values(name, text, env).map(|(config, _)| config)
}

/// The configuration, and the values that it was made of: those of the file under those of the variables.
fn parse_with_values<T: DeserializeOwned + JsonSchema>(
    name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<(T, toml::Table), ConfigError> {
    let schema = Schema::of::<T>();
    let document = Document::parse(name, text)?;
    document.refuse_unknown_keys(&schema)?;
    let mut values = document.values()?;
    let overrides = lay_over(&mut values, &schema, env);
    let config = serde_path_to_error::deserialize(toml::Value::Table(values.clone()))
        .map_err(|error| error::refused(&document, &schema, &overrides, &error))?;
    Ok((config, values))
}

/// The variables of this process that may be ours. Values that are not UTF-8 come with replacement characters, so
/// that they are refused by name and not passed over.
#[must_use]
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(schema::VARIABLE_PREFIX))
        .collect()
}

/// The variables that took effect: from the path of the key to the variable's name and raw value.
type Overrides = BTreeMap<Vec<String>, (String, String)>;

fn lay_over(
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
