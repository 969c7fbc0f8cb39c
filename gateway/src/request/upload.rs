//! The body of a forwarded request, and its progress to the target.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Either;
use hyper::body::Incoming;
use parking_lot::Mutex;
use postern_proxy::expect::{Gate, Held};
use postern_proxy::http2::Inbox;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// The body of a request, of HTTP/1.1 or HTTP/2.
pub(crate) type RequestBody = Either<Incoming, Inbox>;

/// Marks the request as admitted: from now on its stream's window bounds its memory.
pub(crate) fn paid(body: &RequestBody) {
    if let Either::Right(inbox) = body {
        inbox.paid();
    }
}

/// The client's body, forwarded as it arrives, once the target expects it (`Expect: 100-continue`).
pub(crate) struct Upload {
    body: Held<RequestBody>,
    progress: Progress,
}

/// Progress of an upload. Clones share it.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<Seen>>);

#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// Time at which the client's last piece was forwarded, or the target's last message arrived.
    pub(super) moved: Instant,
    /// `true` if the target has all that the client sent, and the client still has to send the rest.
    pub(super) waits_for_client: bool,
    /// `true` if the client's body was invalid, or was cut off.
    pub(super) is_broken: bool,
}

impl Upload {
    pub(crate) fn new(body: RequestBody, gate: Gate) -> (Self, Progress) {
        let seen = Seen { moved: Instant::now(), waits_for_client: false, is_broken: false };
        let progress = Progress(Arc::new(Mutex::new(seen)));
        (Self { body: Held::new(body, gate), progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Records a message from the target: the wait for its answer restarts.
    pub(crate) fn hear(&self) {
        self.0.lock().moved = Instant::now();
    }

    pub(super) fn seen(&self) -> Seen {
        *self.0.lock()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

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
