//! The first stage: from a request to a token and a target, or a refusal. Nothing is looked up and no cryptography is
//! done; everything that can be refused without spending a token is refused here.

use crate::keys::keyring::epoch;
use crate::request::deny::Refusal;
use crate::request::egress::Policy;
use crate::state::{Generation, Worker};
use http::header::PROXY_AUTHORIZATION;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Version, request};
use postern_proxy::headers::{HostFault, announces_body, forwards_left, has_other_coding, host};
use postern_proxy::target::{Target, TargetError};
use postern_spend::{Epoch, Unknown};
use postern_token::header::{AuthorizationError, Presentation, parse_authorization};
use postern_token::{SpentKey, Token, UnixSeconds, VerifyingKey};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// A request that presents a token of ours for a target that may be reached. The signature has not been looked at.
pub(crate) struct Presented {
    token: Token,
    key: Arc<VerifyingKey>,
    spent_key: SpentKey,
    epoch: Epoch,
    target: Target,
}

impl Presented {
    /// Reads a request's head. While nothing can be admitted (no key, or no store), its token is not read: what was not
    /// looked at is not lost to the client.
    pub(crate) fn parse(
        head: &request::Parts,
        policy: &Policy,
        (worker, generation): (&Worker, &Generation),
        now: UnixSeconds,
    ) -> Result<Self, Refusal> {
        let keyring = worker.core.keyring.load();
        let target = destination(head, policy, generation)?;
        if !keyring.is_usable(now) {
            return Err(Refusal::NoKeys);
        }
        worker.serving(generation).map_err(Refusal::StoreDown)?;
        check_next_hop(worker, policy, &target)?;
        check_circle(worker, policy, &target)?;
        let types = generation.offer.types();
        if !keyring.requests_any(types, |key| generation.backend.binding(key), now) {
            return Err(Refusal::StoreDown(Unknown::Unmarked)); // with no challenge to answer, no token helps
        }
        let token = token(&head.headers)?;
        if !types.contains(token.token_type()) {
            return Err(Refusal::TokenType(token.token_type()));
        }
        let trusted = keyring.find(token.token_key_id(), now).map_err(Refusal::Key)?;
        let mark = Some(generation.offer.answered(trusted.key.id(), token.challenge_digest()));
        let (key, epoch) = (Arc::clone(&trusted.key), Epoch { mark, ..epoch(trusted) });
        Ok(Self { spent_key: token.spent_key(), token, key, epoch, target })
    }

    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    pub(crate) fn key(&self) -> &VerifyingKey {
        &self.key
    }

    pub(crate) fn spent_key(&self) -> &SpentKey {
        &self.spent_key
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    pub(crate) fn into_target(self) -> Target {
        self.target
    }
}

/// Where the request wants to go, if it may be reached as far as its name tells.
pub(super) fn destination(
    head: &request::Parts,
    policy: &Policy,
    generation: &Generation,
) -> Result<Target, Refusal> {
    let target = target(head, generation.require_host)?;
    policy.check_target(&target).map_err(Refusal::Policy)?;
    Ok(target)
}

/// Refuses early what the next hop of all tunnels could not open now.
pub(super) fn check_next_hop(worker: &Worker, policy: &Policy, target: &Target) -> Result<(), Refusal> {
    let is_away = worker.core.next_hop_away.load(Ordering::Relaxed);
    if is_away && policy.goes_through_that_of_all(target) { Err(Refusal::NextHopAway) } else { Ok(()) }
}

/// Refuses early what would come back from there. A peer's request brings no token, and shows whether it still does.
fn check_circle(worker: &Worker, policy: &Policy, target: &Target) -> Result<(), Refusal> {
    let is_circle = worker.core.next_hop_circle.load(Ordering::Relaxed);
    let comes_back = is_circle && policy.goes_through_that_of_all(target);
    if comes_back || policy.returned().has(target, Instant::now()) { Err(Refusal::Circle) } else { Ok(()) }
}

/// Where the request wants to go: the authority form of CONNECT (RFC 9112, section 3.2.3) or the absolute form of any
/// other method (section 3.2.2). In HTTP/2 `:authority` and `:scheme` say it (RFC 9113, sections 8.3.1 and 8.5).
fn target(head: &request::Parts, require_host: bool) -> Result<Target, Refusal> {
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
        // What has no path is for OPTIONS alone (RFC 9113, section 8.3.1).
        Some(scheme)
            if *scheme == Scheme::HTTP && head.uri.path() == "*" && head.method != Method::OPTIONS =>
        {
            return Err(Refusal::NotProxied);
        }
        Some(scheme) if *scheme == Scheme::HTTP => Target::parse(authority, Some(80)),
        _ => return Err(Refusal::Scheme),
    };
    let target = target.map_err(Refusal::Target)?;
    let host = match host(head) {
        Err(HostFault::Missing) if !require_host => None,
        host => host.map_err(Refusal::Host)?,
    };
    if head.version == Version::HTTP_2 && host.is_some_and(|host| !names(host, &target)) {
        return Err(Refusal::OtherHost);
    }
    Ok(target)
}

/// Whether a Host field names the target, with its port or without one.
fn names(host: &HeaderValue, target: &Target) -> bool {
    let host = host.to_str().ok().and_then(|host| Target::parse(host, Some(target.port())).ok());
    host.as_ref() == Some(target)
}

/// The one token that the request presents.
fn token(headers: &HeaderMap) -> Result<Token, Refusal> {
    let mut found = Err(Refusal::NoToken);
    for value in headers.get_all(PROXY_AUTHORIZATION) {
        found = match (parse_authorization(value.as_bytes()), found) {
            (Ok(Presentation::OtherScheme), Err(Refusal::NoToken)) => Err(Refusal::OtherScheme),
            (Ok(Presentation::OtherScheme), found) => found,
            (Ok(Presentation::Token(_)), Ok(_)) => return Err(Refusal::SeveralAuthorizations),
            (Ok(Presentation::Token(token)), _) => Ok(token),
            (Err(error), _) => return Err(malformed(error)),
        };
    }
    found
}

fn malformed(error: AuthorizationError) -> Refusal {
    Refusal::MalformedToken(error)
}
