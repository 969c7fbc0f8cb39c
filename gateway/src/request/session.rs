//! The life of a request, on one screen:
//!
//! ```text
//! parse -> check -> verify -> spend -> dial -> (tunnel, or forward)
//! ```
//!
//! Each stage passes the next one a value that only it can construct: [`Presented`], [`Verified`], [`Spent`], `Dialled`. A
//! refusal by a stage ends the request; `deny` has the answer. For a request from a peer, another of the operator's gateways,
//! `peer` replaces the first four stages.
//!
//! The stages are the same for each version of HTTP: a driver (`server::h1`, `server::h2`) converts bytes into a request and an
//! [`Answer`] into bytes.

use crate::config::Limits;
use crate::observe::recorder::{Account, Checking, Who};
use crate::observe::timeline::{Stage, Timeline};
use crate::request::answer::{self, Body};
use crate::request::check::check;
use crate::request::deny::{AskedIn, Refusal};
use crate::request::dial::{Admitted, Connected, Onward};
use crate::request::forward::{self, RequestBody};
use crate::request::parse::{self, Presented};
use crate::request::peer::{Entrusted, Peer};
use crate::request::spend::Spent;
use crate::request::verify::Verified;
use crate::state::{Generation, Worker};
use http::{Method, Request, Response, StatusCode, request};
use http_body_util::Either;
use postern_daemon::exchange::Exchange;
use postern_daemon::sources::Source;
use postern_spend::Unknown;
use postern_token::{KeyRefusal, UnixSeconds};
use std::net::SocketAddr;
use tokio::time::Instant;

/// The connection to the target of a tunnel, and the record to complete when the tunnel ends.
pub(crate) type Opened = (Connected, Account);

pub(crate) enum Answer {
    /// 200 or 101, after which the stream belongs to the tunnel.
    Tunnel(Response<Body>, Opened),
    Refused(Response<Body>),
    /// An answer of the target, whose body is still arriving.
    Forwarded(Response<Body>),
}

#[derive(Clone, Copy)]
pub(crate) struct Client {
    /// Address; `None` unless the access log contains addresses.
    pub(crate) address: Option<SocketAddr>,
    /// Source against which refusals count; `None` if exempt.
    pub(crate) source: Option<Source>,
    /// `Some` if the client is another of the operator's gateways.
    pub(crate) peer: Option<Peer>,
}

/// Answers one request and records the answer. Interim answers go to `exchange`.
pub(crate) async fn answer(
    worker: &Worker,
    limits: &Limits,
    client: Client,
    exchange: &Exchange,
    request: Request<RequestBody>,
) -> Answer {
    let core = &worker.core;
    if let Err(refusal) = core.may_ask(client.source, limits) {
        core.turned_away(&refusal);
        return Answer::Refused(answer::refused(&refusal, None, AskedIn::Proxy));
    }
    let generation = core.generation.load_full();
    let (head, body) = request.into_parts();
    let (mut timeline, decision) = (Timeline::begin(), core.recorder.sample(&head.headers));
    let target = || parse::written_target(&head, &generation.settings.policy);
    let who = Who::of(generation.settings.access, client.address, target);
    let is_connect = head.method == Method::CONNECT;
    let (version, asked_in) = (head.version, parse::asked_in(&head));
    let answered = match dial(worker, &generation, &head, &body, limits, client, &mut timeline).await {
        Ok(connected @ (Connected::Datagrams(_) | Connected::Capsules(_))) => {
            Ok((answer::opened_udp(version), Some(connected)))
        }
        Ok(connected @ Connected::Stream(_)) if is_connect => Ok((answer::opened(), Some(connected))),
        Ok(Connected::Stream(dialled)) => {
            let request = Request::from_parts(head, body);
            // Boxed: most requests are CONNECT or refused, and should not move the size of this future.
            let response =
                Box::pin(forward::send(request, dialled, exchange, limits.idle_timeout.get())).await;
            response.map(|response| (response.map(Either::Right), None))
        }
        Err(refusal) => Err(refusal),
    };
    let mut challenge = None;
    let answered = answered.map_err(|refusal| {
        if client.peer.is_some() {
            return refusal;
        }
        if refusal.needs_challenge() {
            challenge = generation.challenge(&core.keyring.load(), UnixSeconds::now());
        }
        answerable(refusal, challenge.is_some())
    });
    let recorded = match &answered {
        Ok((response, Some(_))) => (None, response.status()),
        Ok((_, None)) => (None, StatusCode::OK), // the target's own status is not recorded
        Err(refusal) => (Some(refusal), refusal.verdict(asked_in).status),
    };
    let account = core.recorder.answered(recorded, client.peer.is_some(), &timeline, &decision, who);
    match answered {
        Ok((response, Some(connected))) => Answer::Tunnel(response, (connected, account)),
        Ok((response, None)) => Answer::Forwarded(response),
        Err(refusal) => Answer::Refused(answer::refused(&refusal, challenge, asked_in)),
    }
}

/// Replaces a 407 by a 503 if there is no challenge, which a 407 needs (RFC 9110, section 11.7.1). The last challenge may be
/// withdrawn while the request is examined; until the next one exists, another token would be refused like this one. A request
/// without a token is refused as if the challenge had been missing when it arrived.
fn answerable(refusal: Refusal, has_challenge: bool) -> Refusal {
    match refusal {
        _ if has_challenge || !refusal.needs_challenge() => refusal,
        Refusal::NoToken | Refusal::OtherScheme => Refusal::StoreDown(Unknown::Unmarked),
        _ => Refusal::StoreUnknown(Unknown::Unmarked),
    }
}

async fn dial(
    worker: &Worker,
    generation: &Generation,
    head: &request::Parts,
    body: &RequestBody,
    limits: &Limits,
    client: Client,
    timeline: &mut Timeline,
) -> Result<Connected, Refusal> {
    let settings = &generation.settings;
    let admitted = match client.peer {
        Some(peer) => {
            let entrusted = || Entrusted::parse(peer, head, worker, settings);
            timeline.time(Stage::Parse, entrusted).map(Admitted::Entrusted)
        }
        None => pay(worker, generation, (head, client.source), timeline).await.map(Admitted::Paid),
    };
    let admitted = admitted.inspect_err(|refusal| worker.core.refused(client.source, limits, refusal))?;
    forward::paid(body);
    // Uses the present generation's resolver: the worker caches one, and an older generation would replace it.
    let resolver = worker.resolver.of(&worker.core.generation.load().settings.resolver);
    let onward = Onward {
        policy: &settings.policy,
        resolver: &resolver,
        connections: &worker.next_hops,
        pseudonym: &worker.core.pseudonym,
        turn: settings.policy.turn(),
        deadline: Instant::now() + limits.dial_timeout.get(),
    };
    let connected = Connected::dial(admitted, onward).await;
    timeline.end(Stage::Dial);
    connected
}

/// Runs the stages from a request's head to a spent token.
async fn pay(
    worker: &Worker,
    generation: &Generation,
    (head, source): (&request::Parts, Option<Source>),
    timeline: &mut Timeline,
) -> Result<Spent, Refusal> {
    let (core, store, now) = (&worker.core, worker.store(generation), UnixSeconds::now());
    let presented = timeline.time(Stage::Parse, || Presented::parse(head, worker, generation, now));
    let presented = presented.inspect_err(|refusal| {
        if matches!(refusal, Refusal::Key(KeyRefusal::Unknown)) {
            core.unknown_key.notify_one(); // the issuer may have published it just now
        }
    })?;
    let turn = worker.dear.turn(presented.token.token_type(), source).await?;
    let checking = Checking { recorder: &core.recorder, timeline }; // records the check even if this future is dropped
    let spent = async {
        let (timing, timeline) = (generation.settings.check_timing, &mut *checking.timeline);
        let record = (presented.spent_key, presented.epoch);
        let verify = || Verified::verify(presented, &worker.dear);
        let verified = check(store, record, timing, timeline, verify).await?;
        drop(turn);
        Spent::spend(verified, store, now, timeline).await
    }
    .await;
    checking.end(spent.as_ref().err());
    spent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_407_goes_out_without_a_challenge() {
        assert!(matches!(answerable(Refusal::Void, true), Refusal::Void));
        for without in [Refusal::NoToken, Refusal::OtherScheme] {
            let answered = answerable(without, false);
            assert!(matches!(answered, Refusal::StoreDown(Unknown::Unmarked)), "{without:?}: {answered:?}");
        }
        let retired = Refusal::StoreUnknown(Unknown::EpochRetired);
        let unknown = Refusal::Key(KeyRefusal::Unknown);
        for presented in [Refusal::AlreadySpent, Refusal::Void, retired, unknown] {
            let answered = answerable(presented, false);
            assert!(
                matches!(answered, Refusal::StoreUnknown(Unknown::Unmarked)),
                "{presented:?}: {answered:?}"
            );
        }
        assert!(matches!(answerable(Refusal::Unresolved, false), Refusal::Unresolved));
    }
}
