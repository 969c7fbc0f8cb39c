//! `Expect: 100-continue` (RFC 9110, section 10.1.1) and interim answers (section 15.2).
//!
//! The target decides if a client may send its body. hyper's server sends "100 Continue" when a request's body is first read, so
//! [`Held`] leaves it unread until the target has sent a 100, or its final answer, which the client reads first ([`Following`]).
//! A target that does not support expectations sends nothing until it has the body: after [`PATIENCE`] the body is sent anyway.

use crate::headers::is_continue;
use crate::plain;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{Request, Response, StatusCode, Version, request};
use http_body::{Body, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Timeout, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Longest time that a target may leave an expectation unanswered. Clients that do not wait forever wait one second (curl, Go); a
/// target that supports expectations has answered by then, even two hops away.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A gate that holds back a request's body until its token is cancelled. Clones share it.
#[derive(Clone, Debug)]
pub struct Gate(Option<CancellationToken>);

impl Gate {
    /// Returns the gate of a request, which is closed if the client expects a 100 before it sends its body. The last Expect field
    /// counts, as in hyper; HTTP/1.0 has no 100.
    pub fn of(head: &request::Parts, has_body: bool) -> Self {
        let expected = head.headers.get_all(EXPECT).iter().next_back();
        let expects = expected.is_some_and(is_continue) && head.version != Version::HTTP_10;
        Self((expects && has_body).then(CancellationToken::new))
    }

    /// Releases the body. Repeated calls are cheap.
    pub fn open(&self) {
        self.0.iter().for_each(CancellationToken::cancel);
    }

    /// Returns the gate's token while the body is held back.
    fn closed(&self) -> Option<&CancellationToken> {
        self.0.as_ref().filter(|gate| !gate.is_cancelled())
    }

    /// Calls `pass_on` with each interim answer to this request, cleaned for forwarding. A 100 that the gate waits for opens the
    /// gate instead. A client with the `version` HTTP/1.0 receives none (RFC 9110, section 15.2).
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
            interim.headers_mut().remove(CONTENT_LENGTH); // RFC 9110, section 8.6: not in a 1xx
            pass_on(interim);
        });
    }
}

/// A request's body behind its gate.
#[derive(Debug)]
pub struct Held<B> {
    body: B,
    gate: Gate,
    opening: Option<Pin<Box<Timeout<WaitForCancellationFutureOwned>>>>,
}

impl<B> Held<B> {
    /// Holds `body` back until `gate` opens.
    pub const fn new(body: B, gate: Gate) -> Self {
        Self { body, gate, opening: None }
    }

    /// Returns `true` while the body waits for the target rather than for its client.
    pub fn waits(&self) -> bool {
        self.gate.closed().is_some()
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
        if let Some(gate) = held.gate.closed() {
            // hyper reads the body for the first time when it has written the request's head.
            let opened = || Box::pin(timeout(PATIENCE, gate.clone().cancelled_owned()));
            _ = ready!(held.opening.get_or_insert_with(opened).as_mut().poll(cx));
            held.gate.open();
        }
        held.opening = None;
        Pin::new(&mut held.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. It releases the request's body, if that is still held, as soon as the answer's head is written: a
/// client that got no 100 may still send the body, and thereby keep the connection.
#[derive(Debug)]
pub struct Following<B> {
    body: B,
    gate: Gate,
}

impl<B> Following<B> {
    /// Creates the body of the answer to the request of `gate`.
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

/// Opens the gate: hyper does not read an empty body, but drops it once the head is written.
impl<B> Drop for Following<B> {
    fn drop(&mut self) {
        self.gate.open();
    }
}
