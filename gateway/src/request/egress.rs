//! Where tunnels may go. The one place that decides it, for literal addresses before a token is spent and for every
//! resolved address before it is dialled: a name that resolves to a private address is caught here, whatever it
//! resolved to a moment ago.

use crate::config::{Egress, Lever, Ports};
use ipnet::IpNet;
use own::OwnAddresses;
use postern_proxy::address::{forms, is_special};
use postern_proxy::target::{Host, Target};
use std::net::IpAddr;
use std::sync::Arc;

mod own;

/// The egress policy of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    private: bool,
    /// The machine's own addresses, unless they are allowed.
    own: Option<Arc<OwnAddresses>>,
    ports: Ports,
    deny: Vec<IpNet>,
    lever: Lever,
}

/// Why a target is not allowed, and who could allow it. The sentences are shown to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyRefusal {
    #[error("this gateway does not open tunnels to this port")]
    Port(Lever),
    #[error("this gateway does not open tunnels to private, local or otherwise special addresses")]
    Address(Lever),
}

impl Policy {
    pub(crate) fn new(egress: &Egress) -> Self {
        Self {
            private: egress.private,
            own: (!egress.private && !egress.own).then(|| Arc::new(OwnAddresses::read())),
            ports: egress.ports.clone(),
            deny: egress.deny.clone(),
            lever: egress.lever,
        }
    }

    /// What can be decided before a token is spent: the port, and a literal address.
    pub(crate) fn check_target(&self, target: &Target) -> Result<(), PolicyRefusal> {
        if !self.ports.allow(target.port()) {
            return Err(PolicyRefusal::Port(self.lever));
        }
        match *target.host() {
            Host::Address(address) => self.check_address(address),
            Host::Name(_) => Ok(()),
        }
    }

    /// The address that is about to be dialled. One that carries an IPv4 address is judged by both.
    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), PolicyRefusal> {
        if forms(address).any(|address| self.refuses(address)) {
            Err(PolicyRefusal::Address(self.lever))
        } else {
            Ok(())
        }
    }

    fn refuses(&self, address: IpAddr) -> bool {
        self.deny.iter().any(|net| net.contains(&address))
            || (!self.private && is_special(address))
            || self.own.as_ref().is_some_and(|own| own.contains(address))
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
            assert_eq!(policy.check_address(address.parse().unwrap()), refused, "{address}");
        }
        assert_eq!(policy.check_address("1.2.3.5".parse().unwrap()), Ok(()));
        let allowing = Policy::new(&Egress { own: true, ..Egress::default() });
        assert!(allowing.own.is_none() && strict().own.is_some());
    }
}
