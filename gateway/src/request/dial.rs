//! The fifth stage: from a target to a connection. Every resolved address is checked against the egress policy, and
//! the address that was checked is the one that is dialled.

use crate::request::deny::Refusal;
use crate::request::egress::Policy;
use crate::request::resolve::Resolver;
use crate::request::spend::Spent;
use postern_proxy::dial::connect;
use postern_proxy::target::{Host, Target};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// A connection to the target of a spent token.
pub(crate) struct Dialled {
    pub(crate) stream: TcpStream,
    _spent: Spent,
}

impl Dialled {
    /// Resolves and connects, `limit` at most together.
    pub(crate) async fn dial(
        spent: Spent,
        policy: &Policy,
        resolver: &Resolver,
        limit: Duration,
    ) -> Result<Self, Refusal> {
        let deadline = Instant::now() + limit;
        let target = spent.target();
        let addresses = match target.host() {
            Host::Address(address) => vec![*address],
            Host::Name(name) => resolver.resolve(name, deadline).await?,
        };
        let allowed = allowed(target, addresses, policy)?;
        let candidates: Vec<SocketAddr> =
            allowed.into_iter().map(|address| SocketAddr::new(address, target.port())).collect();
        let connected = timeout_at(deadline, connect(candidates)).await.map_err(|_| Refusal::DialTimeout)?;
        let stream = connected.map_err(|error| refusal(&error))?;
        // Without it a small write waits for the acknowledgement of the previous one (up to 40 ms).
        stream.set_nodelay(true).map_err(|error| refusal(&error))?;
        Ok(Self { stream, _spent: spent })
    }
}

/// The addresses the policy lets through; when it lets none through, its refusal.
fn allowed(target: &Target, addresses: Vec<IpAddr>, policy: &Policy) -> Result<Vec<IpAddr>, Refusal> {
    let mut refused = None;
    let allowed: Vec<IpAddr> = addresses
        .into_iter()
        .filter(|&address| {
            policy.check_address(target, address).map_err(|refusal| refused = Some(refusal)).is_ok()
        })
        .collect();
    match (allowed.is_empty(), refused) {
        (false, _) => Ok(allowed),
        (true, Some(refusal)) => Err(Refusal::Policy(refusal)),
        (true, None) => Err(Refusal::Unresolved),
    }
}

fn refusal(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Refusal::ConnectionRefused,
        io::ErrorKind::TimedOut => Refusal::DialTimeout,
        _ => Refusal::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Egress;

    #[test]
    fn a_private_address_among_public_ones_is_left_out_and_alone_refused() {
        let policy = Policy::new(&Egress::default());
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let target = Target::parse("example.com:443", None).unwrap();
        let allowed = |texts: &[&str]| allowed(&target, ips(texts), &policy);
        assert_eq!(allowed(&["10.0.0.1", "1.1.1.1"]).unwrap(), ips(&["1.1.1.1"]));
        assert!(matches!(allowed(&["10.0.0.1"]), Err(Refusal::Policy(_))));
        assert!(matches!(allowed(&[]), Err(Refusal::Unresolved)));
    }

    #[test]
    fn each_way_in_which_connecting_fails_has_its_refusal() {
        let refused = |kind: io::ErrorKind| refusal(&kind.into());
        assert!(matches!(refused(io::ErrorKind::ConnectionRefused), Refusal::ConnectionRefused));
        assert!(matches!(refused(io::ErrorKind::ConnectionReset), Refusal::ConnectionRefused));
        assert!(matches!(refused(io::ErrorKind::TimedOut), Refusal::DialTimeout));
        assert!(matches!(refused(io::ErrorKind::HostUnreachable), Refusal::Unreachable));
    }
}
