//! The driver of HTTP/2: it accepts the streams of a connection until the client leaves, the connection is idle for too long, or the
//! stop comes. The `h2` crate reads and writes the frames.

use super::{Endpoint, TurnedAway};
use crate::exchange::Exchange;
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{Request, Response, StatusCode};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until, timeout};

const ENDING: Duration = Duration::from_millis(250);
/// Time for a connection without streams to end after a drain begins: its client answers a PING first.
const FAREWELL: Duration = Duration::from_millis(500);

/// The streams of a connection.
pub trait Streams {
    /// Begins to serve a request.
    fn begin(&mut self, request: Request<RecvStream>, respond: SendResponse<Bytes>);

    /// Returns the number of open streams, and the time at which the connection ends without any, if that is not the header timeout
    /// after the last one. Wakes the connection's task when the last one ends.
    ///
    /// # Errors
    /// The connection must end now.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(usize, Option<Instant>), Reason>;
}

/// Serves a connection whose client begins it with the preface of HTTP/2. `stream` reads it from its beginning.
pub async fn drive_http2<E: Endpoint, T: AsyncRead + AsyncWrite + Unpin>(
    endpoint: &E,
    http: &Builder,
    stream: T,
    exchange: &Exchange,
    mut streams: impl Streams,
) {
    let patience = endpoint.with_limits(|limits| limits.patience.answer);
    let shaken = tokio::select! {
        shaken = timeout(patience, http.handshake(stream)) => shaken,
        () = endpoint.parts().shutdown.stopped() => return,
        () = exchange.displaced() => return endpoint.record(TurnedAway::Displaced),
    };
    let Ok(Ok(mut connection)) = shaken else { return };
    let accepting = accept(endpoint, &mut connection, exchange, &mut streams, patience);
    let Some(reason) = accepting.await else { return };
    // Streams that were cut off end with a reset.
    let ending = async {
        poll_fn(|cx| {
            while let Poll::Ready(Some(Ok(_))) = connection.poll_accept(cx) {} // such a stream comes too late
            if let Ok((1.., _)) = streams.poll(cx) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        connection.abrupt_shutdown(reason);
        let _ = poll_fn(|cx| connection.poll_closed(cx)).await;
    };
    let _ = timeout(ENDING, ending).await;
}

/// Accepts streams until there is a reason to end; `None` if the client left, the connection broke, or it was shut down and its
/// last stream has ended. A connection without streams ends after `patience`, as in HTTP/1.1.
async fn accept<E: Endpoint, T: AsyncRead + AsyncWrite + Unpin>(
    endpoint: &E,
    connection: &mut Connection<T, Bytes>,
    exchange: &Exchange,
    streams: &mut impl Streams,
    patience: Duration,
) -> Option<Reason> {
    let shutdown = endpoint.parts().shutdown;
    let (mut draining, mut stopped) = (Some(pin!(shutdown.draining())), pin!(shutdown.stopped()));
    let mut displaced = pin!(exchange.displaced());
    let mut answering = None;
    let mut idle_since = Instant::now();
    let mut idle = pin!(sleep_until(idle_since + patience));
    poll_fn(|cx| {
        if stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Reason::NO_ERROR));
        }
        if displaced.as_mut().poll(cx).is_ready() {
            endpoint.record(TurnedAway::Displaced);
            return Poll::Ready(Some(Reason::NO_ERROR));
        }
        if draining.as_mut().is_some_and(|drain| drain.as_mut().poll(cx).is_ready()) {
            draining = None;
            idle_since = Instant::now();
            connection.graceful_shutdown(); // open streams continue until the stop
        }
        loop {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    if answering.is_none() {
                        answering = exchange.begin_any();
                    }
                    streams.begin(request, respond);
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        let (open, idle_until) = match streams.poll(cx) {
            Ok(state) => state,
            Err(fault) => return Poll::Ready(Some(fault)),
        };
        if open == 0 && answering.take().is_some() {
            idle_since = Instant::now();
        }
        if answering.is_none() {
            let end = match (&draining, idle_until) {
                (None, _) => idle_since + FAREWELL,
                (Some(_), Some(end)) => end,
                (Some(_), None) => idle_since + patience,
            };
            idle.as_mut().reset(end);
            if idle.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Some(Reason::NO_ERROR));
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns "100 Continue" (RFC 9110, section 15.2.1): without it some clients wait before they send the body.
pub fn proceed() -> Response<()> {
    let mut proceed = Response::new(());
    *proceed.status_mut() = StatusCode::CONTINUE;
    proceed
}
