//! A request from another of the operator's gateways, which took the token: this stage replaces those that take a token here.
//! The target is judged as for a client.

use crate::request::deny::Refusal;
use crate::request::parse;
use crate::settings::Settings;
use crate::state::Worker;
use http::request;
use postern_daemon::tls::Accepted;
use postern_proxy::target::Target;

/// Proof that the client of a connection is another gateway: it presented a certificate from the authority in `[peers]`. Only
/// this file can construct it.
#[derive(Clone, Copy)]
pub(crate) struct Peer(());

impl Peer {
    /// Returns the proof for a stream of the listener of `[peers]`, whose handshake demands a certificate. `None` without a
    /// certificate, which that handshake does not allow.
    pub(crate) fn shown_by(stream: &Accepted) -> Option<Self> {
        match stream {
            Accepted::Left(_) => None, // without TLS, no client is a peer
            Accepted::Right(stream) => stream.get_ref().1.peer_certificates().map(|_| Self(())),
        }
    }
}

/// The right to one tunnel to one target, for which a peer vouches. Only this file can construct it.
pub(crate) struct Entrusted {
    target: Target,
    /// Gateways that the request has passed, and this one.
    pub(super) hops: String,
}

impl Entrusted {
    /// Parses a request's head. Needs neither keys nor the store, and ignores a token.
    pub(crate) fn parse(
        _by: Peer,
        head: &request::Parts,
        worker: &Worker,
        settings: &Settings,
    ) -> Result<Self, Refusal> {
        let hops = worker.core.pseudonym.after(&head.headers)?;
        let target = parse::destination(head, settings)?;
        parse::check_next_hop(&settings.policy, &target)?;
        Ok(Self { target, hops })
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }
}
