//! `[egress]`: where tunnels may go.

use super::next_hop::DIRECT;
use super::{NextHop, NextHopError, Pattern, ResolverConfig};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Targets of tunnels: the first matching rule decides; without one, `ports`, `private` and `own` do.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Allow private, loopback and other special addresses: token holders then reach your network.
    pub private: bool,
    /// Allow public addresses of the gateway's machine.
    pub own: bool,
    /// Allowed ports.
    pub ports: Ports,
    /// Networks that no rule can allow, such as "203.0.113.0/24".
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<IpNet>,
    /// Rules in order: the first match decides. Addresses of an allowed name are judged again (`docs/operate/change.md`). IPv6
    /// addresses that carry an IPv4 one must be allowed as both.
    #[schemars(with = "Vec<RuleTable>")]
    pub rules: Vec<Rule>,
    /// DNS for names of targets.
    pub resolver: ResolverConfig,
    /// Local addresses that tunnels leave from, in turn; targets of another family are refused.
    pub source: Vec<IpAddr>,
    /// Next hop where no rule has a `via`; it resolves the names.
    pub via: Option<String>,
    /// Your proxies through which tunnels continue, chosen by `via`.
    pub next_hops: Vec<NextHop>,
    /// Who can allow more. Not a key of the file: `postern up` has a switch instead.
    #[serde(skip)]
    pub lever: Lever,
}

impl Egress {
    /// The first of all `source` addresses that no connection can go out from.
    pub(crate) fn unusable_source(&self) -> Option<IpAddr> {
        let is_unusable = |address: &IpAddr| {
            address.is_unspecified() || address.is_multicast() || address.to_canonical() != *address
        };
        self.rules.iter().flat_map(|rule| &rule.source).chain(&self.source).copied().find(is_unusable)
    }

    /// Finds next hops and rules that do not go together.
    pub(crate) fn check_next_hops(&self) -> Result<(), NextHopError> {
        for (at, hop) in self.next_hops.iter().enumerate() {
            hop.check()?;
            if self.next_hops.iter().skip(at + 1).any(|other| other.name == hop.name) {
                return Err(NextHopError::Twice(hop.name.clone()));
            }
        }
        let of_rule =
            |(number, rule): (usize, &Rule)| (format!("rule {number} of egress.rules"), rule.via.clone());
        let of_rules = (1..).zip(&self.rules).map(of_rule);
        let of_all = std::iter::once(("egress.via".to_owned(), self.via.clone()));
        for (place, via) in of_all.chain(of_rules) {
            let is_known =
                |name: &String| name == DIRECT || self.next_hops.iter().any(|hop| hop.name == *name);
            if let Some(name) = via.filter(|name| !is_known(name)) {
                return Err(NextHopError::Unknown { place, name });
            }
        }
        Ok(())
    }
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
    /// Local addresses for tunnels that this rule allows; those of [`Egress`] if it has none.
    pub source: Vec<IpAddr>,
    /// The name of the next hop that they go on through.
    pub via: Option<String>,
}

impl Rule {
    /// One that allows what a pattern is about; the addresses of a name are judged.
    pub fn allow(pattern: Pattern) -> Self {
        Self {
            action: Action::Allow { private: false },
            patterns: vec![pattern],
            source: Vec::new(),
            via: None,
        }
    }

    /// One that denies it.
    pub fn deny(pattern: Pattern) -> Self {
        Self { action: Action::Deny, patterns: vec![pattern], source: Vec::new(), via: None }
    }
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
    /// Targets to allow; networks even if private.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<Vec<Pattern>>,
    /// Targets to refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    deny: Option<Vec<Pattern>>,
    /// Let the names have private addresses; only if their DNS is yours.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    private: bool,
    /// Replacement for `egress.source`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    source: Vec<IpAddr>,
    /// Next hop, or "direct" for none. It resolves the names, so their addresses are not judged, not even by `egress.deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<String>,
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
    #[error("private, source and via are for what a rule allows, and this one denies: remove them")]
    Denies,
}

impl TryFrom<RuleTable> for Rule {
    type Error = RuleError;

    fn try_from(table: RuleTable) -> Result<Self, RuleError> {
        let (action, patterns) = match (table.allow, table.deny) {
            (Some(_), Some(_)) => return Err(RuleError::Both),
            (None, None) => return Err(RuleError::Neither),
            (Some(patterns), None) => (Action::Allow { private: table.private }, patterns),
            (None, Some(_)) if table.private || !table.source.is_empty() || table.via.is_some() => {
                return Err(RuleError::Denies);
            }
            (None, Some(patterns)) => (Action::Deny, patterns),
        };
        if patterns.is_empty() {
            Err(RuleError::Empty)
        } else {
            Ok(Self { action, patterns, source: table.source, via: table.via })
        }
    }
}

impl From<Rule> for RuleTable {
    fn from(rule: Rule) -> Self {
        match rule.action {
            Action::Allow { private } => Self {
                allow: Some(rule.patterns),
                private,
                source: rule.source,
                via: rule.via,
                ..Self::default()
            },
            Action::Deny => Self { deny: Some(rule.patterns), ..Self::default() },
        }
    }
}
