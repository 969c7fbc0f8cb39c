//! `[egress]`: where tunnels may go.

use super::{Pattern, ResolverConfig};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where tunnels may go: the first of the `rules` that matches decides, and where none does, `ports`, `private` and `own` do.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Allow private, loopback, link-local and other special addresses. Anyone with a token then reaches what the
    /// gateway reaches.
    pub private: bool,
    /// Allow the public addresses of the gateway's own machine, and so what listens there for others. `private` allows them,
    /// too.
    pub own: bool,
    /// The ports that may be reached: a list, or "any".
    pub ports: Ports,
    /// Networks that may not be reached whatever else is allowed, by a rule or otherwise, such as "203.0.113.0/24".
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<IpNet>,
    /// Rules, in order: the first that matches a target decides. A name is matched by names and "*", before a token is spent; an
    /// address by networks and "*". The addresses of a name that a rule allows are judged in turn, by the rules with networks and
    /// then by `private` and `own`: otherwise whoever runs the name's DNS could lead tunnels into private networks. An IPv6
    /// address that carries an IPv4 one must be allowed as both. `postern doctor egress NAME:PORT` says which rule decides;
    /// docs/operate/change.md has examples.
    #[schemars(with = "Vec<RuleTable>")]
    pub rules: Vec<Rule>,
    /// Who resolves the names of targets.
    pub resolver: ResolverConfig,
    /// Who can allow more. Not a key of the file: `postern up` has a switch instead.
    #[serde(skip)]
    pub lever: Lever,
}

/// Who can allow what the egress policy refuses, for the advice in a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lever {
    /// The operator, in the configuration.
    #[default]
    Operator,
    /// The person who types `postern up`, by `--open-egress`.
    OpenEgress,
}

/// The ports that may be reached.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Ports {
    /// These.
    List(Vec<u16>),
    /// All of them.
    #[serde(with = "any")]
    #[schemars(with = "String", extend("enum" = ["any"]))]
    Any,
}

impl Ports {
    /// Whether tunnels to `port` are allowed.
    #[must_use]
    pub fn allow(&self, port: u16) -> bool {
        match self {
            Self::List(ports) => ports.contains(&port),
            Self::Any => true,
        }
    }
}

impl Default for Ports {
    fn default() -> Self {
        Self::List(vec![80, 443])
    }
}

/// The one word that stands for all ports.
mod any {
    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        if text == "any" { Ok(()) } else { Err(serde::de::Error::custom("not \"any\"")) }
    }

    pub(super) fn serialize<S: serde::Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("any")
    }
}

/// What to do with the targets of some patterns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "RuleTable", into = "RuleTable")]
pub struct Rule {
    /// What to do.
    pub action: Action,
    /// The targets, at least one.
    pub patterns: Vec<Pattern>,
}

/// What a rule does with its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tunnels may go there.
    Allow {
        /// Whatever the addresses of a name are.
        private: bool,
    },
    /// They may not.
    Deny,
}

/// A rule as the file has it: exactly one of `allow` and `deny` is given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RuleTable {
    /// Targets that may be reached. Without ports in a pattern: on the ports of `egress.ports`. A network or an address here may
    /// be private.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<Vec<Pattern>>,
    /// Targets that may not be reached. Without ports in a pattern: on any port.
    #[serde(skip_serializing_if = "Option::is_none")]
    deny: Option<Vec<Pattern>>,
    /// The addresses of a name that this rule allows are not judged, except by `egress.deny`: they may be private. Only for names
    /// whose DNS is in your own hands.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    private: bool,
}

/// Why a table is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum RuleError {
    #[error(
        "a rule has either allow or deny, and this one has both: make two rules of it, in the order in which they decide"
    )]
    Both,
    #[error("a rule has allow or deny: write allow = [\"b.example:443\"] or deny = [\"*\"]")]
    Neither,
    #[error(
        "its list has no pattern, so it would match nothing: write one, such as \"b.example:443\", or remove the rule"
    )]
    Empty,
    #[error("private is for what a rule allows, and this one denies: remove it")]
    Private,
}

impl TryFrom<RuleTable> for Rule {
    type Error = RuleError;

    fn try_from(table: RuleTable) -> Result<Self, RuleError> {
        let (action, patterns) = match (table.allow, table.deny) {
            (Some(_), Some(_)) => return Err(RuleError::Both),
            (None, None) => return Err(RuleError::Neither),
            (Some(patterns), None) => (Action::Allow { private: table.private }, patterns),
            (None, Some(_)) if table.private => return Err(RuleError::Private),
            (None, Some(patterns)) => (Action::Deny, patterns),
        };
        if patterns.is_empty() { Err(RuleError::Empty) } else { Ok(Self { action, patterns }) }
    }
}

impl From<Rule> for RuleTable {
    fn from(rule: Rule) -> Self {
        match rule.action {
            Action::Allow { private } => Self { allow: Some(rule.patterns), private, ..Self::default() },
            Action::Deny => Self { deny: Some(rule.patterns), ..Self::default() },
        }
    }
}
