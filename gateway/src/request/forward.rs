//! A plain `http://` request in absolute form (RFC 9112, section 3.2.2): the same token, then the request itself is
//! sent on, without what concerns only this hop.

use crate::request::answer::{OWN_NAME, PROXY_STATUS};
use crate::request::deny::Refusal;
use crate::request::dial::Dialled;
use crate::request::upload::{Progress, RequestBody, Upload};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderValue, VIA};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use postern_proxy::answer_head::{AnswerStream, HeadLimit, LIMIT};
use postern_proxy::headers::{has_other_coding, remove_hop_by_hop, to_origin_form};
use postern_proxy::idle::Idle;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// This hop in the Via field (RFC 9110, section 7.6.3): the protocol in which a message came, and a pseudonym.
const VIA_SELF: HeaderValue = HeaderValue::from_static("1.1 postern");
const VIA_SELF_2: HeaderValue = HeaderValue::from_static("2.0 postern");

/// Sends the request on and returns the answer, whose body is still coming. `idle` bounds the wait for each piece of the
/// request's body, for the answer's head, and then for each piece of its body.
pub(crate) async fn send(
    request: Request<RequestBody>,
    dialled: Dialled,
    idle: Duration,
) -> Result<Response<ForwardedBody>, Refusal> {
    let (mut head, body) = request.into_parts();
    let via = if head.version == Version::HTTP_2 { VIA_SELF_2 } else { VIA_SELF };
    to_origin_form(&mut head, !body.is_end_stream());
    head.headers.append(VIA, via);
    let (upload, progress) = Upload::new(body);
    let request = Request::from_parts(head, upload);
    let limit = HeadLimit::begun();
    let received = dialled.stream.received();
    let stream = AnswerStream::new(dialled.stream, limit.clone());
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(LIMIT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Refusal::UpstreamBroken)?;
    let connection = Box::pin(async move {
        // Its errors reach the reader of the body.
        let _ = received.keep_taking(connection).await;
    });
    // Driven here and then by the body, not by a task: when the client goes, so does the connection to the target.
    let mut connection: Driver = Some(connection);
    let answer = drive(&mut connection, sender.send_request(request));
    let response = match Idle::new(idle).during(|| progress.moved(), answer).await {
        Some(Ok(response)) if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            return Err(Refusal::UpstreamCredentials);
        }
        // What the client asked to upgrade to was not passed on.
        Some(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            return Err(Refusal::UpstreamBroken);
        }
        Some(Ok(response)) if has_other_coding(response.headers()) => return Err(Refusal::UpstreamBroken),
        Some(Ok(response)) => response,
        Some(Err(_)) if progress.is_broken() => return Err(Refusal::BodyBroken),
        Some(Err(_)) => return Err(Refusal::UpstreamBroken),
        None if progress.waits_for_client() => return Err(Refusal::BodyTimeout),
        None => return Err(Refusal::UpstreamTimeout),
    };
    limit.end();
    let (mut head, body) = response.into_parts();
    remove_hop_by_hop(&mut head.headers);
    remove_own_status(&mut head.headers);
    head.headers.append(VIA, VIA_SELF);
    head.version = Version::HTTP_11;
    let (idle, moved) = (Idle::new(idle), Instant::now());
    Ok(Response::from_parts(head, ForwardedBody { body, connection, progress, moved, idle }))
}

/// A target may say what proxies on its side did (RFC 9209), but not what this one did.
fn remove_own_status(headers: &mut HeaderMap) {
    let is_own = |value: &HeaderValue| {
        value.as_bytes().to_ascii_lowercase().windows(OWN_NAME.len()).any(|part| part == OWN_NAME.as_bytes())
    };
    let kept: Vec<HeaderValue> =
        headers.get_all(PROXY_STATUS).iter().filter(|value| !is_own(value)).cloned().collect();
    headers.remove(PROXY_STATUS);
    kept.into_iter().for_each(|value| _ = headers.append(PROXY_STATUS, value));
}

/// Trailer fields without those that mean something in a header alone (RFC 9110, section 6.5.1).
fn harmless(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        remove_hop_by_hop(trailers);
        remove_own_status(trailers);
        for name in [CONTENT_LENGTH, HOST] {
            trailers.remove(name);
        }
    }
    frame
}

/// The connection to the target; gone once it has ended.
type Driver = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Polls `work` and, beside it, the connection it depends on.
async fn drive<F: Future>(connection: &mut Driver, work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        poll_driver(connection, cx);
        work.as_mut().poll(cx)
    })
    .await
}

fn poll_driver(connection: &mut Driver, cx: &mut Context<'_>) {
    if let Some(driver) = connection
        && driver.as_mut().poll(cx).is_ready()
    {
        *connection = None;
    }
}

/// The body of a target's answer. It drives the connection it comes from, and fails when nothing moves for too long.
pub(crate) struct ForwardedBody {
    body: Incoming,
    connection: Driver,
    /// The request's body may still be on its way.
    progress: Progress,
    /// When the last piece of it came.
    moved: Instant,
    idle: Idle,
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        poll_driver(&mut this.connection, cx);
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.moved = Instant::now();
                Poll::Ready(frame.map(|frame| frame.map(harmless).map_err(Into::into)))
            }
            Poll::Pending => {
                let moved = this.moved.max(this.progress.moved());
                this.idle.poll_since(moved, cx).map(|()| Some(Err("the target stopped sending".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
