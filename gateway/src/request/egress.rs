//! Where tunnels may go. The one place that decides it, for names and literal addresses before a token is spent and for every
//! resolved address before it is dialled: a name that resolves to a private address is caught here, whatever it
//! resolved to a moment ago.

use crate::config::{Egress, Lever, Place, Ports, Rule};
use ipnet::IpNet;
use own::OwnAddresses;
use postern_proxy::address::{forms, is_special};
use postern_proxy::target::{Host, Target};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

pub(crate) mod explain;
mod own;

/// The egress policy of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    private: bool,
    /// The machine's own addresses, unless they are allowed.
    own: Option<Arc<OwnAddresses>>,
    ports: Ports,
    deny: Vec<IpNet>,
    rules: Vec<Rule>,
    lever: Lever,
}

/// Why a target is not allowed, and who could allow it. The sentences are shown to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyRefusal {
    #[error("this gateway does not open tunnels to this port")]
    Port(Lever),
    #[error("this gateway does not open tunnels to private, local or otherwise special addresses")]
    Address(Lever),
    #[error("this gateway does not open tunnels to this target")]
    Target(Lever),
}

/// What of the configuration decides about a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decider {
    /// `deny`.
    Network,
    /// A rule, counted from 0.
    Rule(usize),
    /// `ports`.
    Ports,
    /// `private`, and the rule that allows the name, if one does.
    Private(Option<usize>),
    /// `own`, as before.
    Own(Option<usize>),
    /// Nothing speaks against it.
    Nothing,
}

/// Who decides, and what.
type Decision = (Decider, Result<(), PolicyRefusal>);

impl Policy {
    pub(crate) fn new(egress: &Egress) -> Self {
        let may_be_own = egress.private || egress.own;
        Self {
            private: egress.private,
            own: (!may_be_own).then(|| Arc::new(OwnAddresses::read())),
            ports: egress.ports.clone(),
            deny: egress.deny.clone(),
            rules: egress.rules.clone(),
            lever: egress.lever,
        }
    }

    /// What can be decided before a token is spent: a literal address, and a name as far as its addresses have no part in it.
    pub(crate) fn check_target(&self, target: &Target) -> Result<(), PolicyRefusal> {
        match target.host() {
            Host::Address(address) => self.check_address(target, *address),
            Host::Name(name) => {
                self.decide_name(name, target.port()).map_or(Ok(()), |(_, decision)| decision)
            }
        }
    }

    /// The address that is about to be dialled for a target. One that carries an IPv4 address is judged by both.
    pub(crate) fn check_address(&self, target: &Target, address: IpAddr) -> Result<(), PolicyRefusal> {
        self.decide_address(target, address).1
    }

    /// `None` where that depends on the name's addresses.
    fn decide_name(&self, name: &str, port: u16) -> Option<Decision> {
        if is_nowhere(name) {
            return Some((Decider::Nothing, Ok(())));
        }
        // Whether a rule before may allow an address that the name has.
        let mut may_be_allowed = false;
        for (index, rule) in self.rules.iter().enumerate() {
            let (patterns, is_allowed) = rule.patterns();
            let at_port =
                patterns.iter().filter(|pattern| self.has_port(pattern.ports.as_ref(), is_allowed, port));
            for pattern in at_port {
                match &pattern.place {
                    Place::Net(_) => may_be_allowed |= is_allowed,
                    place if !is_at(place, Some(name), None) => {}
                    _ if is_allowed => return None, // its addresses are judged
                    _ if may_be_allowed => return None,
                    _ => return Some((Decider::Rule(index), Err(PolicyRefusal::Target(self.lever)))),
                }
            }
        }
        let refused = !self.ports.allow(port) && !may_be_allowed;
        refused.then_some((Decider::Ports, Err(PolicyRefusal::Port(self.lever))))
    }

    fn decide_address(&self, target: &Target, address: IpAddr) -> Decision {
        let mut decision = (Decider::Nothing, Ok(()));
        for form in forms(address) {
            decision = self.decide_form(target, form);
            if decision.1.is_err() {
                break;
            }
        }
        decision
    }

    fn decide_form(&self, target: &Target, address: IpAddr) -> Decision {
        let (lever, port) = (self.lever, target.port());
        if self.deny.iter().any(|net| net.contains(&address)) {
            return (Decider::Network, Err(PolicyRefusal::Address(lever)));
        }
        let name = match target.host() {
            Host::Name(name) => Some(&**name),
            Host::Address(_) => None,
        };
        let Some((index, rule, is_network)) = self.rule_for(name, address, port) else {
            if !self.ports.allow(port) {
                return (Decider::Ports, Err(PolicyRefusal::Port(lever)));
            }
            return self.decide_private(address, None);
        };
        match rule.patterns() {
            (_, false) => (Decider::Rule(index), Err(PolicyRefusal::Target(lever))),
            _ if is_network || rule.private => (Decider::Rule(index), Ok(())),
            _ => self.decide_private(address, Some(index)),
        }
    }

    /// The first rule that matches, and whether it does so by a network.
    fn rule_for(&self, name: Option<&str>, address: IpAddr, port: u16) -> Option<(usize, &Rule, bool)> {
        self.rules.iter().enumerate().find_map(|(index, rule)| {
            let (patterns, is_allowed) = rule.patterns();
            let mut matching = patterns.iter().filter(|pattern| {
                self.has_port(pattern.ports.as_ref(), is_allowed, port)
                    && is_at(&pattern.place, name, Some(address))
            });
            let first = matching.next()?;
            let is_network = |place: &Place| matches!(place, Place::Net(_));
            let by_network = is_network(&first.place) || matching.any(|pattern| is_network(&pattern.place));
            Some((index, rule, by_network))
        })
    }

    fn decide_private(&self, address: IpAddr, allowed_by: Option<usize>) -> Decision {
        let refused = Err(PolicyRefusal::Address(self.lever));
        if !self.private && is_special(address) {
            (Decider::Private(allowed_by), refused)
        } else if self.own.as_ref().is_some_and(|own| own.contains(address)) {
            (Decider::Own(allowed_by), refused)
        } else {
            (allowed_by.map_or(Decider::Nothing, Decider::Rule), Ok(()))
        }
    }

    /// Whether a pattern's ports have this one.
    fn has_port(&self, ports: Option<&RangeInclusive<u16>>, is_allowed: bool, port: u16) -> bool {
        match ports {
            Some(ports) => ports.contains(&port),
            None => !is_allowed || self.ports.allow(port),
        }
    }
}

/// Names below "invalid" have no addresses (RFC 6761, section 6.4), so that there is nothing to refuse; agents ask for the
/// challenge with one.
fn is_nowhere(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("invalid"))
}

fn is_at(place: &Place, name: Option<&str>, address: Option<IpAddr>) -> bool {
    match place {
        Place::Any => true,
        Place::Name(listed) => name.is_some_and(|name| name.eq_ignore_ascii_case(listed)),
        Place::Below(suffix) => name.is_some_and(|name| {
            let start = name.len().checked_sub(suffix.len()).filter(|start| *start > 0);
            start.and_then(|start| name.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
        }),
        Place::Net(net) => address.is_some_and(|address| net.contains(&address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict() -> Policy {
        Policy::new(&Egress::default())
    }

    #[test]
    fn ports_and_networks_follow_the_configuration() {
        let target = |text: &str| Target::parse(text, None).unwrap();
        assert_eq!(
            strict().check_target(&target("example.com:22")),
            Err(PolicyRefusal::Port(Lever::Operator))
        );
        assert_eq!(strict().check_target(&target("example.com:443")), Ok(()));
        assert_eq!(
            strict().check_target(&target("127.0.0.1:443")),
            Err(PolicyRefusal::Address(Lever::Operator))
        );
        assert_eq!(
            strict().check_target(&target("[64:ff9b::7f00:1]:443")),
            Err(PolicyRefusal::Address(Lever::Operator))
        );
        let deny = vec!["1.1.1.0/24".parse().unwrap()];
        let open = Policy::new(&Egress { private: true, ports: Ports::Any, deny, ..Egress::default() });
        assert_eq!(open.check_target(&target("127.0.0.1:22")), Ok(()));
        for denied in ["1.1.1.1:443", "[64:ff9b::101:101]:443", "[2a00::5efe:101:101]:443"] {
            assert_eq!(open.check_target(&target(denied)), Err(PolicyRefusal::Address(Lever::Operator)));
        }
    }

    #[test]
    fn the_machines_own_addresses_are_refused_unless_they_are_allowed() {
        let own = "1.2.3.4".parse().unwrap();
        let policy = Policy { own: Some(Arc::new(OwnAddresses::these(vec![own]))), ..strict() };
        let refused = Err(PolicyRefusal::Address(Lever::Operator));
        for address in ["1.2.3.4", "::ffff:1.2.3.4", "64:ff9b::102:304"] {
            let target = Target::parse("name.example:443", None).unwrap();
            assert_eq!(policy.check_address(&target, address.parse().unwrap()), refused, "{address}");
        }
        assert_eq!(policy.check_target(&Target::parse("1.2.3.5:443", None).unwrap()), Ok(()));
        let allowing = Policy::new(&Egress { own: true, ..Egress::default() });
        assert!(allowing.own.is_none() && strict().own.is_some());
    }

    /// The decision before a token is spent, and that for an address.
    fn decisions(policy: &Policy, target: &str, address: &str) -> [Result<(), PolicyRefusal>; 2] {
        let target = Target::parse(target, None).unwrap();
        [policy.check_target(&target), policy.check_address(&target, address.parse().unwrap())]
    }

    fn ruled(rules: &[(&str, &str)]) -> Policy {
        let rule = |(kind, pattern): &(&str, &str)| {
            let (kind, private) = kind.split_once(' ').map_or((*kind, false), |(kind, _)| (kind, true));
            serde_json::from_value(serde_json::json!({ kind: [pattern], "private": private })).unwrap()
        };
        Policy::new(&Egress { own: true, rules: rules.iter().map(rule).collect(), ..Egress::default() })
    }

    const HERE: &str = "1.1.1.1";
    const OK: Result<(), PolicyRefusal> = Ok(());
    const TARGET: Result<(), PolicyRefusal> = Err(PolicyRefusal::Target(Lever::Operator));
    const ADDRESS: Result<(), PolicyRefusal> = Err(PolicyRefusal::Address(Lever::Operator));
    const PORT: Result<(), PolicyRefusal> = Err(PolicyRefusal::Port(Lever::Operator));

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy =
            ruled(&[("deny", "bad.example.org"), ("allow", "*.example.org:8000-8999"), ("deny", "*:25")]);
        for (target, expected) in [
            ("bad.example.org:443", [TARGET, TARGET]),
            ("Bad.Example.Org:8000", [TARGET, TARGET]),
            ("a.example.org:8000", [OK, OK]),
            ("a.b.example.org:8999", [OK, OK]),
            ("example.org:8000", [PORT, PORT]),
            ("notexample.org:8000", [PORT, PORT]),
            ("a.example.org:9000", [PORT, PORT]),
            ("a.example.org:443", [OK, OK]),
            ("a.example.org:25", [TARGET, TARGET]),
        ] {
            assert_eq!(decisions(&policy, target, HERE), expected, "{target}");
        }
    }

    #[test]
    fn a_list_of_what_may_be_reached_ends_with_a_rule_that_denies_all() {
        let policy = ruled(&[("allow", "b.example:443"), ("allow", "192.0.2.0/24:4433"), ("deny", "*")]);
        assert_eq!(decisions(&policy, "b.example:443", HERE), [OK, OK]);
        assert_eq!(decisions(&policy, "b.example:80", HERE), [TARGET, TARGET]);
        assert_eq!(decisions(&policy, "c.example:443", HERE), [TARGET, TARGET]);
        assert_eq!(decisions(&policy, "c.example:4433", HERE), [OK, TARGET], "its addresses decide");
        assert_eq!(decisions(&policy, "c.example:4433", "192.0.2.7"), [OK, OK]);
        assert_eq!(decisions(&policy, "192.0.2.7:4433", "192.0.2.7"), [OK, OK]);
        assert_eq!(decisions(&policy, "1.1.1.1:443", HERE), [TARGET, TARGET]);
        assert_eq!(
            decisions(&policy, "challenge.invalid:443", HERE)[0],
            OK,
            "agents ask for the challenge by it"
        );
    }

    #[test]
    fn names_that_are_allowed_do_not_lead_to_private_addresses_and_networks_do() {
        let by_name = ruled(&[("allow", "db.example:5432")]);
        assert_eq!(decisions(&by_name, "db.example:5432", "10.0.0.5"), [OK, ADDRESS]);
        assert_eq!(decisions(&by_name, "db.example:5432", HERE), [OK, OK]);
        let trusted = ruled(&[("allow private", "db.example:5432")]);
        assert_eq!(decisions(&trusted, "db.example:5432", "10.0.0.5"), [OK, OK]);
        let by_net = ruled(&[("allow", "10.0.0.0/8:5432")]);
        assert_eq!(decisions(&by_net, "db.example:5432", "10.0.0.5"), [OK, OK]);
        assert_eq!(decisions(&by_net, "db.example:5432", "192.168.0.5"), [OK, PORT]);
        assert_eq!(decisions(&by_net, "10.0.0.5:5432", "10.0.0.5"), [OK, OK]);
        assert_eq!(decisions(&by_net, "10.0.0.5:443", "10.0.0.5"), [ADDRESS, ADDRESS]);
        // The IPv6 address that carries one of them is special itself.
        assert_eq!(decisions(&by_net, "[64:ff9b::a00:5]:5432", "64:ff9b::a00:5"), [PORT, PORT]);
    }

    #[test]
    fn networks_of_deny_go_before_every_rule() {
        let rules = vec![serde_json::from_value(serde_json::json!({ "allow": ["*:*"] })).unwrap()];
        let deny = vec!["1.1.1.0/24".parse().unwrap()];
        let policy = Policy::new(&Egress { own: true, rules, deny, ..Egress::default() });
        assert_eq!(decisions(&policy, "name.example:22", "1.1.1.1"), [OK, ADDRESS]);
        assert_eq!(decisions(&policy, "name.example:22", "1.1.2.1"), [OK, OK]);
        assert_eq!(decisions(&policy, "10.0.0.1:22", "10.0.0.1"), [ADDRESS, ADDRESS]);
    }
}
