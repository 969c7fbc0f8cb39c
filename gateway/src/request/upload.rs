//! The body of a forwarded request on its way to the target, and what became of it.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// The client's body, passed on as it comes.
pub(crate) struct Upload {
    body: Incoming,
    progress: Progress,
}

/// How an upload goes on, seen from beside it.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<Seen>>);

struct Seen {
    moved: Instant,
    waits_for_client: bool,
    is_broken: bool,
}

impl Upload {
    pub(crate) fn new(body: Incoming) -> (Self, Progress) {
        let seen = Seen { moved: Instant::now(), waits_for_client: false, is_broken: false };
        let progress = Progress(Arc::new(Mutex::new(seen)));
        (Self { body, progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// When the client's last piece was passed on.
    pub(crate) fn moved(&self) -> Instant {
        self.0.lock().moved
    }

    /// Whether the target has all that the client sent, and the client owes the rest.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.0.lock().waits_for_client
    }

    /// Whether the client's body was not valid, or broke off.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.lock().is_broken
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let mut seen = self.progress.0.lock();
        seen.waits_for_client = polled.is_pending();
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
