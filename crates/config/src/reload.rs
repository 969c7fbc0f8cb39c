//! Reads a configuration file again while the daemon runs.
//!
//! A daemon declares the keys that it cannot change while it runs, and why. These keep their values until a restart, so a reload
//! always gives a configuration that the daemon can run with. A file that cannot be used changes nothing.

use super::change::{Change, changes, keep};
use super::document::ConfigError;
use super::environment::Environment;
use super::load::read;
use super::schema::{Node, Schema};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// A configuration file that can be read again, and the values in force.
pub struct ConfigFile<T> {
    path: PathBuf,
    environment: Environment,
    warnings: Vec<String>,
    /// The values in force, defaults and secrets included.
    in_force: Value,
    of: PhantomData<fn() -> T>,
}

/// Reads the file at `path` as [`super::load()`] does, rejects variables that only seem to belong to this configuration, and
/// returns the file for later reloads.
///
/// # Errors
/// As [`super::load()`], and for a variable that names a section of this configuration but no key of it.
pub fn open<T: DeserializeOwned + Serialize + JsonSchema>(
    path: &Path,
    environment: Environment,
) -> Result<(T, ConfigFile<T>), ConfigError> {
    let (config, in_force) = read_tree(path, &environment)?;
    let strays = environment.strays(&Schema::of::<T>());
    ConfigError::from_sentences(strays.refused)?;
    let file = ConfigFile {
        path: path.to_owned(),
        environment,
        warnings: strays.ignored,
        in_force,
        of: PhantomData,
    };
    Ok((config, file))
}

impl<T> ConfigFile<T> {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns warnings for the operator about variables that begin with `POSTERN_` but name no key.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl<T> fmt::Debug for ConfigFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigFile({})", self.path.display()) // the values may be secret
    }
}

/// `true` if two values of a section differ. Neither may hold a secret: secrets redact themselves and look equal.
pub fn differ<T: Serialize>(one: &T, other: &T) -> bool {
    // Serialization cannot fail: both values were deserialized.
    serde_json::to_value(one).ok() != serde_json::to_value(other).ok()
}

/// A key, or a section, that a running process cannot change.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// The dotted path, such as "listen.address".
    pub key: &'static str,
    /// The reason that a change needs a restart, as the end of a sentence for the operator.
    pub why: &'static str,
}

/// The result of reading a file again.
#[derive(Debug)]
pub struct Reading<T> {
    /// The configuration to run with from now on: the file's values, except that fixed keys keep theirs.
    pub config: T,
    /// Changes that can be applied now, a sentence each.
    pub changed: Vec<String>,
    /// Changes that need a restart, each with its reason.
    pub pending: Vec<String>,
    /// The values of `config`.
    effective: Value,
}

impl<T: DeserializeOwned + Serialize + JsonSchema> ConfigFile<T> {
    /// Reads the file again. `fixed` are the keys that need a restart; `check` rejects what a start would. Blocks on the disk.
    ///
    /// # Errors
    /// Sentences for the operator. The configuration in force stays as it is.
    pub fn read_again<E: Display>(
        &self,
        fixed: &[Fixed],
        check: impl Fn(&T) -> Result<(), E>,
    ) -> Result<Reading<T>, String> {
        let (fresh, new) =
            read_tree::<T>(&self.path, &self.environment).map_err(|error| error.to_string())?;
        let refused = |error: E| format!("{}: {error}", self.path.display());
        check(&fresh).map_err(refused)?;
        let mut effective = new.clone();
        fixed.iter().for_each(|fixed| keep(&mut effective, &self.in_force, fixed.key));
        let schema = Schema::of::<T>();
        let changed = changes(&self.in_force, &effective, &schema);
        let changed = changed.into_iter().map(|change| change.sentence).collect();
        let waiting = |change: Change| {
            // A change outside all fixed keys added or removed the section of one.
            let is_sibling = |fixed: &&Fixed| fixed.key.split('.').next() == change.key.split('.').next();
            let why = fixed_by(&change.key, fixed)
                .or_else(|| fixed.iter().find(is_sibling))
                .map_or("", |fixed| fixed.why);
            format!("{}: {why}", change.sentence)
        };
        let pending: Vec<_> = changes(&effective, &new, &schema).into_iter().map(waiting).collect();
        let config = if pending.is_empty() {
            fresh
        } else {
            // A change that is valid together with a pending one may be invalid without it.
            let config: T = serde_json::from_value(effective.clone()).map_err(|error| {
                format!("its changes cannot be put in force one without the other: {error}")
            })?;
            check(&config).map_err(|error| {
                format!(
                    "{}: {error}; that is without {}, which needs a restart",
                    self.path.display(),
                    pending.join("; ")
                )
            })?;
            config
        };
        Ok(Reading { config, changed, pending, effective })
    }

    /// Marks a reading as in force: the next reading is compared with it.
    pub fn adopt(&mut self, reading: Reading<T>) {
        self.in_force = reading.effective;
    }
}

/// Returns the fixed key that is `path` or contains it.
pub(super) fn fixed_by<'a>(path: &str, fixed: &'a [Fixed]) -> Option<&'a Fixed> {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('.');
    fixed.iter().find(|fixed| path.strip_prefix(fixed.key).is_some_and(is_below))
}

/// Reads a configuration, and its values with their defaults.
fn read_tree<T: DeserializeOwned + Serialize + JsonSchema>(
    path: &Path,
    environment: &Environment,
) -> Result<(T, Value), ConfigError> {
    let (config, raw) = read::<T>(path, environment.variables())?;
    let mut tree = serde_json::to_value(&config)
        .map_err(|error| ConfigError::new(&path.display().to_string(), error))?;
    reveal(&mut tree, &raw, &Schema::of::<T>().root());
    Ok((config, tree))
}

/// Restores the secrets, which redact themselves when serialized: a changed secret must be detected.
fn reveal(tree: &mut Value, raw: &toml::Value, node: &Node<'_>) {
    match raw {
        toml::Value::Table(table) => {
            for (key, raw) in table {
                if let (Some(inner), Some(tree)) = (node.key(key), tree.get_mut(key)) {
                    reveal(tree, raw, &inner);
                }
            }
        }
        toml::Value::Array(list) => {
            let (Some(items), Some(trees)) = (node.items(), tree.as_array_mut()) else { return };
            trees.iter_mut().zip(list).for_each(|(tree, raw)| reveal(tree, raw, &items));
        }
        toml::Value::String(secret) if *tree == super::units::REDACTED => *tree = secret.as_str().into(),
        _ => {}
    }
}
