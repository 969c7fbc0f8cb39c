//! An HTTP/2 stream: one request, and its answer or its tunnel.

use crate::config::Limits;
use crate::request::answer::{self, Body};
use crate::request::deny::{AskedIn, Refusal};
use crate::request::forward::RequestBody;
use crate::request::session::{self, Answer, Client, Opened};
use crate::request::tunnel;
use crate::state::Worker;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderValue, Method, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Collected};
use parking_lot::Mutex;
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::places::{Bounds, Place};
use postern_daemon::serve::TurnedAway;
use postern_daemon::serve::h2::proceed;
use postern_proxy::http2::{Http2Stream, Inbox, Queue, Unpaid, has_padded_value};
use postern_proxy::reset::Reset;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};

/// State that the tasks of a connection and of its streams share.
#[derive(Default)]
pub(super) struct Streams {
    state: Mutex<State>,
    pub(super) unpaid: Unpaid,
    /// Refusals that wait to be written.
    pub(super) queue: Queue,
}

#[derive(Default)]
struct State {
    open: usize,
    /// Time at which the last admitted stream began or ended; `None` if there was none.
    paid: Option<Instant>,
    connection: Option<Waker>,
}

/// Guard that counts a stream as open until it is dropped.
pub(super) struct Open {
    streams: Arc<Streams>,
    has_paid: bool,
}

impl Streams {
    pub(super) fn open(self: &Arc<Self>) -> Open {
        self.state.lock().open += 1;
        Open { streams: Arc::clone(self), has_paid: false }
    }

    /// Records that a stream was admitted, or will be.
    pub(super) fn paid(&self) {
        self.unpaid.lift();
        let mut state = self.state.lock();
        if state.paid.replace(Instant::now()).is_none() {
            state.connection.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the number of open streams, and the time of the last admitted one. Stores the waker of the connection's task.
    pub(super) fn look(&self, cx: &Context<'_>) -> (usize, Option<Instant>) {
        let mut state = self.state.lock();
        state.connection = Some(cx.waker().clone());
        (state.open, state.paid)
    }
}

impl Open {
    fn unpaid(&self) -> Unpaid {
        self.streams.unpaid.clone()
    }

    fn queue(&self) -> &Queue {
        &self.streams.queue
    }

    fn paid(&mut self) {
        self.has_paid = true;
        self.streams.paid();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.streams.state.lock();
        state.open -= 1;
        if self.has_paid {
            state.paid = Some(Instant::now());
        }
        if state.open == 0 {
            state.connection.take().into_iter().for_each(Waker::wake);
        }
    }
}

pub(super) struct Stream {
    pub(super) respond: SendResponse<Bytes>,
    pub(super) open: Open,
    pub(super) client: Client,
    pub(super) limits: Arc<Limits>,
    pub(super) worker: Arc<Worker>,
}

/// A tunnel, and the parts of its stream that it keeps.
struct Tunnel {
    stream: Http2Stream,
    opened: Opened,
    limits: Arc<Limits>,
    worker: Arc<Worker>,
    _place: Place,
    _open: Open,
}

/// Serves a stream until its end or the stop.
///
/// Not an async function of its arguments: every tunnel would hold memory for its request as long as it is open. Everything
/// else is built when the task runs, because a turn of the connection brings hundreds of requests.
pub(super) fn serve(request: Request<RecvStream>, stream: Stream) -> impl Future<Output = ()> + Send {
    let asked = Box::new((request, stream));
    async move {
        let (inbox, serving) = begin(*asked);
        inbox.keep_taking(serving).await;
    }
}

fn begin(
    (request, stream): (Request<RecvStream>, Stream),
) -> (Inbox, Pin<Box<dyn Future<Output = ()> + Send>>) {
    let (head, body) = request.into_parts();
    let inbox = Inbox::new(body, Some(stream.open.unpaid()));
    let request = Request::from_parts(head, RequestBody::Right(inbox.clone()));
    let shutdown = stream.worker.core.shutdown.clone();
    let answering = Box::pin(answer(request, inbox.clone(), stream));
    let serving = Box::pin(async move {
        let Some(tunnel) = answering.await else { return };
        let Tunnel { stream, opened, limits, worker, _place, _open } = tunnel;
        let tunnel = tunnel::run(stream, opened, Bytes::new(), &limits, &worker.core.recorder);
        drop(limits);
        tunnel.await;
    });
    let serving = Box::pin(async move { _ = shutdown.until_stopped(serving).await });
    (inbox, serving)
}

/// Answers the request. Returns a tunnel if the request opened one.
async fn answer(request: Request<RequestBody>, inbox: Inbox, stream: Stream) -> Option<Tunnel> {
    let Stream { mut respond, mut open, client, limits, worker } = stream;
    let core = &worker.core;
    let is_head = request.method() == Method::HEAD;
    let exchange =
        Exchange::new(Patience { answer: limits.header_timeout.get(), stream: limits.idle_timeout.get() });
    let _answering = exchange.begin_any(); // a request that is being answered is not displaced
    let bounds = Bounds { connections: limits.connections, sources: &limits.source };
    let mut place = match core.places.take_for(client.source, bounds, &exchange) {
        Ok(place) => place,
        Err(no_place) => {
            let refusal = Refusal::from(TurnedAway::NoPlace(no_place));
            core.turned_away(&refusal);
            refuse(&mut respond, &open, answer::refused(&refusal, None, AskedIn::Proxy), is_head).await;
            return None;
        }
    };
    if has_padded_value(request.headers()) {
        core.refused(client.source, &limits, &Refusal::Malformed);
        core.turned_away(&Refusal::Malformed);
        respond.send_reset(Reason::PROTOCOL_ERROR);
        return None;
    }
    let waits = request.method() != Method::CONNECT && request.headers().contains_key(EXPECT);
    let answer = session::answer(&worker, &limits, client, &exchange, request);
    let Some(answer) = unless_reset(&mut respond, &exchange, waits.then_some(&inbox), answer).await else {
        // Counted as a refusal: otherwise a client that resets its requests could send them without limit.
        core.refused(client.source, &limits, &Refusal::Malformed);
        return None;
    };
    match answer {
        Answer::Tunnel(response, opened) => {
            open.paid();
            place.keep();
            let outbox = respond.send_response(response.map(|_| ()), false).ok()?;
            let stream = Http2Stream::new(inbox, outbox);
            Some(Tunnel { stream, opened, limits, worker, _place: place, _open: open })
        }
        Answer::Refused(response) => {
            refuse(&mut respond, &open, response, is_head).await;
            None
        }
        Answer::Forwarded(response) => {
            open.paid();
            place.keep();
            forward(&mut respond, &inbox, response, limits.idle_timeout.get()).await;
            None
        }
    }
}

/// Runs `work` unless the client resets the stream or its connection ends, and sends the interim answers of that time. A client
/// that `waits` with its request's body gets a 100 once `work` reads the body (RFC 9110, section 10.1.1).
async fn unless_reset<F: Future>(
    respond: &mut SendResponse<Bytes>,
    exchange: &Exchange,
    mut waits: Option<&Inbox>,
    work: F,
) -> Option<F::Output> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if respond.poll_reset(cx).is_ready() {
            return Poll::Ready(None);
        }
        let done = work.as_mut().poll(cx);
        for interim in exchange.take_interim() {
            let _ = respond.send_informational(interim); // fails for a stream that has ended
        }
        if done.is_pending() && waits.take_if(|inbox| inbox.is_wanted()).is_some() {
            let _ = respond.send_informational(proceed()); // fails for a stream that has ended
        }
        done.map(Some)
    })
    .await
}

/// Sends a refusal immediately. If the client does not read it, the refusal waits without a task and without a place, and the
/// connection counts it.
async fn refuse(respond: &mut SendResponse<Bytes>, open: &Open, response: Response<Body>, is_head: bool) {
    let (mut head, sentence) = response.into_parts();
    let sentence = sentence.collect().await.map(Collected::to_bytes).unwrap_or_default(); // it is complete
    head.headers.insert(CONTENT_LENGTH, HeaderValue::from(sentence.len()));
    match respond.send_response(Response::from_parts(head, ()), is_head) {
        Ok(mut outbox) if !is_head => {
            // Fails for a stream that has ended.
            let _ = outbox.send_data(open.queue().piece(sentence[..].into()), true);
        }
        Ok(_) => {}
        Err(_) => respond.send_reset(Reason::INTERNAL_ERROR),
    }
}

/// Sends a target's answer, of which the client may leave a piece unread for `pause`. An answer that is cut off ends in a
/// reset.
async fn forward(
    respond: &mut SendResponse<Bytes>,
    inbox: &Inbox,
    response: Response<Body>,
    pause: Duration,
) {
    let (head, body) = response.into_parts();
    let is_end = body.is_end_stream();
    let Ok(outbox) = respond.send_response(Response::from_parts(head, ()), is_end) else {
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };
    if is_end {
        return;
    }
    let mut stream = Http2Stream::new(inbox.clone(), outbox);
    let sent = match send_body(&mut stream, body, pause).await {
        Ok(()) => timeout(pause, poll_fn(|cx| stream.poll_written(cx))).await.map_err(io::Error::from),
        Err(error) => Err(error),
    };
    if sent.is_err() {
        stream.reset();
    }
}

async fn send_body(stream: &mut Http2Stream, mut body: Body, pause: Duration) -> io::Result<()> {
    loop {
        let frame = poll_fn(|cx| match stream.poll_broken(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::ConnectionReset)),
            Poll::Pending => Pin::new(&mut body).poll_frame(cx).map(Ok),
        });
        let Some(frame) = frame.await? else { return stream.shutdown().await };
        match frame.map_err(io::Error::other)?.into_data() {
            Ok(data) => timeout(pause, stream.write_all(&data)).await??,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return stream.end_with(trailers);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room<A, B, F: Future>(_: impl FnOnce(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Bounds the memory of every tunnel on HTTP/2, most of which are idle most of the time.
    #[test]
    fn a_stream_takes_little_room() {
        assert!(room(serve) <= 160, "{}", room(serve));
    }
}
