//! Environment variables of a configuration, and those with our prefix that name no key.
//!
//! A misspelt variable must not be ignored. But one environment may serve several daemons, and Kubernetes and Docker add
//! variables for each service: those are skipped.

use super::document::nearest;
use super::schema::{Leaf, Schema, VARIABLE_PREFIX, bare_variable};
use schemars::JsonSchema;
use std::collections::BTreeMap;

/// Prefixes of the variables of the project's other programs: `postern token`, scripts, load tests and tests.
const OTHERS: &[&str] = &[
    "API_KEY",
    "BINARY",
    "COMMIT",
    "DASHBOARDS",
    "DATA",
    "FLEET",
    "FUZZ",
    "JAEGER",
    "K6",
    "LOADTEST",
    "MCROUTER",
    "PROMETHEUS",
    "TEST",
];

/// The variables of a process that begin with `POSTERN_`.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// Names that belong to other daemons.
    elsewhere: Vec<String>,
}

/// Messages about variables that name no key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Strays {
    /// Errors: the variable names a section of this configuration, so it is meant for this daemon.
    pub(super) refused: Vec<String>,
    /// Warnings: the variable may belong to another program.
    pub(super) ignored: Vec<String>,
}

pub fn variables<T: JsonSchema>() -> Vec<String> {
    Schema::of::<T>().leaves().iter().map(Leaf::variable).collect()
}

impl Environment {
    /// Reads the variables of this process. Those named in `elsewhere` belong to other daemons. Bytes that are not UTF-8 become
    /// replacement characters, so that such a value is rejected with the variable's name rather than ignored.
    pub fn of_process(elsewhere: Vec<String>) -> Self {
        let variables = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
            .collect();
        Self { variables, elsewhere }
    }

    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        self.variables.clone()
    }

    pub(super) fn strays(&self, schema: &Schema) -> Strays {
        let keys: Vec<String> = schema.leaves().iter().map(Leaf::variable).collect();
        let mut strays = Strays::default();
        for (name, value) in &self.variables {
            let Some(bare) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
            if keys.contains(name)
                || self.elsewhere.contains(name)
                || OTHERS.iter().any(|other| is_in(bare, other))
                || is_link(name, value)
            {
                continue;
            }
            let known =
                keys.iter().chain(&self.elsewhere).filter_map(|known| known.strip_prefix(VARIABLE_PREFIX));
            let advice = match nearest(bare, known) {
                Some(near) => format!("did you mean {VARIABLE_PREFIX}{near}?"),
                None => "docs/reference/configuration.md has every variable".to_owned(),
            };
            match section_above(schema, bare) {
                Some(section) => strays.refused.push(format!(
                    "the environment variable {name}: {section} has no key of this name that a variable can set; {advice}"
                )),
                None => strays.ignored.push(format!(
                    "the environment variable {name} is ignored: no key has this name; {advice}"
                )),
            }
        }
        strays
    }
}

/// Returns the header of the innermost section that the variable `bare` names or is in.
fn section_above(schema: &Schema, bare: &str) -> Option<String> {
    let sections = schema.sections().into_iter().filter(|section| !section.path.is_empty());
    let above = sections.filter(|section| is_in(bare, &bare_variable(&section.path)));
    above.max_by_key(|section| bare_variable(&section.path).len()).map(|section| section.header())
}

/// `true` if the variable `bare` has this name, or one below it.
fn is_in(bare: &str, prefix: &str) -> bool {
    bare.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// `true` if Kubernetes or Docker sets such a variable for a service called postern, or postern-something:
/// `POSTERN_GATEWAY_SERVICE_HOST`, `POSTERN_GATEWAY_PORT=tcp://10.0.0.1:8080`, `POSTERN_GATEWAY_PORT_8080_TCP_ADDR`.
pub(super) fn is_link(name: &str, value: &str) -> bool {
    if name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return true;
    }
    if name.ends_with("_PORT") && value.contains("://") || name.ends_with("_NAME") && value.starts_with('/') {
        return true;
    }
    let of_port = name.match_indices("_PORT_").any(|(at, found)| {
        let mut words = name[at + found.len()..].split('_');
        let number = words
            .next()
            .is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit()) && !word.is_empty());
        number && words.next().is_some_and(|word| ["TCP", "UDP", "SCTP"].contains(&word))
    });
    of_port || name.contains("_ENV_")
}

/// The applied variables: from a key's path to the variable's name and raw value.
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

/// Parses a variable's text as a TOML value. Other text stays a string, which deserialization rejects with what the key
/// accepts.
fn value_of(leaf: &Leaf<'_>, raw: &str) -> toml::Value {
    let text = || toml::Value::String(raw.to_owned());
    if leaf.node.is_text() {
        return text();
    }
    toml::de::ValueDeserializer::parse(raw)
        .and_then(<toml::Value as serde::Deserialize>::deserialize)
        .unwrap_or_else(|_| text())
}

/// Sets the value at `path`. Returns `false` if the file has something other than a table on the way, which is rejected later.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    /// A daemon's configuration.
    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Config {
        listen: Listen,
        issuer: Issuer,
        accounts: Vec<Account>,
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    struct Listen {
        address: String,
        header_timeout: String,
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    struct Issuer {
        directory: Option<String>,
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    struct Account {
        name: String,
    }

    fn strays(variables: &[(&str, &str)]) -> Strays {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let elsewhere = vec!["POSTERN_ISSUER_API_KEY".to_owned(), "POSTERN_KEYS_ROTATE_EVERY".to_owned()];
        Environment { variables: variables.collect(), elsewhere }.strays(&Schema::of::<Config>())
    }

    #[test]
    fn a_slip_in_the_name_of_a_key_is_refused_with_the_nearest_name() {
        let found = strays(&[("POSTERN_LISTEN_ADRESS", "secret"), ("POSTERN_LISTEN_ADDRESS", "a")]);
        assert_eq!(
            found.refused,
            [
                "the environment variable POSTERN_LISTEN_ADRESS: [listen] has no key of this name that a variable can set; \
              did you mean POSTERN_LISTEN_ADDRESS?"
            ]
        );
        assert_eq!(found.ignored, [""; 0]);
        for name in
            ["POSTERN_LISTEN", "POSTERN_ACCOUNTS_0_NAME", "POSTERN_ACCOUNTS", "POSTERN_ISSUER_DIRECTORI"]
        {
            assert_eq!(strays(&[(name, "x")]).refused.len(), 1, "{name}");
        }
    }

    #[test]
    fn what_lies_in_no_section_of_ours_is_only_told() {
        let found = strays(&[("POSTERN_KEYS_ROTATE_EVRY", "1d"), ("POSTERN_HTTP_PROXY", "x")]);
        assert_eq!(found.refused, [""; 0]);
        assert_eq!(
            found.ignored,
            [
                "the environment variable POSTERN_HTTP_PROXY is ignored: no key has this name; docs/reference/configuration.md has \
                 every variable",
                "the environment variable POSTERN_KEYS_ROTATE_EVRY is ignored: no key has this name; did you mean \
                 POSTERN_KEYS_ROTATE_EVERY?"
            ]
        );
    }

    #[test]
    fn variables_of_others_are_left_alone() {
        for (name, value) in [
            ("POSTERN_ISSUER_API_KEY", "another daemon's"),
            ("POSTERN_API_KEY", "of postern token mint"),
            ("POSTERN_FUZZ_SECONDS", "5"),
            ("POSTERN_MCROUTER", "/usr/bin/mcrouter"),
            ("POSTERN_ISSUER_SERVICE_HOST", "10.0.0.1"),
            ("POSTERN_ISSUER_SERVICE_PORT", "443"),
            ("POSTERN_ISSUER_SERVICE_PORT_HTTPS", "443"),
            ("POSTERN_ISSUER_PORT", "tcp://10.0.0.1:443"),
            ("POSTERN_ISSUER_PORT_443_TCP", "tcp://10.0.0.1:443"),
            ("POSTERN_ISSUER_PORT_443_TCP_PROTO", "tcp"),
            ("POSTERN_LISTEN_PORT_53_UDP_ADDR", "10.0.0.1"),
            ("POSTERN_PORT", "tcp://10.0.0.1:8080"),
            ("POSTERN_SERVICE_HOST", "10.0.0.1"),
            ("POSTERN_ISSUER_NAME", "/gateway/issuer"),
            ("POSTERN_ISSUER_ENV_PATH", "/usr/bin"),
        ] {
            assert_eq!(strays(&[(name, value)]), Strays::default(), "{name}");
        }
    }
}
