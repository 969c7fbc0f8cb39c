//! The fifth stage: from a target to a connection. Every resolved address is checked against the egress policy, and
//! the address that was checked is the one that is dialled.

use crate::request::deny::Refusal;
use crate::request::egress::Policy;
use crate::request::resolve::Resolver;
use crate::request::spend::Spent;
use crate::request::target::Host;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// How long one address may take before the next is tried beside it (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

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
        let addresses = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => timeout_at(deadline, resolver.resolve(name))
                .await
                .map_err(|_| Refusal::ResolveTimeout)?
                .map_err(|_| Refusal::Unresolved)?,
        };
        let allowed = allowed(addresses, policy)?;
        let candidates: Vec<SocketAddr> =
            allowed.into_iter().map(|address| SocketAddr::new(address, target.port)).collect();
        let connected = timeout_at(deadline, connect(candidates)).await.map_err(|_| Refusal::DialTimeout)?;
        let stream = connected.map_err(|error| refusal(&error))?;
        // Without it a small write waits for the acknowledgement of the previous one (up to 40 ms).
        stream.set_nodelay(true).map_err(|error| refusal(&error))?;
        Ok(Self { stream, _spent: spent })
    }
}

/// The addresses the policy lets through; when it lets none through, its refusal.
fn allowed(addresses: Vec<IpAddr>, policy: &Policy) -> Result<Vec<IpAddr>, Refusal> {
    let mut refused = None;
    let allowed: Vec<IpAddr> = addresses
        .into_iter()
        .filter(|&address| policy.check_address(address).map_err(|refusal| refused = Some(refusal)).is_ok())
        .collect();
    match (allowed.is_empty(), refused) {
        (false, _) => Ok(allowed),
        (true, Some(refusal)) => Err(Refusal::Policy(refusal)),
        (true, None) => Err(Refusal::Unresolved),
    }
}

/// Happy Eyeballs (RFC 8305): addresses of both families in turn, a new attempt whenever the last one failed or is
/// [`ATTEMPT_DELAY`] old; the first connection wins and the others are dropped.
async fn connect(candidates: Vec<SocketAddr>) -> io::Result<TcpStream> {
    if let [only] = candidates[..] {
        return TcpStream::connect(only).await;
    }
    let mut waiting = interleaved(candidates).into_iter();
    let mut attempts = JoinSet::new();
    let mut last_error = io::Error::from(io::ErrorKind::HostUnreachable);
    if let Some(first) = waiting.next() {
        attempts.spawn(TcpStream::connect(first));
    }
    loop {
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => last_error = error,
                Some(Err(_)) => {} // an attempt that panicked or was cancelled connected nothing
                None if waiting.len() == 0 => return Err(last_error),
                None => {}
            },
            () = sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
        }
        if let Some(next) = waiting.next() {
            attempts.spawn(TcpStream::connect(next));
        }
    }
}

/// IPv6 first, then one of each family in turn, each in the order it came.
fn interleaved(candidates: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = candidates.into_iter().partition(SocketAddr::is_ipv6);
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    let mut ordered = Vec::with_capacity(v6.len() + v4.len());
    while v6.len() + v4.len() > 0 {
        ordered.extend(v6.next());
        ordered.extend(v4.next());
    }
    ordered
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
    use tokio::net::TcpListener;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn families_take_turns() {
        let given = ["1.1.1.1:1", "1.1.1.2:1", "[2606::1]:1", "1.1.1.3:1"].map(address).to_vec();
        let expected = ["[2606::1]:1", "1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1"].map(address);
        assert_eq!(interleaved(given), expected);
    }

    #[test]
    fn a_private_address_among_public_ones_is_left_out_and_alone_refused() {
        let policy = Policy::new(&Egress::default());
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(allowed(ips(&["10.0.0.1", "1.1.1.1"]), &policy).unwrap(), ips(&["1.1.1.1"]));
        assert!(matches!(allowed(ips(&["10.0.0.1"]), &policy), Err(Refusal::Policy(_))));
        assert!(matches!(allowed(ips(&[]), &policy), Err(Refusal::Unresolved)));
    }

    #[tokio::test]
    async fn a_dead_first_address_does_not_keep_the_second_from_answering() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let stream = connect(vec![closed, good]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        let error = connect(vec![closed, closed]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
