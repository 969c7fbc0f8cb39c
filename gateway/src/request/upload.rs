//! The body of a forwarded request on its way to the target, and what became of it.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use postern_proxy::expect::{Gate, Held};
use postern_proxy::http2::Inbox;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// The body of a request, by the version of HTTP that it came in.
pub(crate) enum RequestBody {
    Http1(Incoming),
    /// Its trailer fields are not passed on (RFC 9110, section 6.5.1).
    Http2(Inbox),
}

impl RequestBody {
    /// The request was admitted.
    pub(crate) fn paid(&self) {
        if let Self::Http2(inbox) = self {
            inbox.paid();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Http1(body) => {
                Pin::new(body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Http2(inbox) => {
                inbox.poll_piece().map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(inbox) => inbox.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(_) => SizeHint::default(), // hyper goes by Content-Length, which `h2` holds the client to
        }
    }
}

/// The client's body, passed on as it comes, once its target wants it.
pub(crate) struct Upload {
    body: Held<RequestBody>,
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
    pub(crate) fn new(body: RequestBody, gate: Gate) -> (Self, Progress) {
        let seen = Seen { moved: Instant::now(), waits_for_client: false, is_broken: false };
        let progress = Progress(Arc::new(Mutex::new(seen)));
        (Self { body: Held::new(body, gate), progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// The target said something: a wait for its answer begins again.
    pub(crate) fn hear(&self) {
        self.0.lock().moved = Instant::now();
    }

    /// When the client's last piece was passed on, or the target was heard.
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
