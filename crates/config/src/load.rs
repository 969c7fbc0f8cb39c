//! Reading a configuration: the file, the variables over it, and the checks.

use super::document::Document;
use super::error::ConfigError;
use super::missing::refuse_missing_keys;
use super::overrides::lay_over;
use super::refused::Refusal;
use super::schema::Schema;
use super::unknown::refuse_unknown_keys;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
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

pub(super) fn read<T: DeserializeOwned + JsonSchema>(
    path: &Path,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<(T, toml::Value), ConfigError> {
    let name = path.display().to_string();
    let text = read_text(path, &name)?;
    parse_with_values(&name, &text, env)
}

pub(super) fn read_text(path: &Path, name: &str) -> Result<String, ConfigError> {
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
) -> Result<(T, toml::Value), ConfigError> {
    let schema = Schema::of::<T>();
    let document = Document::parse(name, text)?;
    refuse_unknown_keys(&document, &schema)?;
    let mut values = document.values()?;
    let overrides = lay_over(&mut values, &schema, env);
    refuse_missing_keys(&document, &schema, &values)?;
    // Written again, because a value of a variable needs a place, too: that is how a refusal finds its key.
    let merged = toml::to_string(&values).map_err(|error| ConfigError::new(name, error))?;
    let values = toml::Value::Table(values);
    let config = toml::from_str(&merged).map_err(|error| {
        let path =
            Document::parse(name, &merged).map_or_else(|_| Vec::new(), |merged| merged.path_at(error.span()));
        Refusal { document: &document, schema: &schema, overrides: &overrides, values: &values }
            .of(&path, error.message())
    })?;
    Ok((config, values))
}
