//! UDP of programs that use the HTTP proxy: `Upgrade: connect-udp` over HTTP/1.1 (RFC 9298, section 3.2). The capsules go on to the gateway
//! unchanged. Each connection has one target, for one token.

use crate::front::answer::Refusal;
use crate::front::state::AgentState;
use http::request::Parts;
use postern_proxy::relay::{Relay, TunnelEnd};
use postern_proxy::target::Target;
use postern_proxy::tunnel::Tunnel;
use postern_proxy::udp::template::{RequestFault, Template, target_of};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Silence after which a stream ends.
pub(crate) const IDLE: Duration = Duration::from_mins(2);
/// Time from a failure, or from the opening of a stream that soon ended, in which no further token is sent for a target. An
/// unreachable port ends each stream at its first datagram.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// A stream to a target.
pub(super) struct UdpStream {
    tunnel: Tunnel,
    target: Target,
    opened: Instant,
}

impl UdpStream {
    /// Opens the stream that a request asks for.
    pub(super) async fn open(head: &Parts, state: &AgentState) -> Result<Self, Refusal> {
        let target = target(head, state)?;
        let (opened, tunnel) = (Instant::now(), state.opener.open(&target).await?);
        Ok(Self { tunnel, target, opened })
    }

    /// Relays capsules until a side ends, or none come for a while. `early` has those that came with the request.
    pub(super) async fn relay(self, client: TcpStream, early: &[u8], state: &AgentState) {
        let Self { tunnel, target, opened } = self;
        let _open = state.answers.udp_opened();
        let received = tunnel.received();
        let relay = Relay::new(client, tunnel, early, Some(IDLE)).ending_together();
        let relayed = received.keep_taking(relay).await;
        if relayed.ended == TunnelEnd::Broken && relayed.down == 0 && opened.elapsed() < PAUSE {
            state.opener.failed.add_broken(&target, opened);
        }
    }
}

fn target(head: &Parts, state: &AgentState) -> Result<Target, Refusal> {
    if state.limit.udp_targets() == 0 {
        return Err(Refusal::UdpOff);
    }
    target_of(head, [&Template::default()]).map_err(|fault| match fault {
        RequestFault::Content => Refusal::Request(
            "A request for UDP has no Content-Length, Content-Type or Transfer-Encoding (RFC 9297, section 3.2)",
        ),
        RequestFault::Path => Refusal::Request(
            "The path names no target for UDP: use /.well-known/masque/udp/{target_host}/{target_port}/ (RFC 9298)",
        ),
        RequestFault::Target(error) => Refusal::Target(error),
    })
}
