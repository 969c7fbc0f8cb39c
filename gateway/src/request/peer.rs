//! A request of another gateway of the operator's, which took a token for it: this stage stands in place of those that take one
//! here. Where the request may go is judged as for a client.

use crate::request::deny::Refusal;
use crate::request::egress::Policy;
use crate::request::hops::Hops;
use crate::request::parse;
use crate::state::{Generation, Worker};
use http::request;
use postern_daemon::tls::TlsStream;
use postern_proxy::target::Target;

/// The client of a connection is another gateway: it showed a certificate of the authority in `[peers]`. Only this file makes one.
#[derive(Clone, Copy)]
pub(crate) struct Peer(());

impl Peer {
    /// `stream` is one of the listener of `[peers]`, whose handshake demands a certificate. None for one without, which that
    /// handshake has no room for.
    pub(crate) fn shown_by<S>(stream: &TlsStream<S>) -> Option<Self> {
        stream.get_ref().1.peer_certificates().map(|_| Self(()))
    }
}

/// The right to one tunnel to one target, for which a peer answers. Only this file makes one.
pub(crate) struct Entrusted {
    target: Target,
    hops: Hops,
}

impl Entrusted {
    /// Reads a request's head. Neither keys nor the store are needed, and a token in it is not looked at.
    pub(crate) fn parse(
        _by: Peer,
        head: &request::Parts,
        policy: &Policy,
        (worker, generation): (&Worker, &Generation),
    ) -> Result<Self, Refusal> {
        let hops = worker.core.pseudonym.after(&head.headers)?;
        let target = parse::destination(head, policy, generation)?;
        parse::check_next_hop(worker, policy, &target)?;
        Ok(Self { target, hops })
    }

    /// Where the tunnel goes.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The gateways that it came through, and this one.
    pub(crate) fn hops(&self) -> &Hops {
        &self.hops
    }
}
