//! First stage: parses a request into a token and a target, or refuses it. This stage performs no lookup and no cryptography;
//! everything that can be refused without spending a token is refused here.

use crate::keys::keyring::epoch;
use crate::request::deny::{AskedIn, Refusal};
use crate::request::egress::{Policy, Via};
use crate::settings::Settings;
use crate::state::{Generation, Worker};
use h2::ext::Protocol;
use http::header::{AUTHORIZATION, HeaderName, PROXY_AUTHORIZATION};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Version, request};
use postern_proxy::headers::{HostFault, announces_body, forwards_left, has_other_coding, host};
use postern_proxy::target::{Target, TargetError, Transport};
use postern_proxy::udp::template::{RequestFault, target_of};
use postern_proxy::udp::{PROTOCOL, is_upgrade};
use postern_spend::{Epoch, SpendStore, Unknown};
use postern_token::header::{Presentation, parse_authorization};
use postern_token::{SpentKey, Token, UnixSeconds, VerifyingKey};
use std::sync::Arc;
use tokio::time::Instant;

/// A request with a token of an accepted key, for a target that may be reached. The signature is not verified yet.
pub(crate) struct Presented {
    pub(super) token: Token,
    pub(super) key: Arc<VerifyingKey>,
    pub(super) spent_key: SpentKey,
    pub(super) epoch: Epoch,
    target: Target, // private, so only this file can construct the whole
}

impl Presented {
    /// Parses a request's head. While nothing can be admitted (no key, or no store), the token is not read, so the client does
    /// not lose it.
    pub(crate) fn parse(
        head: &request::Parts,
        worker: &Worker,
        generation: &Generation,
        now: UnixSeconds,
    ) -> Result<Self, Refusal> {
        let (keyring, Settings { policy, offer, .. }) = (worker.core.keyring.load(), &generation.settings);
        let target = destination(head, &generation.settings)?;
        if !keyring.is_usable(now) {
            return Err(Refusal::NoKeys);
        }
        worker.store(generation).serving().map_err(Refusal::StoreDown)?;
        check_next_hop(policy, &target)?;
        check_circle(policy, &target)?;
        if !keyring.requests_any(offer.types, |key| generation.backend.binding(key), now) {
            return Err(Refusal::StoreDown(Unknown::Unmarked)); // with no challenge to answer, no token helps
        }
        let token = token(&head.headers, target.transport())?;
        if !offer.types.contains(token.token_type()) {
            return Err(Refusal::TokenType(token.token_type()));
        }
        let trusted = keyring.find(token.token_key_id(), now).map_err(Refusal::Key)?;
        let mark = Some(offer.answered(trusted.key.id(), token.challenge_digest()));
        let (key, epoch) = (Arc::clone(&trusted.key), Epoch { mark, ..epoch(trusted) });
        Ok(Self { spent_key: token.spent_key(), token, key, epoch, target })
    }

    pub(crate) fn into_target(self) -> Target {
        self.target
    }
}

/// Returns the request's target, if the policy allows it before it is resolved.
pub(super) fn destination(head: &request::Parts, settings: &Settings) -> Result<Target, Refusal> {
    let policy = &settings.policy;
    let target = target(head, policy, settings.require_host)?;
    policy.check_target(&target).map_err(Refusal::Policy)?;
    let carries = |via: Via<'_>| via.hop.may_carry(target.transport());
    if policy.via_before_lookup(&target).is_none_or(carries) { Ok(target) } else { Err(Refusal::NextHopUdp) }
}

/// Refuses early a tunnel through the next hop of all tunnels while this is down, or what of it carries UDP.
pub(super) fn check_next_hop(policy: &Policy, target: &Target) -> Result<(), Refusal> {
    let Some(hop) = policy.via_of_all().filter(|_| policy.goes_through_that_of_all(target)) else {
        return Ok(());
    };
    match target.transport() {
        _ if hop.outage(Transport::Tcp).is_some() => Err(Refusal::NextHopAway),
        Transport::Udp if hop.outage(Transport::Udp).is_some() => Err(Refusal::NextHopUdpAway),
        Transport::Tcp | Transport::Udp => Ok(()),
    }
}

/// Refuses early a tunnel that would come back from a next hop. Peers' requests are exempt: they carry no token, and reveal the
/// end of a circle.
fn check_circle(policy: &Policy, target: &Target) -> Result<(), Refusal> {
    let is_circle = policy.via_of_all().is_some_and(|hop| hop.leads_in_a_circle(target.transport()));
    let comes_back = is_circle && policy.goes_through_that_of_all(target);
    if comes_back || policy.returned.has(target, Instant::now()) { Err(Refusal::Circle) } else { Ok(()) }
}

/// Parses the request's target: the authority form of CONNECT (RFC 9112, section 3.2.3) or the absolute form of any other
/// method (section 3.2.2). HTTP/2 has it in `:authority` and `:scheme` (RFC 9113, sections 8.3.1 and 8.5).
fn target(head: &request::Parts, policy: &Policy, require_host: bool) -> Result<Target, Refusal> {
    if let Some(target) = udp_target(head, policy) {
        host_of(head, require_host)?;
        return target;
    }
    let authority = head.uri.authority().ok_or(Refusal::NotProxied)?.as_str();
    let target = match head.uri.scheme() {
        Some(_) if head.method == Method::CONNECT => return Err(Refusal::Target(TargetError::Port)),
        None if head.method == Method::CONNECT => {
            if announces_body(head) {
                return Err(Refusal::ConnectBody);
            }
            Target::parse(authority, None)
        }
        Some(scheme) if *scheme == Scheme::HTTP && has_other_coding(&head.headers) => {
            return Err(Refusal::Coding);
        }
        Some(scheme) if *scheme == Scheme::HTTP && forwards_left(head) == Some(0) => {
            return Err(Refusal::LastHop);
        }
        // Only OPTIONS may have no path (RFC 9113, section 8.3.1).
        Some(scheme)
            if *scheme == Scheme::HTTP && head.uri.path() == "*" && head.method != Method::OPTIONS =>
        {
            return Err(Refusal::NotProxied);
        }
        Some(scheme) if *scheme == Scheme::HTTP => Target::parse(authority, Some(80)),
        _ => return Err(Refusal::Scheme),
    };
    let target = target.map_err(Refusal::Target)?;
    let host = host_of(head, require_host)?;
    if head.version == Version::HTTP_2 && host.is_some_and(|host| !names(host, &target)) {
        return Err(Refusal::OtherHost);
    }
    Ok(target)
}

/// Returns the Host field, if the request needs none or has a valid one.
fn host_of(head: &request::Parts, require_host: bool) -> Result<Option<&HeaderValue>, Refusal> {
    match host(head) {
        Err(HostFault::Missing) if !require_host => Ok(None),
        host => host.map_err(Refusal::Host),
    }
}

/// Returns `true` for an extended CONNECT of any protocol, and for an upgrade to UDP.
fn asks_for_capsules(head: &request::Parts) -> bool {
    head.extensions.get::<Protocol>().is_some() || is_upgrade(head)
}

/// Returns the target of a request for UDP (RFC 9298): an extended CONNECT, or an upgrade in HTTP/1.1. `None` for any other.
fn udp_target(head: &request::Parts, policy: &Policy) -> Option<Result<Target, Refusal>> {
    match head.extensions.get::<Protocol>() {
        Some(protocol) if protocol.as_str() != PROTOCOL => return Some(Err(Refusal::Protocol)),
        _ if asks_for_capsules(head) => {}
        _ => return None,
    }
    Some(target_of(head, &policy.udp_templates).map_err(|fault| match fault {
        RequestFault::Content => Refusal::CapsuleContent,
        RequestFault::Path => Refusal::Template,
        RequestFault::Target(error) => Refusal::Target(error),
    }))
}

/// Returns the target as the request has it, for the access log.
pub(super) fn written_target(head: &request::Parts, policy: &Policy) -> Option<String> {
    if let Some(target) = udp_target(head, policy) {
        return target.ok().map(|target| target.authority().to_string());
    }
    // The whole authority may contain a user name and a password.
    head.uri.authority().map(|authority| match authority.port() {
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    })
}

/// Returns the fields that carry the challenge to a client: a proxy of UDP looks like a proxy to some clients, and like an
/// origin to others (docs/how-it-works/request.md).
pub(crate) fn asked_in(head: &request::Parts) -> AskedIn {
    let has = |field: HeaderName| head.headers.contains_key(field);
    match asks_for_capsules(head) {
        false => AskedIn::Proxy,
        true if has(AUTHORIZATION) && !has(PROXY_AUTHORIZATION) => AskedIn::BothAsOrigin,
        true => AskedIn::Both,
    }
}

/// Returns `true` if a Host field names the target, with or without its port.
fn names(host: &HeaderValue, target: &Target) -> bool {
    let host = host.to_str().ok().and_then(|host| Target::parse(host, Some(target.port())).ok());
    host.as_ref() == Some(target)
}

/// Returns the only token that the request presents. One for UDP may present it as to an origin.
fn token(headers: &HeaderMap, transport: Transport) -> Result<Token, Refusal> {
    let mut found = Err(Refusal::NoToken);
    let as_to_origin = (transport == Transport::Udp).then(|| headers.get_all(AUTHORIZATION));
    for value in headers.get_all(PROXY_AUTHORIZATION).iter().chain(as_to_origin.into_iter().flatten()) {
        found = match (parse_authorization(value.as_bytes()), found) {
            (Ok(Presentation::OtherScheme), Err(Refusal::NoToken)) => Err(Refusal::OtherScheme),
            (Ok(Presentation::OtherScheme), found) => found,
            (Ok(Presentation::Token(_)), Ok(_)) => return Err(Refusal::SeveralAuthorizations),
            (Ok(Presentation::Token(token)), _) => Ok(token),
            (Err(error), _) => return Err(Refusal::MalformedToken(error)),
        };
    }
    found
}
