//! `[egress]`: where tunnels may go.

use ipnet::IpNet;
use postern_proxy::target::Host;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Where tunnels may go.
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
    /// Networks that may not be reached whatever else is allowed, such as "203.0.113.0/24".
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<IpNet>,
    /// Rules in order; the first that matches a target decides, and where none does, the keys above. `deny` goes before all of
    /// them. `postern doctor --config FILE --egress NAME:PORT` says which one decides.
    pub rules: Vec<Rule>,
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

/// A rule of `[[egress.rules]]`: exactly one of `allow` and `deny`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Targets that may be reached, each a place, or a place and ports: "proxy.example:443", "*.example.org" (every name below,
    /// not example.org itself), "10.0.0.0/8:8000-8999", "[2001:db8::/32]:443", "*:25", "*". Without ports those of `egress.ports`
    /// are meant, or "*" for all: "proxy.example:*". A network is allowed even if it is private; the addresses of a name are not.
    pub(crate) allow: Vec<Pattern>,
    /// Targets that may not be reached, written like those of `allow`; without ports all of them.
    pub(crate) deny: Vec<Pattern>,
    /// With `allow`: names may lead to private addresses, too. Whoever answers for these names in DNS then chooses which.
    pub(crate) private: bool,
}

impl Rule {
    /// One that allows these targets, or with `is_allowed` false denies them.
    ///
    /// # Errors
    /// A sentence about the pattern that is none.
    pub fn new(is_allowed: bool, patterns: &[&str]) -> Result<Self, String> {
        let patterns = patterns.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
        let (allow, deny) = if is_allowed { (patterns, Vec::new()) } else { (Vec::new(), patterns) };
        Ok(Self { allow, deny, private: false })
    }

    /// What is wrong with it, to be read after its name.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.allow.is_empty() == self.deny.is_empty() {
            return Err("has to have either allow or deny, with one pattern at least");
        }
        if self.private && self.allow.is_empty() {
            return Err("denies, and private belongs to a rule with allow");
        }
        Ok(())
    }

    /// Its patterns, and whether they are allowed.
    pub(crate) fn patterns(&self) -> (&[Pattern], bool) {
        if self.deny.is_empty() { (&self.allow, true) } else { (&self.deny, false) }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (patterns, is_allowed) = self.patterns();
        let patterns: Vec<String> =
            patterns.iter().map(|pattern| format!("{:?}", pattern.to_string())).collect();
        let private = if self.private { ", private = true" } else { "" };
        write!(f, "{} = [{}]{private}", if is_allowed { "allow" } else { "deny" }, patterns.join(", "))
    }
}

/// A place, and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) place: Place,
    /// `None` where it names none.
    pub(crate) ports: Option<RangeInclusive<u16>>,
}

/// Where a target may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Anywhere.
    Any,
    /// A name, in lower case, without a dot at its end.
    Name(String),
    /// Every name that ends with this, which begins with a dot.
    Below(String),
    /// Addresses.
    Net(IpNet),
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, ports) = split(text);
        let place = place.parse().map_err(|()| {
            format!(
                "\"{text}\" is no target: write a name, \"*.\" and a name, a network such as \"10.0.0.0/8\" (one of IPv6 in \
                 brackets) or \"*\", and behind a colon a port, two with a hyphen between them or \"*\""
            )
        })?;
        let port = |digits: &str| digits.parse::<u16>().ok().filter(|port| *port > 0);
        let ports = match ports {
            None => None,
            Some("*") => Some(1..=u16::MAX),
            Some(ports) => {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                let range = port(first).zip(port(last)).filter(|(first, last)| first <= last);
                let (first, last) = range.ok_or_else(|| {
                    format!("\"{ports}\" in \"{text}\" are no ports: write 443, 8000-8999 or *")
                })?;
                Some(first..=last)
            }
        };
        Ok(Self { place, ports })
    }
}

/// The place, and what stands behind the colon that ends it.
fn split(text: &str) -> (&str, Option<&str>) {
    if let Some((inner, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(ports) => (inner, Some(ports)),
            None if rest.is_empty() => (inner, None),
            None => (text, None),
        };
    }
    match text.rsplit_once(':') {
        Some((place, ports)) if !place.contains(':') => (place, Some(ports)),
        _ => (text, None),
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let name = |text: &str| match Host::parse(text) {
            Ok(Host::Name(name)) => Ok(name.to_ascii_lowercase()),
            _ => Err(()),
        };
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(below) = text.strip_prefix("*.") {
            return name(below).map(|name| Self::Below(format!(".{name}")));
        }
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        net.map(Self::Net).or_else(|_| name(text).map(Self::Name))
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Any => f.write_str("*")?,
            Place::Name(name) => f.write_str(name)?,
            Place::Below(suffix) => write!(f, "*{suffix}")?,
            Place::Net(net @ IpNet::V6(_)) => write!(f, "[{net}]")?,
            Place::Net(net) => write!(f, "{net}")?,
        }
        match self.ports.as_ref().map(|ports| (*ports.start(), *ports.end())) {
            None => Ok(()),
            Some((1, u16::MAX)) => f.write_str(":*"),
            Some((first, last)) if first == last => write!(f, ":{first}"),
            Some((first, last)) => write!(f, ":{first}-{last}"),
        }
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Pattern {
    fn schema_name() -> Cow<'static, str> {
        "Pattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_written_as_it_was_read() {
        for text in [
            "*",
            "*:25",
            "proxy.example",
            "proxy.example:443",
            "*.example.org:8000-8999",
            "10.0.0.0/8",
            "10.1.2.3/32:*",
            "[2001:db8::/32]:443",
            "[::1/128]",
        ] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for (text, same) in [
            ("Proxy.Example.:443", "proxy.example:443"),
            ("10.1.2.3:80", "10.1.2.3/32:80"),
            ("2001:db8::/32", "[2001:db8::/32]"),
        ] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), same);
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_its_text() {
        for text in [
            "",
            "*.",
            "a b",
            "**.example",
            "example:",
            "example:0",
            "example:9-1",
            "example:70000",
            "10.0.0.0/33",
            "[::1",
        ] {
            let error = text.parse::<Pattern>().unwrap_err();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }

    #[test]
    fn a_rule_allows_or_denies() {
        let rule = |text: &str| serde_json::from_str::<Rule>(text);
        let read = rule(r#"{"allow": ["b.example:443"], "private": true}"#).unwrap();
        assert_eq!(read.to_string(), r#"allow = ["b.example:443"], private = true"#);
        assert_eq!(read.check(), Ok(()));
        for bad in [
            r"{}",
            r#"{"allow": []}"#,
            r#"{"allow": ["*"], "deny": ["*"]}"#,
            r#"{"deny": ["*"], "private": true}"#,
        ] {
            assert!(rule(bad).unwrap().check().is_err(), "{bad}");
        }
    }
}
