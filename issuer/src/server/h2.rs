//! The driver of HTTP/2: many requests at once on one connection. The `h2` crate reads and writes the frames.
//!
//! Each stream takes a place, as a connection does, before its request is read: `limits.connections` bounds the requests answered
//! at once, however few connections they come on.

use super::{MAX_HEADER, Server, limits};
use crate::answer::Refusal;
use crate::issue::Client;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, DATE, EXPECT, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Body, Frame, SizeHint};
use postern_daemon::client_stream::ClientStream;
use postern_daemon::exchange::{Answering, Exchange};
use postern_daemon::http::date_now;
use postern_daemon::serve::h2::{Streams, drive_http2, proceed};
use postern_daemon::serve::{Endpoint, Limits, TurnedAway};
use postern_daemon::tls::Accepted;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Maximum number of requests at once on a connection, the minimum that RFC 9113 (section 6.5.2) recommends.
const STREAMS: u32 = 100;
/// Maximum number of unread bytes of request bodies on a connection. Bodies are read as they arrive.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum number of bytes of an answer in memory in addition to the answer itself.
const SEND_QUEUE: usize = 64 << 10;
/// Maximum time to take a whole answer, in multiples of the longest pause in reading it.
const WHOLE: u32 = 4;

/// The requests in progress on a connection.
struct Requests<'a> {
    server: &'a Server,
    client: Client,
    open: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
}

impl Streams for Requests<'_> {
    fn begin(&mut self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        self.open.push(Box::pin(self.server.request(request, respond, self.client)));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(usize, Option<Instant>), Reason> {
        while let Poll::Ready(Some(())) = self.open.poll_next_unpin(cx) {}
        Ok((self.open.len(), None))
    }
}

impl Server {
    /// Serves a connection to its end, or until the last answer of a drain. `early` are the bytes already read.
    pub(super) async fn http2(&self, stream: Accepted, early: Bytes, client: Client, exchange: &Exchange) {
        let stream = ClientStream::after(early, stream, exchange.clone());
        let requests = Requests { server: self, client, open: FuturesUnordered::new() };
        drive_http2(self, &settings(), stream, exchange, requests).await;
    }

    /// Answers one request, unless the client resets the stream first.
    async fn request(&self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>, client: Client) {
        let present = self.settings.load_full();
        let Limits { bounds, patience } = limits(&present);
        let exchange = Exchange::new(patience);
        let is_head = request.method() == Method::HEAD;
        let (_place, answered) = match self.places.take_for(client.source, bounds, &exchange) {
            Ok(place) => {
                if request.headers().contains_key(EXPECT) {
                    let _ = respond.send_informational(proceed()); // fails if the stream has ended
                }
                let answered = tokio::select! {
                    biased;
                    _ = poll_fn(|cx| respond.poll_reset(cx)) => {
                        // Counted like a refusal: otherwise a client could send and reset requests without end.
                        return self.routes.refused(client.source);
                    }
                    () = exchange.displaced() => Err(Refusal::TurnedAway(TurnedAway::Displaced)),
                    answered = self.respond(request, client, &exchange) => answered,
                };
                (Some(place), answered)
            }
            Err(no_place) => (None, Err(Refusal::TurnedAway(TurnedAway::NoPlace(no_place)))),
        };
        let (answering, response) = match answered {
            Ok((answering, response)) => (Some(answering), response),
            Err(refusal) => (None, self.routes.turned_away(refusal, client.source)),
        };
        let pause = patience.answer;
        let sending = timeout(WHOLE * pause, send(&mut respond, response, is_head, &exchange, pause));
        // In this order: a displaced request has an answer, too, and only an answer that the client does not read is given up.
        let sent = tokio::select! {
            biased;
            sent = sending => sent.ok().flatten(),
            () = exchange.displaced() => {
                answering.is_some().then(|| self.record(TurnedAway::Displaced));
                None
            }
        };
        if sent.is_none() {
            respond.send_reset(Reason::CANCEL); // the client does not read it, or the stream is over
        }
    }

    async fn respond(
        &self,
        request: Request<RecvStream>,
        client: Client,
        exchange: &Exchange,
    ) -> Result<(Answering, Response<Full<Bytes>>), Refusal> {
        let (mut head, body) = request.into_parts();
        // One header for both versions of HTTP (RFC 9113, section 8.3.1).
        let host = head.uri.authority().and_then(|authority| HeaderValue::try_from(authority.as_str()).ok());
        match (host, head.headers.get(HOST)) {
            (Some(host), None) => _ = head.headers.insert(HOST, host),
            (Some(host), Some(other)) if host != other => {
                return Err(Refusal::Ambiguous("names one host in :authority and another in Host"));
            }
            _ => {}
        }
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let request = Request::from_parts(head, RequestBody { stream: body, length });
        Ok(self.routes.answer(request, client, exchange).await)
    }
}

fn settings() -> Builder {
    let mut settings = Builder::new();
    settings
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(MAX_HEADER as u32)
        .max_send_buffer_size(SEND_QUEUE)
        // A client that resets all of its requests at once is no attacker.
        .max_pending_accept_reset_streams(STREAMS as usize);
    settings
}

/// Sends an answer. `None` if the client leaves a piece unread for `pause`, or the stream ends.
async fn send(
    respond: &mut SendResponse<Bytes>,
    response: Response<Full<Bytes>>,
    is_head: bool,
    exchange: &Exchange,
    pause: Duration,
) -> Option<()> {
    let (mut head, body) = response.into_parts();
    let mut body = body.collect().await.map(Collected::to_bytes).ok()?; // it is complete
    head.headers.insert(DATE, date_now());
    if head.status != StatusCode::NOT_MODIFIED {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    let is_end = is_head || body.is_empty();
    let mut stream = respond.send_response(Response::from_parts(head, ()), is_end).ok()?;
    while !is_end && !body.is_empty() {
        stream.reserve_capacity(body.len());
        exchange.set_unread(true);
        let room = timeout(pause, poll_fn(|cx| stream.poll_capacity(cx))).await.ok()??.ok()?;
        exchange.set_unread(false);
        let piece = body.split_to(room.min(body.len()));
        stream.send_data(piece, body.is_empty()).ok()?;
    }
    Some(())
}

/// A request's body. Reading from it gives the client room to send more.
struct RequestBody {
    stream: RecvStream,
    /// The Content-Length, which `h2` enforces.
    length: Option<u64>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let piece = ready!(self.stream.poll_data(cx)).map(|piece| {
            let piece = piece?;
            self.stream.flow_control().release_capacity(piece.len())?;
            Ok(Frame::data(piece))
        });
        Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}
