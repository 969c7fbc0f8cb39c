//! Fifth stage: connects to the target. Every resolved address is checked against the egress policy, and exactly the checked
//! address is dialled.

use crate::next_hops::{Connections, Dialler};
use crate::request::deny::Refusal;
use crate::request::egress::{Policy, Via};
use crate::request::hops::Pseudonym;
use crate::request::peer::Entrusted;
use crate::request::resolve::Resolver;
use crate::request::spend::Spent;
use postern_daemon::seldom::Seldom;
use postern_net::Families;
use postern_net::dial::{Candidate, connect_found};
use postern_proxy::target::{Host, Target, Transport};
use postern_proxy::tunnel::{Received, Tunnel};
use postern_proxy::udp::socket::Datagrams;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::either::Either;

mod next_hop;

/// The right to one tunnel to one target: by a spent token, or by another of the operator's gateways, which took the token.
pub(crate) enum Admitted {
    Paid(Spent),
    Entrusted(Entrusted),
}

impl Admitted {
    pub(crate) fn target(&self) -> &Target {
        match self {
            Self::Paid(spent) => spent.target(),
            Self::Entrusted(entrusted) => entrusted.target(),
        }
    }
}

/// A connection to the target, or a tunnel to it through a next hop.
type TargetStream = Either<TcpStream, Box<Tunnel>>;

/// A connection to the target of an admitted request.
pub(crate) struct Dialled<C = TargetStream> {
    pub(crate) connection: C,
    _admitted: Admitted,
}

/// A connection in the protocol of the target.
pub(crate) enum Connected {
    Stream(Dialled),
    Datagrams(Dialled<Datagrams>),
    /// Capsules with datagrams to a next hop, which has the socket.
    Capsules(Dialled<Box<Tunnel>>),
}

/// Means to reach targets.
#[derive(Clone, Copy)]
pub(crate) struct Onward<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) resolver: &'a Resolver,
    pub(crate) connections: &'a Connections,
    pub(crate) pseudonym: &'a Pseudonym,
    /// Selects among local addresses.
    pub(crate) turn: usize,
    pub(crate) deadline: Instant,
}

impl Connected {
    /// Resolves and connects.
    pub(crate) async fn dial(admitted: Admitted, onward: Onward<'_>) -> Result<Self, Refusal> {
        if admitted.target().transport() == Transport::Udp {
            // Boxed: most tunnels are of TCP, and should not move the size of this future.
            return Ok(match Box::pin(onward.connect_datagrams(&admitted)).await? {
                Either::Left(connection) => Self::Datagrams(Dialled { connection, _admitted: admitted }),
                Either::Right(connection) => Self::Capsules(Dialled { connection, _admitted: admitted }),
            });
        }
        let connection = onward.connect(&admitted).await?;
        Ok(Self::Stream(Dialled { connection, _admitted: admitted }))
    }
}

impl Dialled {
    /// Returns the receiving side that the task of the stream must keep taking, so the tunnel stops no other one of its
    /// connection.
    pub(crate) fn received(&self) -> Received {
        match &self.connection {
            Either::Left(_) => Received::default(),
            Either::Right(tunnel) => tunnel.received(),
        }
    }
}

impl<'a> Onward<'a> {
    async fn connect(&self, admitted: &Admitted) -> Result<TargetStream, Refusal> {
        let target = admitted.target();
        let (first, families) = match self.find(target).await? {
            (Way::Through(via, target), _) => {
                return self.open_through(via, &target, admitted).await.map(Either::Right);
            }
            (Way::Direct(first), families) => (first, families),
        };
        let has_source = first.iter().any(|candidate| candidate.from.is_some());
        let later = |late: Vec<IpAddr>| self.late_candidates(target, &late);
        let connecting = timeout_at(self.deadline, connect_found(first, families, self.deadline, later));
        let connected = connecting.await.map_err(|_| Refusal::DialTimeout)?;
        let stream = connected.map_err(|error| not_connected(&error, has_source))?;
        // Without TCP_NODELAY a small write waits for the acknowledgement of the previous one (up to 40 ms).
        stream.set_nodelay(true).map_err(|error| refusal(&error))?;
        Ok(Either::Left(stream))
    }

    /// Resolves a target of UDP and connects a socket to the first of its allowed addresses to which this machine has a route:
    /// nothing answers before the client's first datagram. Through a next hop, which does this instead, it opens a tunnel.
    async fn connect_datagrams(
        &self,
        admitted: &Admitted,
    ) -> Result<Either<Datagrams, Box<Tunnel>>, Refusal> {
        let target = admitted.target();
        let (first, mut families) = match self.find(target).await? {
            (Way::Through(via, target), _) => {
                return self.open_through(via, &target, admitted).await.map(Either::Right);
            }
            (Way::Direct(first), families) => (first, families),
        };
        let has_source = first.iter().any(|candidate| candidate.from.is_some());
        let mut connected = first_of(&first);
        if connected.is_err() && !families.are_complete() {
            let late = timeout_at(self.deadline, families.rest()).await.unwrap_or_default();
            let later = self.late_candidates(target, &late);
            if !later.is_empty() {
                connected = first_of(&later);
            }
        }
        connected.map(Either::Left).map_err(|error| not_connected(&error, has_source))
    }

    /// Looks the target up, unless a next hop does. Returns the addresses that are still being looked up, too.
    async fn find(&self, target: &'a Target) -> Result<(Way<'a>, Families<'a, IpAddr>), Refusal> {
        let judge = |addresses: &[IpAddr]| Way::judge(target, addresses, self.policy, self.turn);
        let no_more = |way| (way, Families::known(Vec::new()));
        let found = match target.host() {
            Host::Address(address) => judge(&[*address]).map(no_more),
            Host::Name(name) => match self.policy.via_of_name(name, target) {
                Some(via) => Ok(no_more(Way::Through(via, target.clone()))),
                None => self.resolver.resolve(name, self.deadline, judge).await,
            },
        };
        if matches!(found, Err(Refusal::NoSource)) {
            warn_of_source("it has no address of the target's family");
        }
        found
    }

    /// Opens a tunnel through a next hop, which receives the list of the gateways before it.
    async fn open_through(
        &self,
        via: Via<'_>,
        target: &Target,
        admitted: &Admitted,
    ) -> Result<Box<Tunnel>, Refusal> {
        let hops = match admitted {
            Admitted::Paid(_) => self.pseudonym.first(),
            Admitted::Entrusted(entrusted) => entrusted.hops.clone(),
        };
        let dialler = Dialler { resolver: self.resolver, sources: via.sources, turn: self.turn };
        // Boxed: most tunnels have no next hop, and should not move the size of this future.
        let connecting = next_hop::connect(via, target, &hops, dialler, self.connections, self.deadline);
        let tunnel = Box::pin(connecting).await.inspect_err(|refusal| {
            if matches!(refusal, Refusal::Loop) {
                self.policy.returned.note(target, Instant::now());
            }
        })?;
        Ok(Box::new(tunnel))
    }

    /// Returns the addresses to dial among those that were found late; none if the policy allows none.
    fn late_candidates(&self, target: &Target, late: &[IpAddr]) -> Vec<Candidate> {
        let allowed = allowed(target, late, self.policy).unwrap_or_default();
        candidates(target, &allowed, self.policy, self.turn)
    }
}

/// Connects to the first candidate to which this machine has a route, and sends nothing.
fn first_of(candidates: &[Candidate]) -> io::Result<Datagrams> {
    let mut last_error = io::ErrorKind::NotFound.into();
    for candidate in candidates {
        match Datagrams::connect(candidate.to, candidate.from) {
            Ok(connected) => return Ok(connected),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Route to a target.
enum Way<'a> {
    Direct(Vec<Candidate>),
    /// Through a next hop, to the target by its name or by an address of it.
    Through(Via<'a>, Target),
}

impl<'a> Way<'a> {
    /// Decides about known addresses.
    fn judge(
        target: &Target,
        addresses: &[IpAddr],
        policy: &'a Policy,
        turn: usize,
    ) -> Result<Self, Refusal> {
        let allowed = allowed(target, addresses, policy)?;
        if let Some((via, address)) = policy.via_of_first(target, &allowed) {
            let of_address = Target::new(Host::Address(address), target.port()).map_err(Refusal::Target)?;
            return Ok(Self::Through(via, of_address.over(target.transport())));
        }
        let candidates = candidates(target, &allowed, policy, turn);
        if candidates.is_empty() { Err(Refusal::NoSource) } else { Ok(Self::Direct(candidates)) }
    }
}

/// Returns the addresses that the policy allows, or its refusal if it allows none.
fn allowed(target: &Target, addresses: &[IpAddr], policy: &Policy) -> Result<Vec<IpAddr>, Refusal> {
    let mut refused = None;
    let check = |address: &&IpAddr| {
        policy.check_address(target, **address).map_err(|refusal| refused = Some(refusal)).is_ok()
    };
    let allowed: Vec<IpAddr> = addresses.iter().filter(check).copied().collect();
    match (allowed.is_empty(), refused) {
        (false, _) => Ok(allowed),
        (true, Some(refusal)) => Err(Refusal::Policy(refusal)),
        (true, None) => Err(Refusal::Unresolved),
    }
}

/// Returns the addresses to dial, each with its local address. Omits addresses of a family without a local address, and
/// addresses behind a next hop: an address that is reached directly came first.
fn candidates(target: &Target, allowed: &[IpAddr], policy: &Policy, turn: usize) -> Vec<Candidate> {
    let candidate = |address: &IpAddr| {
        if policy.via(target, *address).is_some() {
            return None;
        }
        let from = policy.source(target, *address, turn).ok()?;
        // A socket with a local IPv4 address connects only to IPv4; without a local address the form stays unchanged.
        let address = if from.is_some() { address.to_canonical() } else { *address };
        Some(Candidate { to: SocketAddr::new(address, target.port()), from })
    };
    allowed.iter().filter_map(candidate).collect()
}

/// Returns the refusal for a failed connection; `has_source` is `true` if a local address was configured for it.
fn not_connected(error: &io::Error, has_source: bool) -> Refusal {
    if has_source && error.kind() == io::ErrorKind::AddrNotAvailable {
        warn_of_source("an address in it is none of this machine's, or all of its ports are in use");
        return Refusal::NoSource;
    }
    refusal(error)
}

/// Warns the operator, at most once a minute, without the target.
fn warn_of_source(reason: &str) {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(60));
    if REPORTED.due(std::time::Instant::now()).is_some() {
        tracing::warn!("a tunnel was refused (502) because of egress.source: {reason}");
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
    fn each_address_is_dialled_from_one_of_its_family_in_turn() {
        let policy =
            |text: &str| Policy::new(&postern_config::parse("egress.toml", text, []).unwrap()).unwrap();
        let dialled = |policy: &Policy, addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let target = Target::parse("example.com:443", None).unwrap();
            let from = |candidate: Candidate| {
                format!("{} {}", candidate.to, candidate.from.map_or("-".into(), |from| from.to_string()))
            };
            candidates(&target, &addresses, policy, policy.turn()).into_iter().map(from).collect::<Vec<_>>()
        };
        let own = policy("source = [\"198.51.100.7\", \"198.51.100.8\", \"2001:db8::7\"]");
        for from in ["198.51.100.7", "198.51.100.8", "198.51.100.7"] {
            let expected = ["[2606::1]:443 2001:db8::7".to_owned(), format!("1.1.1.1:443 {from}")];
            assert_eq!(dialled(&own, &["2606::1", "1.1.1.1"]), expected);
        }
        let v4 = policy(
            "source = [\"198.51.100.7\"]\n[[rules]]\nallow = [\"9.0.0.0/8\"]\nsource = [\"198.51.100.9\"]",
        );
        assert_eq!(
            dialled(&v4, &["2606::1", "9.9.9.9", "::ffff:1.1.1.1"]),
            ["9.9.9.9:443 198.51.100.9", "1.1.1.1:443 198.51.100.7"]
        );
        assert_eq!(dialled(&v4, &["2606::1"]), [""; 0]);
        let target = Target::parse("example.com:443", None).unwrap();
        let judged = Way::judge(&target, &["2606::1".parse().unwrap()], &v4, 0);
        assert!(matches!(judged, Err(Refusal::NoSource)));
        assert_eq!(dialled(&policy(""), &["1.1.1.1"]), ["1.1.1.1:443 -"]);
    }

    #[test]
    fn a_private_address_among_public_ones_is_left_out_and_alone_refused() {
        let policy = Policy::new(&Egress::default()).unwrap();
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let target = Target::parse("example.com:443", None).unwrap();
        let allowed = |texts: &[&str]| allowed(&target, &ips(texts), &policy);
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
