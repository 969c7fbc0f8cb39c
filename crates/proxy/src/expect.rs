//! `Expect: 100-continue` (RFC 9110, section 10.1.1) and interim answers (section 15.2).
//!
//! Whether a client may send its body is for the target to say. hyper's server says "100 Continue" when a request's body is first
//! read, so [`Held`] leaves it unread until the target has said so, or has given its final answer, which the client reads first
//! ([`Following`]). A target that knows no expectations says nothing until it has the body: after [`PATIENCE`] the body goes on.

use crate::headers::is_continue;
use crate::plain;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{Request, Response, StatusCode, Version, request};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// How long a target may leave an expectation unanswered. A client that does not wait for ever waits for a second (curl, Go); a target
/// two hops away that means to answer has.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// What a request's body waits for. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Option<Arc<Mutex<Waiting>>>);

#[derive(Debug, Default)]
struct Waiting {
    is_open: bool,
    waker: Option<Waker>,
}

impl Gate {
    /// The gate of a request: it is closed where the client expects a 100 before it sends its body. hyper takes the last Expect field
    /// for the one that counts; a client of HTTP/1.0 knows no 100.
    #[must_use]
    pub fn of(head: &request::Parts, has_body: bool) -> Self {
        let expected = head.headers.get_all(EXPECT).iter().next_back();
        let expects = expected.is_some_and(is_continue) && head.version != Version::HTTP_10;
        Self((expects && has_body).then(Arc::default))
    }

    /// Whether the body still waits.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.as_ref().is_some_and(|waiting| !waiting.lock().is_open)
    }

    /// Lets the body go on. It is cheap to repeat.
    pub fn open(&self) {
        let Some(waiting) = &self.0 else { return };
        let waker = {
            let mut waiting = waiting.lock();
            waiting.is_open = true;
            waiting.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn poll_open(&self, cx: &Context<'_>) -> Poll<()> {
        let Some(waiting) = &self.0 else { return Poll::Ready(()) };
        let mut waiting = waiting.lock();
        if waiting.is_open {
            return Poll::Ready(());
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Has `pass_on` called with each interim answer to this request, made one that may be passed on; not with a 100 that the gate
    /// waits for, which opens it. A client of HTTP/1.0, by its `version`, knows none (RFC 9110, section 15.2).
    pub fn watch<B>(
        &self,
        request: &mut Request<B>,
        version: Version,
        pass_on: impl Fn(Response<()>) + Send + Sync + 'static,
    ) {
        let gate = self.clone();
        hyper::ext::on_informational(request, move |answer| {
            if answer.status() == StatusCode::CONTINUE && gate.0.is_some() {
                return gate.open();
            }
            if version == Version::HTTP_10 {
                return;
            }
            let mut interim = Response::new(());
            *interim.status_mut() = answer.status();
            interim.headers_mut().clone_from(answer.headers());
            plain::clean(interim.headers_mut());
            interim.headers_mut().remove(CONTENT_LENGTH); // section 8.6: it has none
            pass_on(interim);
        });
    }
}

/// A request's body behind its gate.
#[derive(Debug)]
pub struct Held<B> {
    body: B,
    gate: Gate,
    patience: Option<Pin<Box<Sleep>>>,
}

impl<B> Held<B> {
    /// Holds `body` back until `gate` opens.
    pub const fn new(body: B, gate: Gate) -> Self {
        Self { body, gate, patience: None }
    }

    /// Whether the body waits for the target, and not for its client.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.gate.is_closed()
    }
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let held = &mut *self;
        if held.gate.poll_open(cx).is_pending() {
            // hyper reads the body for the first time when the request's head is written.
            let patience = held.patience.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
            ready!(patience.as_mut().poll(cx));
            held.gate.open();
        }
        held.patience = None;
        Pin::new(&mut held.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. The request's body, where it is still held, goes on as soon as the answer's head is written: the client, which
/// got no 100, may send the body all the same, and so keep the connection.
#[derive(Debug)]
pub struct Following<B> {
    body: B,
    gate: Gate,
}

impl<B> Following<B> {
    /// The body of the answer to the request that `gate` is of.
    pub const fn new(body: B, gate: Gate) -> Self {
        Self { body, gate }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Following<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.gate.open(); // hyper has written the head
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// hyper does not read an empty body; it drops it once the head is written.
impl<B> Drop for Following<B> {
    fn drop(&mut self) {
        self.gate.open();
    }
}
