//! The environment variables that a configuration is read under, and those that look like ours and name no key.
//!
//! A slip of the pen in a variable's name must not be passed over. But one environment may serve several daemons, and
//! Kubernetes and Docker put variables for each service there: those are left alone.

use super::overrides::environment;
use super::schema::{Leaf, Schema, VARIABLE_PREFIX};
use super::unknown::nearest;
use schemars::JsonSchema;
use std::collections::BTreeMap;

/// What the project's other programs read: `postern token`, scripts, load tests and tests.
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

/// Errors for variables that name no key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Strays {
    /// They name a section of this configuration, so this daemon is meant.
    pub(super) refused: Vec<String>,
    /// They may be another program's.
    pub(super) ignored: Vec<String>,
}

/// The variables of the configuration `T`.
#[must_use]
pub fn variables<T: JsonSchema>() -> Vec<String> {
    Schema::of::<T>().leaves().iter().map(Leaf::variable).collect()
}

impl Environment {
    /// The variables of this process, in which those named in `elsewhere` belong to other daemons.
    #[must_use]
    pub fn of_process(elsewhere: Vec<String>) -> Self {
        Self { variables: environment().into_iter().collect(), elsewhere }
    }

    /// These variables and no others.
    #[must_use]
    pub fn of(variables: impl IntoIterator<Item = (String, String)>, elsewhere: Vec<String>) -> Self {
        Self { variables: variables.into_iter().collect(), elsewhere }
    }

    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        self.variables.clone()
    }

    pub(super) fn strays(&self, schema: &Schema) -> Strays {
        let keys: Vec<String> = schema.leaves().iter().map(Leaf::variable).collect();
        let sections = Sections::of(schema);
        let mut strays = Strays::default();
        for (name, value) in &self.variables {
            let Some(bare) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
            if keys.contains(name)
                || self.elsewhere.contains(name)
                || is_another_programs(bare)
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
            match sections.above(bare) {
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

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.variables.keys()).finish() // the values may be secret
    }
}

/// The sections of a configuration by what their variables begin with, as they are written in the file.
struct Sections(Vec<(String, String)>);

impl Sections {
    fn of(schema: &Schema) -> Self {
        let named = schema.sections().into_iter().filter(|section| !section.path.is_empty()).map(|section| {
            let dotted = section.path.join(".");
            let written = if section.in_list { format!("[[{dotted}]]") } else { format!("[{dotted}]") };
            (section.path.join("_").to_uppercase().replace('-', "_"), written)
        });
        Self(named.collect())
    }

    /// The innermost section that a name lies in, or is.
    fn above(&self, bare: &str) -> Option<&str> {
        let is_in = |prefix: &str| {
            bare.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        let found = self.0.iter().filter(|(prefix, _)| is_in(prefix)).max_by_key(|(prefix, _)| prefix.len());
        found.map(|(_, written)| written.as_str())
    }
}

fn is_another_programs(bare: &str) -> bool {
    OTHERS
        .iter()
        .any(|other| bare.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

/// Whether this is what Kubernetes and Docker set for a service called postern, or postern-something:
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
        Environment::of(variables, elsewhere).strays(&Schema::of::<Config>())
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
