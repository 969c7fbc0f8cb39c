//! Plain `http://` requests in absolute form, forwarded through tunnels.
//!
//! A tunnel to the target's port 80 (or the one given) is opened before the first byte of the request goes out, so
//! whatever happens to the token, no body has to be sent again. The tunnel is kept for later requests of the same
//! client connection: keep-alive costs one token a tunnel and not one a request.
//!
//! No `Via` is added, although RFC 9110, section 7.6.3 requires it: it would reveal to the target that the request came
//! through an agent.

use crate::answer::Refusal;
use crate::body::{Body, full};
use crate::state::AgentState;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, Version};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use postern_proxy::answer_head::{AnswerStream, HeadLimit};
use postern_proxy::headers::{has_other_coding, remove_hop_by_hop, to_origin_form};
use postern_proxy::target::Target;

/// The most tunnels kept for one client connection; most programs use a connection for one target only.
const MOST_KEPT: usize = 4;

/// The tunnels of one client connection that are open for further requests.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Vec<(Target, Upstream)>>);

/// A tunnel to a target that speaks HTTP.
struct Upstream {
    sender: SendRequest<Body>,
    /// Of the answer that is awaited.
    limit: HeadLimit,
}

impl Kept {
    /// Sends a request through a kept tunnel or a new one, and returns the target's answer.
    pub(crate) async fn forward(
        &self,
        request: Request<Incoming>,
        state: &AgentState,
    ) -> Result<Response<Body>, Refusal> {
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        let target = Target::parse(authority, Some(80))?;
        let (mut head, body) = request.into_parts();
        to_origin_form(&mut head, !body.is_end_stream());
        let (upstream, response) = self.exchange(&target, head, body, state).await?;
        if has_other_coding(response.headers()) {
            return Err(Refusal::Upstream);
        }
        upstream.limit.end();
        if !upstream.sender.is_closed() {
            self.keep(target, upstream);
        }
        Ok(from_target(response))
    }

    async fn exchange(
        &self,
        target: &Target,
        head: Parts,
        body: Incoming,
        state: &AgentState,
    ) -> Result<(Upstream, Response<Incoming>), Refusal> {
        // A kept tunnel may be closed by the target at any moment. A request that it may have seen is sent again only
        // if it changes nothing there and has no body (RFC 9110, section 9.2.2).
        let spare = (head.method.is_idempotent() && body.is_end_stream()).then(|| head.clone());
        let mut request = Request::from_parts(head, body.boxed());
        if let Some(mut upstream) = self.take(target)
            && upstream.sender.ready().await.is_ok()
        {
            upstream.limit.begin();
            match upstream.sender.try_send_request(request).await {
                Ok(response) => return Ok((upstream, response)),
                Err(mut error) => {
                    let again = spare.map(|head| Request::from_parts(head, full(Bytes::new())));
                    request = error.take_message().or(again).ok_or(Refusal::Upstream)?;
                }
            }
        }
        let mut upstream = open(target, state).await?;
        let response = upstream.sender.send_request(request).await.map_err(|_| Refusal::Upstream)?;
        Ok((upstream, response))
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
            kept.remove(0); // the one that was used longest ago
        }
        kept.push((target, upstream));
    }
}

async fn open(target: &Target, state: &AgentState) -> Result<Upstream, Refusal> {
    let tunnel = state.opener.open(target).await?;
    let (limit, received) = (HeadLimit::begun(), tunnel.received());
    let stream = AnswerStream::new(tunnel, limit.clone());
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| Refusal::Upstream)?;
    let shutdown = state.shutdown.clone();
    state.shutdown.tracker().spawn(async move {
        // How it ends shows in the requests on it.
        let _ = shutdown.until_stopped(received.keep_taking(connection)).await;
    });
    Ok(Upstream { sender, limit })
}

fn from_target(response: Response<Incoming>) -> Response<Body> {
    let mut response = response.map(|body| body.boxed());
    *response.version_mut() = Version::HTTP_11;
    remove_hop_by_hop(response.headers_mut());
    response
}
