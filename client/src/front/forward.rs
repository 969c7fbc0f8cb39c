//! Plain `http://` requests in absolute form, forwarded through tunnels.
//!
//! A tunnel to the target's port 80 (or the one given) is opened before the first byte of the request goes out, so no body has to
//! be sent again if a token fails. The tunnel is kept for later requests of the same client connection, so that keep-alive costs
//! one token per tunnel and not per request.
//!
//! No `Via` is added, although RFC 9110, section 7.6.3 requires it: it would reveal to the target that the request came
//! through an agent.

use crate::front::answer::{Body, Refusal, full};
use crate::front::state::AgentState;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use postern_daemon::exchange::Exchange;
use postern_proxy::expect::{Following, Gate, Held};
use postern_proxy::headers::to_origin_form;
use postern_proxy::plain::{self, AnswerFault, HeadLimit};
use postern_proxy::target::Target;

/// Maximum tunnels kept for one client connection; most programs use a connection for one target only.
const MOST_KEPT: usize = 4;

/// The tunnels of one client connection that are open for further requests.
#[derive(Default)]
pub(crate) struct KeptTunnels(Mutex<Vec<(Target, Upstream)>>);

struct Upstream {
    sender: SendRequest<Body>,
    /// Limits the head of the awaited answer.
    limit: HeadLimit,
}

/// The reason why a request has no answer from its target.
pub(crate) enum ForwardError {
    Refused(Refusal),
    /// The target closed a kept tunnel as the request went out, and the request cannot be sent again.
    Lost,
}

impl<E: Into<Refusal>> From<E> for ForwardError {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

impl KeptTunnels {
    /// Sends a request through a kept tunnel or a new one, and returns the target's answer. Interim answers go to `exchange`.
    pub(crate) async fn forward(
        &self,
        request: Request<Incoming>,
        exchange: &Exchange,
        state: &AgentState,
    ) -> Result<Response<Body>, ForwardError> {
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        let target = Target::parse(authority, Some(80))?;
        let (mut head, body) = request.into_parts();
        let (version, has_body) = (head.version, !body.is_end_stream());
        let gate = Gate::of(&head, has_body);
        to_origin_form(&mut head, has_body);
        let mut request = Request::from_parts(head, Held::new(body, gate.clone()));
        let interim = exchange.clone();
        gate.watch(&mut request, version, move |answer| interim.send_interim(answer));
        let (head, body) = request.into_parts();
        let body = body.boxed();
        let sending = self.exchange(&target, head, (!has_body, body), state);
        let (upstream, mut response) = exchange.with_interim(sending).await?;
        plain::check(&mut response)?;
        upstream.limit.end();
        if !upstream.sender.is_closed() {
            self.keep(target, upstream);
        }
        Ok(response.map(|body| Following::new(body, gate).boxed()))
    }

    async fn exchange(
        &self,
        target: &Target,
        head: Parts,
        (is_empty, body): (bool, Body),
        state: &AgentState,
    ) -> Result<(Upstream, Response<Incoming>), ForwardError> {
        // The target may close a kept tunnel at any moment. A request that the target may have seen is sent again only if it is
        // idempotent and has no body (RFC 9110, section 9.2.2); after an answer that is at fault, it is not.
        let spare = (head.method.is_idempotent() && is_empty).then(|| head.clone());
        let mut request = Request::from_parts(head, body);
        if let Some(mut upstream) = self.take(target)
            && upstream.sender.ready().await.is_ok()
        {
            upstream.limit.begin();
            match upstream.sender.try_send_request(request).await {
                Ok(response) => return Ok((upstream, response)),
                Err(mut error) => {
                    let is_closed = AnswerFault::of(error.error()) == AnswerFault::Closed;
                    let again = spare.filter(|_| is_closed);
                    let again = again.map(|head| Request::from_parts(head, full(Bytes::new())));
                    let Some(again) = error.take_message().or(again) else {
                        return Err(failed(error.error(), true));
                    };
                    request = again;
                }
            }
        }
        let mut upstream = open(target, state).await?;
        match upstream.sender.send_request(request).await {
            Ok(response) => Ok((upstream, response)),
            Err(error) => Err(failed(&error, false)),
        }
    }

    fn take(&self, target: &Target) -> Option<Upstream> {
        let mut kept = self.0.lock();
        kept.retain(|(_, upstream)| !upstream.sender.is_closed());
        let index = kept.iter().position(|(known, _)| known == target)?;
        Some(kept.remove(index).1)
    }

    fn keep(&self, target: Target, upstream: Upstream) {
        let mut kept = self.0.lock();
        if kept.len() == MOST_KEPT {
            kept.remove(0); // the least recently used
        }
        kept.push((target, upstream));
    }
}

/// Classifies a failed exchange. If a kept tunnel was closed, the client's connection is closed, as without an agent: only the
/// client can decide whether the request may be repeated.
fn failed(error: &hyper::Error, was_kept: bool) -> ForwardError {
    if error.is_user() {
        return Refusal::Request("The request's body is not valid, or it broke off").into();
    }
    match AnswerFault::of(error) {
        AnswerFault::Closed if was_kept => ForwardError::Lost,
        fault => fault.into(),
    }
}

async fn open(target: &Target, state: &AgentState) -> Result<Upstream, ForwardError> {
    let tunnel = state.opener.open(target).await?;
    let (limit, received) = (HeadLimit::begun(), tunnel.received());
    let (sender, connection) = plain::handshake(tunnel, limit.clone()).await?;
    let shutdown = state.shutdown.clone();
    state.shutdown.tracker().spawn(async move {
        // The requests on the connection report its failures.
        let _ = shutdown.until_stopped(received.keep_taking(connection)).await;
    });
    Ok(Upstream { sender, limit })
}
