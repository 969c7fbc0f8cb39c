//! Where tunnels may go. The one place that decides it, for the target as it was written before a token is spent, and for
//! every resolved address before it is dialled: a name that resolves to a private address is caught here, whatever it
//! resolved to a moment ago.

use crate::config::{Action, DIRECT, Egress, Hosts, Lever, Pattern, Ports, Rule};
use crate::next_hops::{NextHop, NextHops, Returned};
use ipnet::IpNet;
use own::OwnAddresses;
use postern_proxy::address::{forms, is_special};
use postern_proxy::target::{Host, Target};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) mod explain;
mod own;
#[cfg(test)]
mod tests;

/// The egress policy of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    private: bool,
    /// The machine's own addresses, unless they are allowed.
    own: Option<Arc<OwnAddresses>>,
    ports: Ports,
    deny: Vec<IpNet>,
    rules: Vec<Rule>,
    next_hops: NextHops,
    /// Targets that came back from one of them under this policy.
    returned: Arc<Returned>,
    /// The name of the next hop of all tunnels for which no rule has another.
    via: Option<String>,
    /// Local addresses of tunnels.
    source: Vec<IpAddr>,
    /// How many tunnels have taken a local address, for the next one's turn.
    turn: Arc<AtomicUsize>,
    lever: Lever,
}

/// Why a target is not allowed, and who could allow it. The sentences are shown to clients, and tell nothing of the rules.
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

/// There are local addresses for tunnels, and none is of the target's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSource;

/// Where a tunnel goes on through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Via<'a> {
    pub(crate) hop: &'a Arc<NextHop>,
    /// Local addresses for the connection to it.
    pub(crate) sources: &'a [IpAddr],
}

/// What decides about a target or an address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum By<'a> {
    /// A network of `deny`.
    Deny(&'a IpNet),
    /// The rule of this number, counted from 1, by this pattern of it.
    Rule(usize, &'a Pattern),
    /// `ports`.
    Ports,
    /// `private`.
    Private,
    /// `own`.
    Own,
    /// The name, which has no address anywhere.
    Nowhere,
    /// No rule, and none of these keys.
    Nothing,
}

/// Allowed by the one, or refused by the other.
type Decision<'a> = Result<By<'a>, By<'a>>;

/// What is decided about a name before it is resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OfName<'a> {
    /// It may be resolved, and its addresses are judged.
    Allowed(By<'a>),
    /// It is refused.
    Refused(By<'a>),
    /// It is refused unless it has an address that a rule with networks allows, one that stands before this.
    Open(By<'a>),
}

impl Policy {
    pub(crate) fn new(egress: &Egress) -> Self {
        Self::after(&NextHops::default(), egress)
    }

    /// One that follows another, whose next hops stay in use where they have not changed.
    pub(crate) fn after(next_hops: &NextHops, egress: &Egress) -> Self {
        Self {
            private: egress.private,
            own: (!egress.private && !egress.own).then(|| Arc::new(OwnAddresses::read())),
            ports: egress.ports.clone(),
            deny: egress.deny.clone(),
            rules: egress.rules.clone(),
            next_hops: NextHops::new(&egress.next_hops, next_hops),
            returned: Arc::default(),
            via: egress.via.clone(),
            source: egress.source.clone(),
            turn: Arc::default(),
            lever: egress.lever,
        }
    }

    /// What can be decided before a token is spent: a name and its port, and a literal address.
    pub(crate) fn check_target(&self, target: &Target) -> Result<(), PolicyRefusal> {
        match target.host() {
            Host::Address(address) => self.check_address(target, *address),
            Host::Name(name) => match self.of_name(name, target.port()) {
                OfName::Allowed(_) | OfName::Open(_) => Ok(()),
                OfName::Refused(by) => Err(self.refusal(by)),
            },
        }
    }

    /// The address that is about to be dialled for `target`. One that carries an IPv4 address is judged by both.
    pub(crate) fn check_address(&self, target: &Target, address: IpAddr) -> Result<(), PolicyRefusal> {
        let refused = forms(address).find_map(|form| self.of_address(target, form).err());
        refused.map_or(Ok(()), |by| Err(self.refusal(by)))
    }

    /// The turn of a tunnel, which chooses among local addresses.
    pub(crate) fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The local address for a tunnel to an address that was checked; none where the system chooses.
    pub(crate) fn source(
        &self,
        target: &Target,
        address: IpAddr,
        turn: usize,
    ) -> Result<Option<IpAddr>, NoSource> {
        choose(self.sources(target, address), address, turn)
    }

    /// Of the rule that decides about the address, or those of all tunnels.
    fn sources(&self, target: &Target, address: IpAddr) -> &[IpAddr] {
        self.deciding(target, address).map_or(&self.source, |rule| self.sources_of(rule))
    }

    fn sources_of<'a>(&'a self, rule: &'a Rule) -> &'a [IpAddr] {
        if rule.source.is_empty() { &self.source } else { &rule.source }
    }

    /// The rule that allows an address, if a rule does.
    fn deciding(&self, target: &Target, address: IpAddr) -> Option<&Rule> {
        match self.of_address(target, forms(address).next()?) {
            Ok(By::Rule(number, _)) => self.rules.get(number - 1),
            _ => None,
        }
    }

    /// The next hop that a name goes on to unresolved.
    pub(crate) fn via_of_name(&self, name: &str, port: u16) -> Option<Via<'_>> {
        if self.next_hops.is_empty() {
            return None;
        }
        match self.of_name(name, port) {
            OfName::Allowed(By::Rule(number, _)) => self.via_of(Some(self.rules.get(number - 1)?)),
            OfName::Allowed(By::Nothing) => self.via_of(None),
            _ => None,
        }
    }

    /// The next hop for an address that was checked.
    pub(crate) fn via(&self, target: &Target, address: IpAddr) -> Option<Via<'_>> {
        if self.next_hops.is_empty() {
            return None;
        }
        self.via_of(self.deciding(target, address))
    }

    /// The first of the addresses, and its next hop, if it has one.
    pub(crate) fn via_of_first(&self, target: &Target, addresses: &[IpAddr]) -> Option<(Via<'_>, IpAddr)> {
        let first = *addresses.first()?;
        Some((self.via(target, first)?, first))
    }

    /// Of what this rule decides, or no rule.
    fn via_of<'a>(&'a self, rule: Option<&'a Rule>) -> Option<Via<'a>> {
        let name = rule.and_then(|rule| rule.via.as_ref()).or(self.via.as_ref())?;
        let hop = self.next_hops.named(name).filter(|_| name != DIRECT)?;
        Some(Via { hop, sources: rule.map_or(&self.source, |rule| self.sources_of(rule)) })
    }

    /// The next hop of all tunnels for which no rule has another.
    pub(crate) fn via_of_all(&self) -> Option<&Arc<NextHop>> {
        self.via_of(None).map(|via| via.hop)
    }

    /// Whether a target is reached through [that](Self::via_of_all), or is one by which clients find out whether it would be.
    pub(crate) fn goes_through_that_of_all(&self, target: &Target) -> bool {
        let via = match target.host() {
            Host::Name(name) if is_nowhere(name) => self.via_of(None),
            Host::Name(name) => self.via_of_name(name, target.port()),
            Host::Address(address) => self.via(target, *address),
        };
        via.zip(self.via_of_all()).is_some_and(|(via, of_all)| Arc::ptr_eq(via.hop, of_all))
    }

    /// Targets whose tunnels came back.
    pub(crate) fn returned(&self) -> &Returned {
        &self.returned
    }

    /// All next hops.
    pub(crate) const fn next_hops(&self) -> &NextHops {
        &self.next_hops
    }

    /// The local addresses of tunnels for which no rule has others.
    pub(crate) fn source_of_all(&self) -> &[IpAddr] {
        &self.source
    }

    /// What the rules and `ports` say of a name.
    pub(crate) fn of_name(&self, name: &str, port: u16) -> OfName<'_> {
        if is_nowhere(name) {
            return OfName::Allowed(By::Nowhere);
        }
        let mut may_be_allowed = false;
        let refused = |by, open: bool| if open { OfName::Open(by) } else { OfName::Refused(by) };
        for (number, rule) in (1..).zip(&self.rules) {
            if let Some(pattern) = self.pattern(rule, port, |pattern| pattern.has_name(name)) {
                let by = By::Rule(number, pattern);
                return match rule.action {
                    Action::Allow { .. } => OfName::Allowed(by),
                    Action::Deny => refused(by, may_be_allowed),
                };
            }
            may_be_allowed |= rule.action != Action::Deny
                && self.pattern(rule, port, |pattern| matches!(pattern.hosts(), Hosts::Network(_))).is_some();
        }
        if self.ports.allow(port) { OfName::Allowed(By::Nothing) } else { refused(By::Ports, may_be_allowed) }
    }

    /// What the policy says of one form of an address, the target's own or one that its name resolved to.
    pub(crate) fn of_address(&self, target: &Target, form: IpAddr) -> Decision<'_> {
        if let Some(network) = self.deny.iter().find(|network| network.contains(&form)) {
            return Err(By::Deny(network));
        }
        let port = target.port();
        // The rule that allows the target as it was written, whose address is judged further.
        let mut allowed = None;
        for (number, rule) in (1..).zip(&self.rules) {
            if let Some(pattern) = self.pattern(rule, port, |pattern| pattern.has_address(form)) {
                let by = By::Rule(number, pattern);
                return if rule.action == Action::Deny { Err(by) } else { Ok(by) };
            }
            if allowed.is_some() {
                continue;
            }
            let Some(pattern) = self.pattern(rule, port, |pattern| names(pattern, target)) else { continue };
            let by = By::Rule(number, pattern);
            match rule.action {
                Action::Deny => return Err(by),
                Action::Allow { private: true } => return Ok(by),
                Action::Allow { private: false } => allowed = Some(by),
            }
        }
        if allowed.is_none() && !self.ports.allow(port) {
            return Err(By::Ports);
        }
        if !self.private && is_special(form) {
            return Err(By::Private);
        }
        if self.own.as_ref().is_some_and(|own| own.contains(form)) {
            return Err(By::Own);
        }
        Ok(allowed.unwrap_or(By::Nothing))
    }

    /// The first pattern of a rule that has the port and is `wanted`.
    fn pattern<'a>(
        &self,
        rule: &'a Rule,
        port: u16,
        wanted: impl Fn(&Pattern) -> bool,
    ) -> Option<&'a Pattern> {
        let has_port = |pattern: &Pattern| match (pattern.ports(), rule.action) {
            (Some(ports), _) => ports.contains(&port),
            (None, Action::Deny) => true,
            (None, Action::Allow { .. }) => self.ports.allow(port),
        };
        rule.patterns.iter().find(|pattern| wanted(pattern) && has_port(pattern))
    }

    fn refusal(&self, by: By<'_>) -> PolicyRefusal {
        match by {
            By::Ports => PolicyRefusal::Port(self.lever),
            By::Rule(_, pattern) if matches!(pattern.hosts(), Hosts::Network(_)) => {
                PolicyRefusal::Network(self.lever)
            }
            By::Rule(..) => PolicyRefusal::Target(self.lever),
            By::Deny(_) | By::Private | By::Own | By::Nowhere | By::Nothing => {
                PolicyRefusal::Address(self.lever)
            }
        }
    }
}

/// The local address whose turn it is for a connection to `address`; none where the system chooses.
pub(crate) fn choose(sources: &[IpAddr], address: IpAddr, turn: usize) -> Result<Option<IpAddr>, NoSource> {
    if sources.is_empty() {
        return Ok(None);
    }
    let is_v4 = address.to_canonical().is_ipv4();
    let fitting: Vec<IpAddr> = sources.iter().copied().filter(|own| own.is_ipv4() == is_v4).collect();
    let chosen = turn.checked_rem(fitting.len()).and_then(|at| fitting.get(at).copied());
    chosen.map(Some).ok_or(NoSource)
}

/// Names below "invalid" have no address (RFC 6761, section 6.4), so that there is nothing to refuse; agents ask for the
/// challenge with one, whatever the rules and ports are.
fn is_nowhere(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("invalid"))
}

/// Whether a pattern without a network is about the target as it was written.
fn names(pattern: &Pattern, target: &Target) -> bool {
    match target.host() {
        Host::Name(name) => pattern.has_name(name),
        Host::Address(_) => *pattern.hosts() == Hosts::Any,
    }
}
