//! Egress policy: the only place that decides where tunnels may go. It judges the target as written before a token is spent,
//! and every resolved address before it is dialled: a name that resolves to a private address is refused, whatever it resolved
//! to before.

use crate::config::{Action, DIRECT, Egress, Hosts, Lever, Pattern, Rule};
use crate::error::StartError;
use crate::next_hops::{NextHop, NextHops, Returned};
use ipnet::IpNet;
use own::OwnAddresses;
use postern_proxy::address::{forms, is_special};
use postern_proxy::target::{Host, Target, Transport};
use postern_proxy::udp::template::Template;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) mod explain;
mod own;
#[cfg(test)]
mod tests;

pub(crate) struct Policy {
    egress: Egress,
    /// Addresses of this machine; `None` if they are allowed.
    own: Option<OwnAddresses>,
    pub(crate) next_hops: NextHops,
    /// Targets whose tunnels came back from a next hop under this policy.
    pub(crate) returned: Returned,
    /// Paths at which UDP can be requested.
    pub(crate) udp_templates: Vec<Template>,
    /// Turn of the next tunnel, for rotation among local addresses.
    turn: AtomicUsize,
}

/// Reason why a target is not allowed, and the party that could allow it. Clients receive the sentences, which reveal nothing
/// about the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyRefusal {
    #[error("this gateway does not open tunnels to this port")]
    Port(Lever),
    #[error("this gateway does not open tunnels to private, local or otherwise special addresses")]
    Address(Lever),
    #[error("this gateway does not open tunnels to this target")]
    Target(Lever),
    #[error("this gateway does not open tunnels to this address")]
    Network(Lever),
}

/// None of the local addresses for tunnels has the target's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSource;

/// Next hop of a tunnel.
#[derive(Clone, Copy)]
pub(crate) struct Via<'a> {
    pub(crate) hop: &'a Arc<NextHop>,
    /// Local addresses for the connection to the next hop.
    pub(crate) sources: &'a [IpAddr],
}

/// Part of the policy that decides about a target or an address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum By<'a> {
    /// A network of `deny`.
    Deny(&'a IpNet),
    /// The rule with this number, counted from 1, by this pattern.
    Rule(usize, &'a Rule, &'a Pattern),
    Ports,
    Private,
    Own,
    /// A group of machines, each of which would get what one client sends.
    Multicast,
    /// The name itself, which has no address anywhere.
    Nowhere,
    /// No rule and no key.
    Nothing,
}

/// `Ok` with the part that allows, or `Err` with the part that refuses.
type Decision<'a> = Result<By<'a>, By<'a>>;

/// Decision about a name before it is resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OfName<'a> {
    /// The name may be resolved, and its addresses are judged.
    Allowed(By<'a>),
    Refused(By<'a>),
    /// The name is refused unless it has an address that an earlier rule with networks allows.
    Open(By<'a>),
}

impl Policy {
    pub(crate) fn new(egress: &Egress) -> Result<Self, StartError> {
        Self::after(&NextHops::default(), egress)
    }

    /// Builds the policy that follows another one, whose unchanged `next_hops` stay in use. Reads their certificates.
    pub(crate) fn after(next_hops: &NextHops, egress: &Egress) -> Result<Self, StartError> {
        let own_template = egress.udp_template.as_ref().map(|own| own.template.clone());
        Ok(Self {
            own: (!egress.private && !egress.own).then(OwnAddresses::read),
            next_hops: NextHops::new(&egress.next_hops, next_hops)?,
            udp_templates: [Template::default()].into_iter().chain(own_template).collect(),
            egress: egress.clone(),
            returned: Returned::default(),
            turn: AtomicUsize::default(),
        })
    }

    /// Decides as much as is possible before a token is spent: about a name and its port, or a literal address.
    pub(crate) fn check_target(&self, target: &Target) -> Result<(), PolicyRefusal> {
        match target.host() {
            Host::Address(address) => self.check_address(target, *address),
            Host::Name(name) => match self.of_name(name, target) {
                OfName::Allowed(_) | OfName::Open(_) => Ok(()),
                OfName::Refused(by) => Err(self.refusal(by)),
            },
        }
    }

    /// Decides about an address that is about to be dialled for `target`. An IPv6 address that carries an IPv4 address must be
    /// allowed as both.
    pub(crate) fn check_address(&self, target: &Target, address: IpAddr) -> Result<(), PolicyRefusal> {
        let refused = forms(address).find_map(|form| self.of_address(target, form).err());
        refused.map_or(Ok(()), |by| Err(self.refusal(by)))
    }

    /// Returns the turn of a new tunnel, which selects one of the local addresses.
    pub(crate) fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the local address for a tunnel to a checked address; `None` if the system chooses.
    pub(crate) fn source(
        &self,
        target: &Target,
        address: IpAddr,
        turn: usize,
    ) -> Result<Option<IpAddr>, NoSource> {
        choose(self.sources(target, address), address, turn)
    }

    /// Returns the local addresses of the rule that decides about the address, or those of all tunnels.
    fn sources(&self, target: &Target, address: IpAddr) -> &[IpAddr] {
        self.deciding(target, address).map_or(&self.egress.source, |rule| self.sources_of(rule))
    }

    fn sources_of<'a>(&'a self, rule: &'a Rule) -> &'a [IpAddr] {
        if rule.source.is_empty() { &self.egress.source } else { &rule.source }
    }

    /// Returns the rule that allows an address, if any.
    fn deciding(&self, target: &Target, address: IpAddr) -> Option<&Rule> {
        match self.of_address(target, forms(address).next()?) {
            Ok(By::Rule(_, rule, _)) => Some(rule),
            _ => None,
        }
    }

    /// Returns the next hop that receives a name unresolved.
    pub(crate) fn via_of_name(&self, name: &str, target: &Target) -> Option<Via<'_>> {
        if self.next_hops.0.is_empty() {
            return None;
        }
        match self.of_name(name, target) {
            OfName::Allowed(By::Rule(_, rule, _)) => self.via_of(Some(rule)),
            OfName::Allowed(By::Nothing) => self.via_of(None),
            _ => None,
        }
    }

    /// Returns the next hop for a checked address.
    pub(crate) fn via(&self, target: &Target, address: IpAddr) -> Option<Via<'_>> {
        if self.next_hops.0.is_empty() {
            return None;
        }
        self.via_of(self.deciding(target, address))
    }

    /// Returns the next hop of a target, as far as it is known before a lookup.
    pub(crate) fn via_before_lookup(&self, target: &Target) -> Option<Via<'_>> {
        match target.host() {
            Host::Name(name) => self.via_of_name(name, target),
            Host::Address(address) => self.via(target, *address),
        }
    }

    /// Returns the next hop of the first address, and this address.
    pub(crate) fn via_of_first(&self, target: &Target, addresses: &[IpAddr]) -> Option<(Via<'_>, IpAddr)> {
        let first = *addresses.first()?;
        Some((self.via(target, first)?, first))
    }

    /// Returns the next hop of this rule, or that of all tunnels if it has none.
    fn via_of<'a>(&'a self, rule: Option<&'a Rule>) -> Option<Via<'a>> {
        let name = rule.and_then(|rule| rule.via.as_ref()).or(self.egress.via.as_ref())?;
        let hop = self.next_hops.named(name).filter(|_| name != DIRECT)?;
        Some(Via { hop, sources: rule.map_or(&self.egress.source, |rule| self.sources_of(rule)) })
    }

    /// Returns the next hop of tunnels whose rule selects none.
    pub(crate) fn via_of_all(&self) -> Option<&Arc<NextHop>> {
        self.via_of(None).map(|via| via.hop)
    }

    /// Returns `true` if a target is reached through the [next hop of all](Self::via_of_all), or is a name below "invalid",
    /// with which clients probe the gateway.
    pub(crate) fn goes_through_that_of_all(&self, target: &Target) -> bool {
        let via = match target.host() {
            Host::Name(name) if is_nowhere(name) => self.via_of(None),
            _ => self.via_before_lookup(target),
        };
        via.zip(self.via_of_all()).is_some_and(|(via, of_all)| Arc::ptr_eq(via.hop, of_all))
    }

    pub(crate) fn source_of_all(&self) -> &[IpAddr] {
        &self.egress.source
    }

    /// Returns `true` if `ports`, or `udp` for UDP, allow the target's port.
    fn allows_port(&self, target: &Target) -> bool {
        match target.transport() {
            Transport::Tcp => self.egress.ports.allow(target.port()),
            Transport::Udp => self.egress.udp.allow(target.port()),
        }
    }

    /// Returns `true` for UDP to a port that `udp` does not allow. No rule can allow it: rules are written for TCP.
    fn is_closed(&self, target: &Target) -> bool {
        target.transport() == Transport::Udp && !self.allows_port(target)
    }

    /// Applies the rules and `ports` to a name.
    pub(crate) fn of_name(&self, name: &str, target: &Target) -> OfName<'_> {
        if self.is_closed(target) {
            return OfName::Refused(By::Ports);
        }
        if is_nowhere(name) {
            return OfName::Allowed(By::Nowhere);
        }
        let mut may_be_allowed = false;
        let refused = |by, open: bool| if open { OfName::Open(by) } else { OfName::Refused(by) };
        for (number, rule) in (1..).zip(&self.egress.rules) {
            if let Some(pattern) = self.pattern(rule, target, |pattern| pattern.has_name(name)) {
                let by = By::Rule(number, rule, pattern);
                return match rule.action {
                    Action::Allow { .. } => OfName::Allowed(by),
                    Action::Deny => refused(by, may_be_allowed),
                };
            }
            may_be_allowed |= rule.action != Action::Deny
                && self.pattern(rule, target, |pattern| matches!(pattern.hosts, Hosts::Network(_))).is_some();
        }
        if self.allows_port(target) {
            OfName::Allowed(By::Nothing)
        } else {
            refused(By::Ports, may_be_allowed)
        }
    }

    /// Applies the policy to one form of an address, the target itself or one to which its name resolved.
    pub(crate) fn of_address(&self, target: &Target, form: IpAddr) -> Decision<'_> {
        if let Some(network) = self.egress.deny.iter().find(|network| network.contains(&form)) {
            return Err(By::Deny(network));
        }
        if self.is_closed(target) {
            return Err(By::Ports);
        }
        if form.is_multicast() {
            return Err(By::Multicast);
        }
        // The rule that allows the target as written. Its address is still judged.
        let mut allowed = None;
        for (number, rule) in (1..).zip(&self.egress.rules) {
            if let Some(pattern) = self.pattern(rule, target, |pattern| pattern.has_address(form)) {
                let by = By::Rule(number, rule, pattern);
                return if rule.action == Action::Deny { Err(by) } else { Ok(by) };
            }
            if allowed.is_some() {
                continue;
            }
            let Some(pattern) = self.pattern(rule, target, |pattern| names(pattern, target)) else {
                continue;
            };
            let by = By::Rule(number, rule, pattern);
            match rule.action {
                Action::Deny => return Err(by),
                Action::Allow { private: true } => return Ok(by),
                Action::Allow { private: false } => allowed = Some(by),
            }
        }
        if allowed.is_none() && !self.allows_port(target) {
            return Err(By::Ports);
        }
        if !self.egress.private && is_special(form) {
            return Err(By::Private);
        }
        if self.own.as_ref().is_some_and(|own| own.contains(form)) {
            return Err(By::Own);
        }
        Ok(allowed.unwrap_or(By::Nothing))
    }

    /// Returns the first pattern of a rule that is `wanted` and has the port.
    fn pattern<'a>(
        &self,
        rule: &'a Rule,
        target: &Target,
        wanted: impl Fn(&Pattern) -> bool,
    ) -> Option<&'a Pattern> {
        let has_port = |pattern: &Pattern| match (&pattern.ports, rule.action) {
            (Some(ports), _) => ports.contains(&target.port()),
            (None, Action::Deny) => true,
            (None, Action::Allow { .. }) => self.allows_port(target),
        };
        rule.patterns.iter().find(|pattern| wanted(pattern) && has_port(pattern))
    }

    fn refusal(&self, by: By<'_>) -> PolicyRefusal {
        let reason: fn(Lever) -> PolicyRefusal = match by {
            By::Ports => PolicyRefusal::Port,
            By::Rule(_, _, pattern) if matches!(pattern.hosts, Hosts::Network(_)) => PolicyRefusal::Network,
            By::Rule(..) => PolicyRefusal::Target,
            By::Deny(_) | By::Private | By::Own | By::Multicast | By::Nowhere | By::Nothing => {
                PolicyRefusal::Address
            }
        };
        reason(self.egress.lever)
    }
}

/// Returns the local address of this `turn` for a connection to `address`; `None` if the system chooses.
pub(crate) fn choose(sources: &[IpAddr], address: IpAddr, turn: usize) -> Result<Option<IpAddr>, NoSource> {
    if sources.is_empty() {
        return Ok(None);
    }
    let is_v4 = address.to_canonical().is_ipv4();
    let fitting: Vec<IpAddr> = sources.iter().copied().filter(|own| own.is_ipv4() == is_v4).collect();
    let chosen = turn.checked_rem(fitting.len()).and_then(|at| fitting.get(at).copied());
    chosen.map(Some).ok_or(NoSource)
}

/// Returns `true` for a name below "invalid", which has no address (RFC 6761, section 6.4), so there is nothing to refuse.
/// Agents request the challenge with such a name, whatever the rules and ports are.
fn is_nowhere(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("invalid"))
}

/// Returns `true` if a pattern without a network matches the target as written.
fn names(pattern: &Pattern, target: &Target) -> bool {
    match target.host() {
        Host::Name(name) => pattern.has_name(name),
        Host::Address(_) => pattern.hosts == Hosts::Any,
    }
}
