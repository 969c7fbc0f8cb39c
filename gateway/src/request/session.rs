//! The life of a request, on one screen:
//!
//! ```text
//! parse -> check -> verify -> spend -> dial -> (tunnel, or forward)
//! ```
//!
//! Each stage hands the next one a value that only it can make: [`Presented`], [`Verified`], [`Spent`], [`Dialled`]. A
//! stage that refuses ends the request; `deny` has the answer. For a request of a peer, another gateway of the operator's, `peer` stands
//! in place of the first four.
//!
//! It is the same for each version of HTTP: a driver (`server::h1`, `server::h2`) turns bytes into a request and an [`Answer`] into
//! bytes.

use crate::config::Limits;
use crate::observe::recorder::{Account, Checking};
use crate::observe::timeline::{Stage, Timeline};
use crate::request::admit::Admitted;
use crate::request::answer::{self, Body};
use crate::request::check::Check;
use crate::request::deny::Refusal;
use crate::request::dial::{Dialled, Onward};
use crate::request::egress::Policy;
use crate::request::forward;
use crate::request::parse::Presented;
use crate::request::peer::{Entrusted, Peer};
use crate::request::spend::Spent;
use crate::request::upload::RequestBody;
use crate::request::verify::Verified;
use crate::state::{Generation, Worker};
use http::{Method, Request, Response, request};
use http_body_util::Either;
use postern_daemon::exchange::Exchange;
use postern_daemon::sources::Source;
use postern_spend::Unknown;
use postern_token::{KeyRefusal, UnixSeconds};
use std::net::SocketAddr;

/// The connection to a CONNECT's target, and what is recorded when the tunnel ends.
pub(crate) type Opened = (Dialled, Account);

/// The answer to one request.
pub(crate) enum Answer {
    /// 200, and from then on the stream is the tunnel's.
    Tunnel(Response<Body>, Opened),
    /// A refusal.
    Refused(Response<Body>),
    /// An answer of the target, whose body is still coming.
    Forwarded(Response<Body>),
}

/// Whom requests come from.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    /// Its address, where the access log names it.
    pub(crate) address: Option<SocketAddr>,
    /// What its refusals are counted under; none if it is exempt.
    pub(crate) source: Option<Source>,
    /// It is another gateway of the operator's.
    pub(crate) peer: Option<Peer>,
}

/// Answers one request, and records the answer. Interim answers go to `exchange`.
pub(crate) async fn answer(
    worker: &Worker,
    limits: &Limits,
    client: Client,
    exchange: &Exchange,
    request: Request<RequestBody>,
) -> Answer {
    let core = &worker.core;
    if let Err(refusal) = core.may_ask(client.source, limits) {
        core.recorder.turned_away(&refusal);
        return Answer::Refused(answer::refused(&refusal, None));
    }
    let generation = core.generation.load_full();
    let (head, body) = request.into_parts();
    let (mut timeline, decision) = (Timeline::begin(), core.recorder.sample(&head.headers));
    let (who, is_connect) = (core.recorder.who(client.address, &head), head.method == Method::CONNECT);
    let answered = match dial(worker, &generation, &head, &body, limits, client, &mut timeline).await {
        Ok(dialled) if is_connect => Ok((answer::opened(), Some(dialled))),
        Ok(dialled) => {
            let request = Request::from_parts(head, body);
            // Boxed: most requests are a CONNECT or refused, and would move its room for nothing.
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
        challenge = generation.challenge(&core.keyring.load(), UnixSeconds::now());
        answerable(refusal, challenge.is_some())
    });
    let account =
        core.recorder.answered(answered.as_ref().err(), client.peer.is_some(), &timeline, &decision, who);
    match answered {
        Ok((response, Some(dialled))) => Answer::Tunnel(response, (dialled, account)),
        Ok((response, None)) => Answer::Forwarded(response),
        Err(refusal) => Answer::Refused(answer::refused(&refusal, challenge)),
    }
}

/// The refusal as it can be answered. A 407 needs a challenge (RFC 9110, section 11.7.1): where the last one was withdrawn while
/// the request was examined, another token would be refused like this one, until the next is there.
fn answerable(refusal: Refusal, has_challenge: bool) -> Refusal {
    if refusal.needs_challenge() && !has_challenge {
        Refusal::StoreUnknown(Unknown::Unmarked)
    } else {
        refusal
    }
}

/// From a request's head to a connection to its target, through every stage.
async fn dial(
    worker: &Worker,
    generation: &Generation,
    head: &request::Parts,
    body: &RequestBody,
    limits: &Limits,
    client: Client,
    timeline: &mut Timeline,
) -> Result<Dialled, Refusal> {
    let policy = worker.core.settings.policy.load_full();
    let admitted = match client.peer {
        Some(peer) => {
            let entrusted = || Entrusted::parse(peer, head, &policy, (worker, generation));
            timeline.time(Stage::Parse, entrusted).map(Admitted::Entrusted)
        }
        None => pay(worker, generation, (head, client.source), &policy, timeline).await.map(Admitted::Paid),
    };
    let admitted = admitted.inspect_err(|refusal| worker.core.refused(client.source, limits, refusal))?;
    body.paid();
    let resolver = worker.resolver.of(&worker.core.settings.resolver.load());
    let onward = Onward {
        policy: &policy,
        resolver: &resolver,
        connections: &worker.next_hops,
        pseudonym: &worker.core.pseudonym,
    };
    let dialled = Dialled::dial(admitted, onward, limits.dial_timeout.get()).await;
    timeline.end(Stage::Dial);
    dialled
}

/// From a request's head to a spent token.
async fn pay(
    worker: &Worker,
    generation: &Generation,
    (head, source): (&request::Parts, Option<Source>),
    policy: &Policy,
    timeline: &mut Timeline,
) -> Result<Spent, Refusal> {
    let (core, store, now) = (&worker.core, worker.store(generation), UnixSeconds::now());
    let presented = timeline.time(Stage::Parse, || parse(worker, generation, head, policy, now))?;

    let turn = worker.dear.turn(presented.token().token_type(), source).await?;
    let mut checking = Checking::begin(&core.recorder, timeline); // recorded however it ends
    let spent = async {
        let (check, timeline) = (Check::new(store, &presented), checking.timeline());
        let verify = || Verified::verify(presented, &worker.dear);
        let verified = check.run_with(generation.check_timing, timeline, verify).await?;
        drop(turn);
        Spent::spend(verified, store, now, timeline).await
    }
    .await;
    checking.end(spent.as_ref().err());
    spent
}

fn parse(
    worker: &Worker,
    generation: &Generation,
    head: &request::Parts,
    policy: &Policy,
    now: UnixSeconds,
) -> Result<Presented, Refusal> {
    let core = &worker.core;
    let presented = Presented::parse(head, policy, (worker, generation), now);
    if let Err(Refusal::Key(KeyRefusal::Unknown)) = &presented {
        core.unknown_key.notify_one(); // the issuer may have published it just now
    }
    presented
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_407_goes_out_without_a_challenge() {
        assert!(matches!(answerable(Refusal::Void, true), Refusal::Void));
        for refusal in [Refusal::NoToken, Refusal::AlreadySpent, Refusal::Key(KeyRefusal::Unknown)] {
            let answered = answerable(refusal, false);
            assert!(matches!(answered, Refusal::StoreUnknown(Unknown::Unmarked)), "{answered:?}");
        }
        assert!(matches!(answerable(Refusal::Unresolved, false), Refusal::Unresolved));
    }
}
