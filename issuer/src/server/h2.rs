//! The driver of HTTP/2: many requests at once on one connection. The `h2` crate reads and writes the frames.
//!
//! Each stream takes a place of its own, as a connection does, before its request is read: what is answered at once is bounded by
//! `limits.connections`, however few connections it comes on.

use super::{Client, MAX_HEADER, Server};
use crate::answer::Refusal;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::{self, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, DATE, EXPECT, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Body, Frame, SizeHint};
use postern_daemon::client_stream::ClientStream;
use postern_daemon::early::Early;
use postern_daemon::exchange::{Answering, Exchange};
use postern_daemon::http::date_now;
use postern_daemon::places::{Bounds, NoPlace};
use postern_daemon::tls::Accepted;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until, timeout};

/// The most requests at once on a connection; as many as RFC 9113 (section 6.5.2) advises at least.
const STREAMS: u32 = 100;
/// How many bytes of a connection's request bodies may be unread. Bodies are read as they come.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How many bytes of an answer may be in memory beside the answer itself.
const SEND_QUEUE: usize = 64 << 10;
/// How many times the longest pause in reading an answer all of it may take.
const WHOLE: u32 = 4;
/// How long a connection may take to end.
const ENDING: Duration = Duration::from_millis(250);
/// How long a connection without requests has for its last words on a drain: a client answers a PING first.
const FAREWELL: Duration = Duration::from_millis(500);

impl Server {
    /// Serves a connection to its end, or until the drain and its last answer. It began with `early`.
    pub(super) async fn http2(&self, stream: Accepted, early: Vec<u8>, client: Client, exchange: &Exchange) {
        let stream = Early::new(early.into(), stream);
        let shaking = settings().handshake(ClientStream::new(stream, exchange.clone()));
        let shaken = tokio::select! {
            shaken = timeout(self.header_timeout(), shaking) => shaken,
            () = exchange.displaced() => return drop(self.turned_away(&Refusal::Displaced)),
        };
        let Ok(Ok(mut connection)) = shaken else { return };
        match self.accept(&mut connection, client, exchange).await {
            Ended::Closed => return,
            Ended::Idle => {}
            Ended::Displaced => drop(self.turned_away(&Refusal::Displaced)),
        }
        connection.abrupt_shutdown(Reason::NO_ERROR);
        let _ = timeout(ENDING, poll_fn(|cx| connection.poll_closed(cx))).await;
    }

    /// Answers requests until the connection has to end. One without requests ends after `header_timeout`, as one of
    /// HTTP/1.1 does.
    async fn accept<T>(
        &self,
        connection: &mut Connection<T, Bytes>,
        client: Client,
        exchange: &Exchange,
    ) -> Ended
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut requests = FuturesUnordered::new();
        let mut answering: Option<Answering> = None;
        let mut is_draining = false;
        let mut idle = pin!(sleep_until(Instant::now() + self.header_timeout()));
        loop {
            tokio::select! {
                accepted = poll_fn(|cx| connection.poll_accept(cx)) => {
                    let Some(Ok((request, respond))) = accepted else { return Ended::Closed };
                    if answering.is_none() {
                        answering = exchange.begin_any();
                    }
                    requests.push(Box::pin(self.request(request, respond, client)));
                }
                Some(()) = requests.next() => if requests.is_empty() {
                    answering = None;
                    let left = if is_draining { FAREWELL } else { self.header_timeout() };
                    idle.as_mut().reset(Instant::now() + left);
                },
                () = &mut idle, if requests.is_empty() => return Ended::Idle,
                () = exchange.displaced() => return Ended::Displaced,
                () = self.shutdown.draining(), if !is_draining => {
                    is_draining = true;
                    connection.graceful_shutdown(); // what is being answered is the last
                    idle.as_mut().reset(Instant::now() + FAREWELL);
                }
            }
        }
    }

    /// One request and its answer, unless the client resets the stream first.
    async fn request(&self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>, client: Client) {
        let (exchange, present) = (self.exchange(), self.settings.load_full());
        let bounds = Bounds { connections: present.connections, sources: &present.limits.source };
        let is_head = request.method() == Method::HEAD;
        let (_place, answered) = match self.places.take_for(client.source, bounds, &exchange) {
            Ok(place) => {
                if request.headers().contains_key(EXPECT) {
                    let _ = respond.send_informational(proceed()); // it fails for a stream that is over
                }
                let answered = tokio::select! {
                    biased;
                    _ = poll_fn(|cx| respond.poll_reset(cx)) => {
                        // Counted like a refusal: who resets what it asks for could ask without end.
                        return self.routes.refused(client.source);
                    }
                    () = exchange.displaced() => Err(Refusal::Displaced),
                    answered = self.answer(request, client, &exchange) => answered,
                };
                (Some(place), answered)
            }
            Err(NoPlace::Source) => (None, Err(Refusal::SourceLimit)),
            Err(NoPlace::Full) => (None, Err(Refusal::Full)),
        };
        let (answering, response) = match answered {
            Ok((answering, response)) => (Some(answering), response),
            Err(refusal) => (None, self.routes.turned_away(refusal, client.source)),
        };
        let pause = present.limits.header_timeout.get();
        let sending = timeout(WHOLE * pause, send(&mut respond, response, is_head, &exchange, pause));
        // In this order: a request that gave way has an answer, too, and only an answer that is not taken is given up.
        let sent = tokio::select! {
            biased;
            sent = sending => sent.ok().flatten(),
            () = exchange.displaced() => {
                answering.is_some().then(|| self.turned_away(&Refusal::Displaced));
                None
            }
        };
        if sent.is_none() {
            respond.send_reset(Reason::CANCEL); // the client does not read it, or the stream is over
        }
    }

    async fn answer(
        &self,
        request: Request<RecvStream>,
        client: Client,
        exchange: &Exchange,
    ) -> Result<(Answering, Response<Full<Bytes>>), Refusal> {
        let (mut head, body) = request.into_parts();
        // One name for both versions of HTTP (RFC 9113, section 8.3.1).
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

/// Why a connection ends.
enum Ended {
    /// Its client left, it broke, or it was shut down and its last answer is sent.
    Closed,
    /// It brought no request for too long, or the drain has begun.
    Idle,
    /// Another connection needs the place.
    Displaced,
}

fn settings() -> server::Builder {
    let mut settings = server::Builder::new();
    settings
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(MAX_HEADER as u32)
        .max_send_buffer_size(SEND_QUEUE)
        // A client that gives up all of its requests at once is no attacker.
        .max_pending_accept_reset_streams(STREAMS as usize);
    settings
}

/// "100 Continue" (RFC 9110, section 15.2.1): without it some clients wait before they send the body.
fn proceed() -> Response<()> {
    let mut proceed = Response::new(());
    *proceed.status_mut() = StatusCode::CONTINUE;
    proceed
}

/// Sends an answer, of which the client may leave a piece unread for `pause`. Returns nothing when that is over, or the stream.
async fn send(
    respond: &mut SendResponse<Bytes>,
    response: Response<Full<Bytes>>,
    is_head: bool,
    exchange: &Exchange,
    pause: Duration,
) -> Option<()> {
    let (mut head, body) = response.into_parts();
    let mut body = body.collect().await.map(Collected::to_bytes).ok()?; // it is there
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

/// A request's body. What is read of it gives the client room to send more.
struct RequestBody {
    stream: RecvStream,
    /// As the header says; `h2` holds the client to it.
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
