//! Patterns of egress rules that never decide anything, for a warning.

use super::pattern::is_below;
use super::{Action, Egress, Hosts, Pattern, Ports, Rule};
use std::ops::RangeInclusive;

impl Egress {
    /// A sentence for each pattern that never decides, because one pattern before it or a network of `deny` always does. A pattern
    /// that several others cover together is not found.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        // Every pattern before the present one, with its rule and the rule's number.
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
        has_hosts(pattern.hosts(), other.1.hosts()) && others.iter().all(within)
    }

    /// The ports that a pattern stands for in its rule.
    fn ranges(&self, rule: &Rule, pattern: &Pattern) -> Vec<RangeInclusive<u16>> {
        match (pattern.ports(), rule.action, &self.ports) {
            (Some(ports), _, _) => vec![ports.clone()],
            (None, Action::Allow { .. }, Ports::List(ports)) => {
                ports.iter().map(|port| *port..=*port).collect()
            }
            (None, ..) => vec![1..=u16::MAX],
        }
    }

    fn denies(&self, rule: &Rule, pattern: &Pattern) -> Option<&ipnet::IpNet> {
        let Hosts::Network(network) = pattern.hosts() else { return None };
        self.deny.iter().find(|denied| rule.action != Action::Deny && denied.contains(network))
    }
}

/// Whether `hosts` has all that `others` has.
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

/// Whether a pattern that covers a later one decides where the later one would. A "*" leaves the addresses of names that a rule
/// allowed, itself or before, to the networks of later rules.
fn decides(before: &[(usize, &Rule, &Pattern)], rule: &Rule, covering: &Pattern, later: &Pattern) -> bool {
    let leaves_addresses = |rule: &Rule, pattern: &Pattern| {
        rule.action == Action::Allow { private: false } && !matches!(pattern.hosts(), Hosts::Network(_))
    };
    let by_star = *covering.hosts() == Hosts::Any && matches!(later.hosts(), Hosts::Network(_));
    !by_star
        || !(leaves_addresses(rule, covering)
            || before.iter().any(|(_, rule, pattern)| leaves_addresses(rule, pattern)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which patterns are covered by which, in the rules of this text.
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
