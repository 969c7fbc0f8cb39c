//! Reads a configuration file again while the daemon runs.
//!
//! A daemon declares the keys that it cannot change while it runs, and why. These keep their values until a restart, so a reload
//! always gives a configuration that the daemon can run with. A file that cannot be used changes nothing.

use super::document::{ConfigError, cut};
use super::environment::Environment;
use super::load::read;
use super::schema::{Node, Schema};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
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

/// Maximum number of names of a list in a sentence.
const NAMED: usize = 10;
/// The keys that identify a table in a list; the first that is present is used.
const NAMES: [&str; 2] = ["name", "url"];

pub(super) struct Change {
    /// Dotted path.
    pub(super) key: String,
    pub(super) sentence: String,
}

/// Returns the differences from `old` to `new`. The trees may hold secrets; the sentences do not.
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
