//! The driver of HTTP/1.1: hyper reads and writes the requests of a connection one after the other, and returns its stream.

use super::{Endpoint, Parts, TurnedAway};
use crate::client_stream::ClientStream;
use crate::exchange::{Answered, Exchange};
use crate::farewell::{leave, part};
use crate::places::Place;
use crate::tls::Accepted;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::SetOnce;

/// The connection preface of an HTTP/2 client (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection when hyper has finished with it.
pub struct Finished {
    pub stream: Accepted,
    /// Bytes that hyper read and did not use.
    pub early: Bytes,
    pub ended: Ended,
}

/// The end of HTTP/1.1 on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// hyper is done and nothing is left to write. The client may have got 200 to a CONNECT.
    Closed,
    /// The client left, or the stop came, and nothing is left to write.
    Left,
    /// The client uses HTTP/2, and has sent a part of its preface.
    Http2,
    /// A last answer is still to be written.
    Owed(TurnedAway),
    /// An answer was cut off, by its source or by the stop.
    Torn,
    /// Another connection needs the place, in the middle of an answer that the client does not read.
    DisplacedUnread,
    /// Another connection needs the place.
    Displaced {
        /// `true` if a part of a request arrived, which is to be answered.
        is_owed: bool,
    },
}

/// A connection that is closed without an answer: its client acts as if the server had closed it.
#[derive(Debug, thiserror::Error)]
#[error("the request is left without an answer")]
pub struct Unanswered;

/// Returns settings for heads of `most_bytes`, each of which must arrive within `header_timeout`.
pub fn builder(header_timeout: Duration, most_bytes: usize) -> Builder {
    let mut http = Builder::new();
    // Without the timer, the header timeout is silently off.
    http.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(most_bytes);
    http
}

/// Answers requests until hyper ends the connection, which it does after the answer to a CONNECT, another connection needs the
/// place, or the stop comes. A drain awaits the first request for a moment. Must not be dropped: an answer in progress has to end
/// in a reset.
pub async fn drive_http1<E, R, F, B>(
    endpoint: &E,
    http: &Builder,
    stream: Accepted,
    exchange: &Exchange,
    respond: R,
) -> Finished
where
    E: Endpoint,
    R: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response<Answered<B>>, Unanswered>>,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
{
    let (shutdown, begun) = (endpoint.parts().shutdown, SetOnce::new());
    let service = service_fn(|request| {
        let _ = begun.set(()); // fails for a further request
        respond(request)
    });
    let stream = ClientStream::answers_only(stream, exchange.clone());
    let mut connection = http.serve_connection(TokioIo::new(stream), service);
    // hyper ends a connection without a request immediately, even if a request is in transit.
    let drain = shutdown.draining_after(async { _ = begun.wait().await });
    let (mut draining, mut stopped) = (Some(pin!(drain)), pin!(shutdown.stopped()));
    let mut displaced = pin!(exchange.displaced());
    let ended = poll_fn(|cx| {
        if stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Ended::Left));
        }
        if displaced.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Ended::Displaced { is_owed: false }));
        }
        if draining.as_mut().is_some_and(|drain| drain.as_mut().poll(cx).is_ready()) {
            draining = None;
            Pin::new(&mut connection).graceful_shutdown();
        }
        // Not `poll_without_shutdown`: it discards what hyper has not written yet.
        Pin::new(&mut connection).poll(cx).map(Ok)
    })
    .await;
    let parts = connection.into_parts();
    let (stream, early) = (parts.io.into_inner().into_inner(), parts.read_buf);
    let (is_idle, has_part) = (exchange.is_idle(), !early.is_empty());
    let ended = match ended {
        Ok(Ok(())) => Ended::Closed,
        Err(Ended::Displaced { .. }) if is_idle => Ended::Displaced { is_owed: has_part },
        Err(Ended::Displaced { .. }) => Ended::DisplacedUnread,
        Err(ended) => {
            if is_idle {
                ended
            } else {
                Ended::Torn
            }
        }
        Ok(Err(error)) if !begun.initialized() && error.is_parse() && is_http2(&early) => Ended::Http2,
        Ok(Err(error)) => {
            tracing::debug!("a connection ended early: {error}"); // hyper's message, without addresses
            if error.source().is_some_and(|cause| cause.is::<Unanswered>()) {
                Ended::Left
            } else if !is_idle {
                Ended::Torn
            } else if error.is_parse_too_large() {
                Ended::Owed(TurnedAway::HeaderTooLarge)
            } else if error.is_parse() {
                Ended::Owed(TurnedAway::Malformed)
            } else if error.is_timeout() && has_part {
                Ended::Owed(TurnedAway::HeaderTimeout) // a client that is silent between requests gets no answer
            } else {
                Ended::Left
            }
        }
    };
    Finished { stream, early, ended }
}

/// `true` if `read`, the first bytes of a connection that is not HTTP/1.1, begins with the HTTP/2 preface or is a part of it.
fn is_http2(read: &[u8]) -> bool {
    !read.is_empty() && (read.starts_with(PREFACE) || PREFACE.starts_with(read))
}

impl Finished {
    /// Writes the client's pending answer and closes the connection, unless another connection needs the place first. An HTTP/2
    /// preface is no HTTP/1.1 request.
    pub async fn end<E: Endpoint>(self, endpoint: &E, place: &Place, exchange: &Exchange) {
        let (Self { stream, ended, .. }, Parts { rates, shutdown, .. }) = (self, endpoint.parts());
        let reason = match ended {
            Ended::Closed | Ended::Left | Ended::Torn => None,
            Ended::Http2 => Some(TurnedAway::Malformed),
            Ended::Owed(reason) => Some(reason),
            Ended::Displaced { .. } | Ended::DisplacedUnread => Some(TurnedAway::Displaced),
        };
        reason.into_iter().for_each(|reason| endpoint.record(reason));
        let connections = endpoint.with_limits(|limits| {
            if matches!(ended, Ended::Http2 | Ended::Owed(_)) {
                rates.refused(place.source(), limits.bounds.sources, 1);
            }
            limits.bounds.connections
        });
        if let Ended::Torn | Ended::DisplacedUnread = ended {
            // A client that reads until the end of the connection must not take this for the end of the body.
            _ = shutdown.until_stopped(endpoint.tear(stream, ended == Ended::Torn)).await;
            return;
        }
        let ending = async {
            match (ended, reason) {
                (Ended::Displaced { .. }, _) if !place.may_answer(connections) => {}
                (Ended::Displaced { is_owed: false }, _) | (_, None) => leave(stream).await,
                (_, Some(reason)) => part(stream, &endpoint.answer(reason)).await,
            }
        };
        tokio::select! {
            _ = shutdown.until_stopped(ending) => {}
            () = exchange.displaced(), if !matches!(ended, Ended::Displaced { .. }) => {}
        }
    }
}
