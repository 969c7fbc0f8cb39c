//! Forwarding of a plain `http://` request in absolute form (RFC 9112, section 3.2.2). It costs a token as a tunnel does, and
//! is sent to the target without its hop-by-hop fields.

use crate::request::deny::Refusal;
use crate::request::dial::Dialled;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderValue, VIA};
use http::{Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Either;
use hyper::body::Incoming;
use parking_lot::Mutex;
use postern_daemon::exchange::Exchange;
use postern_proxy::expect::{Following, Gate, Held};
use postern_proxy::headers::to_origin_form;
use postern_proxy::http2::Inbox;
use postern_proxy::idle::Idle;
use postern_proxy::plain::{self, AnswerFault, HeadLimit};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Returns this hop's entry in the Via field (RFC 9110, section 7.6.3): the version in which a message arrived, and a
/// pseudonym.
const fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2.0 postern",
        Version::HTTP_10 => "1.0 postern",
        _ => "1.1 postern",
    })
}

/// Sends the request to the target and returns the answer, whose body is still arriving. Interim answers go to `exchange`.
/// `idle` limits the wait for each piece of the request's body, for the answer's head, and for each piece of the answer's body.
pub(crate) async fn send(
    request: Request<RequestBody>,
    dialled: Dialled,
    exchange: &Exchange,
    idle: Duration,
) -> Result<Response<ForwardedBody>, Refusal> {
    let (mut head, body) = request.into_parts();
    let (version, gate) = (head.version, Gate::of(&head, !body.is_end_stream()));
    to_origin_form(&mut head, !body.is_end_stream());
    head.headers.append(VIA, via(version));
    let (upload, progress) = Upload::new(body, gate.clone());
    let mut request = Request::from_parts(head, upload);
    let (exchange, heard) = (exchange.clone(), progress.clone());
    gate.watch(&mut request, version, move |mut interim| {
        heard.hear();
        interim.headers_mut().append(VIA, via(Version::HTTP_11));
        exchange.send_interim(interim);
    });
    let limit = HeadLimit::begun();
    let received = dialled.received();
    let (mut sender, connection) = plain::handshake(dialled.connection, limit.clone()).await?;
    let connection = Box::pin(async move {
        // Errors of the connection reach the reader of the body.
        let _ = received.keep_taking(connection).await;
    });
    // Driven here and then by the body, not by a task: when the client leaves, the connection to the target is dropped.
    let mut connection: Driver = Some(connection);
    let answer = drive(&mut connection, sender.send_request(request));
    let mut response = match Idle::new(idle).during(|| progress.seen().moved, answer).await {
        Some(Ok(response)) => response,
        Some(Err(_)) if progress.seen().is_broken => return Err(Refusal::BodyBroken),
        Some(Err(error)) => return Err(AnswerFault::of(&error).into()),
        None if progress.seen().waits_for_client => return Err(Refusal::BodyTimeout),
        None => return Err(Refusal::UpstreamTimeout),
    };
    plain::check(&mut response)?;
    limit.end();
    let (mut head, body) = response.into_parts();
    head.headers.append(VIA, via(head.version));
    head.version = Version::HTTP_11;
    let (body, idle, moved) = (Following::new(body, gate), Idle::new(idle), Instant::now());
    Ok(Response::from_parts(head, ForwardedBody { body, connection, progress, moved, idle }))
}

/// Removes trailer fields that have a meaning only in a header (RFC 9110, section 6.5.1).
fn harmless(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        plain::clean(trailers);
        for name in [CONTENT_LENGTH, HOST] {
            trailers.remove(name);
        }
    }
    frame
}

/// The connection to the target; `None` once it has ended.
type Driver = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Polls `work` together with the connection on which it depends.
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

/// The body of a target's answer. It drives the connection to the target, and fails if nothing moves for too long.
pub(crate) struct ForwardedBody {
    body: Following<Incoming>,
    connection: Driver,
    /// Progress of the request's body, which may still be in transit.
    progress: Progress,
    /// Arrival of the last piece of the answer's body.
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
                let moved = this.moved.max(this.progress.seen().moved);
                this.idle.poll_since(moved, cx).map(|()| Some(Err("the target stopped sending".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The body of a request, of HTTP/1.1 or HTTP/2.
pub(crate) type RequestBody = Either<Incoming, Inbox>;

/// Marks the request as admitted: from now on its stream's window bounds its memory.
pub(crate) fn paid(body: &RequestBody) {
    if let Either::Right(inbox) = body {
        inbox.paid();
    }
}

/// The client's body, forwarded as it arrives, once the target expects it (`Expect: 100-continue`).
struct Upload {
    body: Held<RequestBody>,
    progress: Progress,
}

/// Progress of an upload. Clones share it.
#[derive(Clone)]
struct Progress(Arc<Mutex<Seen>>);

#[derive(Clone, Copy)]
struct Seen {
    /// Time at which the client's last piece was forwarded, or the target's last message arrived.
    moved: Instant,
    /// `true` if the target has all that the client sent, and the client still has to send the rest.
    waits_for_client: bool,
    /// `true` if the client's body was invalid, or was cut off.
    is_broken: bool,
}

impl Upload {
    fn new(body: RequestBody, gate: Gate) -> (Self, Progress) {
        let seen = Seen { moved: Instant::now(), waits_for_client: false, is_broken: false };
        let progress = Progress(Arc::new(Mutex::new(seen)));
        (Self { body: Held::new(body, gate), progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Records a message from the target: the wait for its answer restarts.
    fn hear(&self) {
        self.0.lock().moved = Instant::now();
    }

    fn seen(&self) -> Seen {
        *self.0.lock()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let waits_for_target = self.body.waits();
        let mut seen = self.progress.0.lock();
        seen.waits_for_client = polled.is_pending() && !waits_for_target;
        match &polled {
            Poll::Ready(Some(Err(_))) => seen.is_broken = true,
            Poll::Ready(_) => seen.moved = Instant::now(),
            Poll::Pending => {}
        }
        drop(seen);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
