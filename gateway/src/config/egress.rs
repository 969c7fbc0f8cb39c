//! `[egress]`: permitted targets of tunnels, and routes to them; warnings about patterns of rules that never decide.

use super::next_hop::DIRECT;
use super::pattern::is_below;
use super::{Hosts, NextHop, Pattern, ResolverConfig};
use ipnet::IpNet;
use postern_config::text_value;
use postern_proxy::udp::template::Template;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Targets of tunnels: the first matching rule decides; without one, `ports`, `private` and `own` do.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Allow private, loopback and other special addresses: token holders then reach your network.
    pub private: bool,
    /// Allow public addresses of the gateway's machine.
    pub own: bool,
    /// Allowed ports: a list, "any", or "off".
    pub ports: Ports,
    /// Ports of UDP that may be reached, through rules as well: "off", a list, or "any".
    pub udp: Ports,
    /// Path at which UDP can be requested beside the well-known one, such as "/udp?h={target_host}&p={target_port}".
    pub udp_template: Option<UdpTemplate>,
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
    /// The means to allow more. Not a key of the file: `postern up` has a switch instead.
    #[serde(skip)]
    pub lever: Lever,
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            private: false,
            own: false,
            ports: Ports::List(vec![80, 443]),
            udp: Ports::List(vec![443]),
            udp_template: None,
            deny: Vec::new(),
            rules: Vec::new(),
            resolver: ResolverConfig::default(),
            source: Vec::new(),
            via: None,
            next_hops: Vec::new(),
            lever: Lever::default(),
        }
    }
}

impl Egress {
    /// Checks what the types cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        for (at, hop) in self.next_hops.iter().enumerate() {
            hop.check()?;
            if self.next_hops.iter().skip(at + 1).any(|other| other.name == hop.name) {
                return Err(format!(
                    "two [[egress.next_hops]] have the name \"{}\": rules could not tell them apart",
                    hop.name
                ));
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
                return Err(format!(
                    "{place} goes via \"{name}\", and no [[egress.next_hops]] has that name"
                ));
            }
        }
        let is_unusable = |address: &&IpAddr| {
            address.is_unspecified() || address.is_multicast() || address.to_canonical() != **address
        };
        let mut sources = self.rules.iter().flat_map(|rule| &rule.source).chain(&self.source);
        match sources.find(is_unusable) {
            Some(address) => Err(format!(
                "egress.source has {address}, from which nothing can connect: list addresses of this machine's interfaces, IPv4 ones \
                 as such"
            )),
            None => Ok(()),
        }
    }
}

/// The party that can allow what the egress policy refuses, for the advice in a refusal.
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
    /// All of them, or none.
    Word(PortsWord),
}

/// All ports, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortsWord {
    /// None.
    Off,
    /// All of them.
    Any,
}

impl Ports {
    /// Returns `true` if tunnels to `port` are allowed.
    #[must_use]
    pub fn allow(&self, port: u16) -> bool {
        match self {
            Self::List(ports) => ports.contains(&port),
            Self::Word(word) => *word == PortsWord::Any,
        }
    }
}

/// A template of paths for requests of UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpTemplate {
    text: Box<str>,
    pub(crate) template: Template,
}

impl FromStr for UdpTemplate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        Ok(Self { text: text.into(), template: Template::parse(text)? })
    }
}

impl fmt::Display for UdpTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_value!(UdpTemplate, "a path with {target_host} and behind it {target_port} (RFC 9298, section 2)");

/// A rule, with the targets that it allows or denies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "RuleTable", into = "RuleTable")]
pub struct Rule {
    /// Action for the targets.
    pub action: Action,
    /// Targets, at least one pattern.
    pub patterns: Vec<Pattern>,
    /// Local addresses for tunnels that this rule allows; if empty, those of [`Egress`].
    pub source: Vec<IpAddr>,
    /// Name of the next hop for tunnels that this rule allows.
    pub via: Option<String>,
}

impl Rule {
    /// Creates a rule that allows a pattern's targets; the addresses of a name are judged.
    pub fn allow(pattern: Pattern) -> Self {
        Self {
            action: Action::Allow { private: false },
            patterns: vec![pattern],
            source: Vec::new(),
            via: None,
        }
    }

    /// Creates a rule that denies a pattern's targets.
    pub fn deny(pattern: Pattern) -> Self {
        Self { action: Action::Deny, patterns: vec![pattern], source: Vec::new(), via: None }
    }
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tunnels to the targets are allowed.
    Allow {
        /// `true` if a name is allowed whatever its addresses are, except by `deny`.
        private: bool,
    },
    /// Tunnels to the targets are refused.
    Deny,
}

/// A rule as the file has it: exactly one of `allow` and `deny` is given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RuleTable {
    /// Targets to allow; networks even if private.
    allow: Option<Vec<Pattern>>,
    /// Targets to refuse.
    deny: Option<Vec<Pattern>>,
    /// Let the names have private addresses; only if their DNS is yours.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    private: bool,
    /// Replacement for `egress.source`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    source: Vec<IpAddr>,
    /// Next hop, or "direct" for none. It resolves the names, so their addresses are not judged, not even by `egress.deny`.
    via: Option<String>,
}

impl TryFrom<RuleTable> for Rule {
    type Error = &'static str;

    fn try_from(table: RuleTable) -> Result<Self, Self::Error> {
        let (action, patterns) = match (table.allow, table.deny) {
            (Some(_), Some(_)) => {
                return Err(
                    "a rule has either allow or deny, and this one has both: make two rules of it, in the order in which they decide",
                );
            }
            (None, None) => {
                return Err("a rule has allow or deny: write allow = [\"b.example:443\"] or deny = [\"*\"]");
            }
            (Some(patterns), None) => (Action::Allow { private: table.private }, patterns),
            (None, Some(_)) if table.private || !table.source.is_empty() || table.via.is_some() => {
                return Err(
                    "private, source and via are for what a rule allows, and this one denies: remove them",
                );
            }
            (None, Some(patterns)) => (Action::Deny, patterns),
        };
        if patterns.is_empty() {
            Err(
                "its list has no pattern, so it would match nothing: write one, such as \"b.example:443\", or remove the rule",
            )
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

impl Egress {
    /// Returns a sentence for each pattern that never decides, because one pattern before it or a network of `deny` always
    /// does. Does not find a pattern that several others cover together.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        // Every pattern before the current one, with its rule and the rule's number.
        let mut before: Vec<(usize, &Rule, &Pattern)> = Vec::new();
        for (number, rule) in (1..).zip(&self.rules) {
            for pattern in &rule.patterns {
                if let Some((other, _, covering)) = before.iter().find(|(_, other, covering)| {
                    self.covers((other, covering), (rule, pattern))
                        && decides(&before, other, covering, pattern)
                }) {
                    remarks.push(format!(
                        "egress.rules: \"{pattern}\" of rule {number} never matches, because \"{covering}\" of rule {other} \
                         always does before; move the narrower rule up, or remove it"
                    ));
                } else if let Some(network) = self.denies(rule, pattern) {
                    remarks.push(format!(
                        "egress.rules: \"{pattern}\" of rule {number} allows nothing, because egress.deny has {network}"
                    ));
                }
            }
            before.extend(rule.patterns.iter().map(|pattern| (number, rule, pattern)));
        }
        remarks
    }

    fn covers(&self, (rule, pattern): (&Rule, &Pattern), other: (&Rule, &Pattern)) -> bool {
        let (own, others) = (self.ranges(rule, pattern), self.ranges(other.0, other.1));
        let within = |range: &RangeInclusive<u16>| {
            own.iter().any(|own| own.contains(range.start()) && own.contains(range.end()))
        };
        has_hosts(&pattern.hosts, &other.1.hosts) && others.iter().all(within)
    }

    /// Returns the ports that a pattern selects in its rule.
    fn ranges(&self, rule: &Rule, pattern: &Pattern) -> Vec<RangeInclusive<u16>> {
        match (&pattern.ports, rule.action, &self.ports) {
            (Some(ports), _, _) => vec![ports.clone()],
            (None, Action::Allow { .. }, Ports::List(ports)) => {
                ports.iter().map(|port| *port..=*port).collect()
            }
            (None, Action::Allow { .. }, Ports::Word(PortsWord::Off)) => Vec::new(),
            (None, ..) => vec![1..=u16::MAX],
        }
    }

    fn denies(&self, rule: &Rule, pattern: &Pattern) -> Option<&ipnet::IpNet> {
        let Hosts::Network(network) = &pattern.hosts else { return None };
        self.deny.iter().find(|denied| rule.action != Action::Deny && denied.contains(network))
    }
}

/// Returns `true` if `hosts` contains all of `others`.
fn has_hosts(hosts: &Hosts, others: &Hosts) -> bool {
    match (hosts, others) {
        (Hosts::Any, _) => true,
        (Hosts::Name(name), Hosts::Name(other)) => name.eq_ignore_ascii_case(other),
        (Hosts::Below(above), Hosts::Name(other)) => is_below(other, above),
        (Hosts::Below(above), Hosts::Below(other)) => {
            above.eq_ignore_ascii_case(other) || is_below(other, above)
        }
        (Hosts::Network(network), Hosts::Network(other)) => network.contains(other),
        _ => false,
    }
}

/// Returns `true` if a pattern that covers a later one decides wherever the later one would. A "*" does not decide about
/// addresses of names that its own rule or an earlier one allows: networks of later rules decide about these.
fn decides(before: &[(usize, &Rule, &Pattern)], rule: &Rule, covering: &Pattern, later: &Pattern) -> bool {
    let leaves_addresses = |rule: &Rule, pattern: &Pattern| {
        rule.action == Action::Allow { private: false } && !matches!(pattern.hosts, Hosts::Network(_))
    };
    let by_star = covering.hosts == Hosts::Any && matches!(later.hosts, Hosts::Network(_));
    !by_star
        || !(leaves_addresses(rule, covering)
            || before.iter().any(|(_, rule, pattern)| leaves_addresses(rule, pattern)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the covered patterns in the rules of this text, each with the pattern that covers it.
    fn covered(text: &str) -> Vec<String> {
        let egress: Egress = postern_config::parse("egress.toml", text, []).unwrap();
        let quoted =
            |remark: String| remark.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        egress.remarks().into_iter().map(|remark| quoted(remark).join(" by ")).collect()
    }

    fn rules(lists: &[&str]) -> String {
        lists.iter().map(|list| format!("[[rules]]\n{list}\n")).collect()
    }

    #[test]
    fn a_pattern_that_an_earlier_one_covers_is_found() {
        let none: [&str; 0] = [];
        for (lists, expected) in [
            (
                &[r#"deny = ["*"]"#, r#"allow = ["b.example:443", "10.0.0.0/8"]"#][..],
                &["b.example:443 by *", "10.0.0.0/8 by *"][..],
            ),
            (&[r#"allow = ["b.example:443"]"#, r#"deny = ["*"]"#], &none),
            (
                &[r#"deny = ["*.example"]"#, r#"allow = ["*.b.example", "b.EXAMPLE:1", "example"]"#],
                &["*.b.example by *.example", "b.EXAMPLE:1 by *.example"],
            ),
            (
                &[r#"deny = ["10.0.0.0/8:22"]"#, r#"allow = ["10.0.0.1:22", "10.0.0.1:23"]"#],
                &["10.0.0.1:22 by 10.0.0.0/8:22"],
            ),
            (
                &[r#"allow = ["b.example"]"#, r#"deny = ["b.example"]"#, r#"deny = ["b.example:80"]"#],
                &["b.example:80 by b.example"],
            ),
            // The addresses of names that rule 1 allows are judged by networks, not by "*".
            (&[r#"allow = ["b.example:443"]"#, r#"deny = ["*"]"#, r#"deny = ["1.2.3.0/24"]"#], &none),
            (&[r#"allow = ["*:*"]"#, r#"deny = ["1.2.3.0/24", "b.example"]"#], &["b.example by *:*"]),
        ] {
            assert_eq!(covered(&rules(lists)), expected, "{lists:?}");
        }
        let denied =
            format!("deny = [\"10.0.0.0/8\"]\n{}", rules(&[r#"allow = ["10.1.0.0/16", "11.0.0.0/8"]"#]));
        assert_eq!(covered(&denied), ["10.1.0.0/16"]);
    }
}
