//! A plain `http://` request in absolute form (RFC 9112, section 3.2.2): the same token, then the request itself is
//! sent on, without what concerns only this hop.

use crate::request::deny::Refusal;
use crate::request::dial::Dialled;
use bytes::Bytes;
use http::header::{HeaderValue, VIA};
use http::{Request, Response, Version};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use postern_proxy::headers::{remove_hop_by_hop, to_origin_form};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep, timeout};

/// This hop in the Via field (RFC 9110, section 7.6.3): its protocol and a pseudonym.
const VIA_SELF: HeaderValue = HeaderValue::from_static("1.1 postern");

/// Sends the request on and returns the answer, whose body is still coming. `idle` bounds the wait for the answer's
/// head, and then for each piece of its body.
pub(crate) async fn send(
    request: Request<Incoming>,
    dialled: Dialled,
    idle: Duration,
) -> Result<Response<ForwardedBody>, Refusal> {
    let (mut head, body) = request.into_parts();
    to_origin_form(&mut head);
    head.headers.append(VIA, VIA_SELF);
    let request = Request::from_parts(head, body);
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(dialled.stream)).await.map_err(|_| Refusal::UpstreamBroken)?;
    let connection = Box::pin(async move {
        // Its errors reach the reader of the body.
        let _ = connection.await;
    });
    // Driven here and then by the body, not by a task: when the client goes, so does the connection to the target.
    let mut connection: Driver = Some(connection);
    let answer = drive(&mut connection, sender.send_request(request));
    let response = timeout(idle, answer)
        .await
        .map_err(|_| Refusal::UpstreamTimeout)?
        .map_err(|_| Refusal::UpstreamBroken)?;
    let (mut head, body) = response.into_parts();
    remove_hop_by_hop(&mut head.headers);
    head.headers.append(VIA, VIA_SELF);
    head.version = Version::HTTP_11;
    Ok(Response::from_parts(head, ForwardedBody { body, connection, idle, alarm: Box::pin(sleep(idle)) }))
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

/// The body of a target's answer. It drives the connection it comes from, and fails when nothing comes for too long.
pub(crate) struct ForwardedBody {
    body: Incoming,
    connection: Driver,
    idle: Duration,
    alarm: Pin<Box<Sleep>>,
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
                let deadline = tokio::time::Instant::now() + this.idle;
                this.alarm.as_mut().reset(deadline);
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                this.alarm.as_mut().poll(cx).map(|()| Some(Err("the target stopped sending".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
