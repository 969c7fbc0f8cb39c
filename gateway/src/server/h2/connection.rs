//! A connection: it accepts streams until its client leaves, it does nothing for too long, or the stop comes.

use super::stream::{self, Stream, Streams};
use crate::config::Limits;
use crate::request::deny::Refusal;
use crate::request::session::Client;
use crate::server::Visitor;
use crate::state::Worker;
use bytes::Bytes;
use h2::server::{self, Connection};
use h2::{Reason, RecvStream};
use http::Request;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::early::Early;
use postern_daemon::exchange::Answering;
use postern_daemon::tls::Accepted;
use postern_proxy::http2::{CONNECTION_WINDOW, FRAME, FRAME_BUDGET, SEND_QUEUE, STREAM_WINDOW, Turns};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until, timeout};

/// How long a connection may take to end.
const ENDING: Duration = Duration::from_millis(250);
/// How long a connection without streams has for its last words on a drain: a client answers a PING first.
const FAREWELL: Duration = Duration::from_millis(500);
/// How many refusals a client may leave unread, each of which takes 4 KiB, beside what its socket holds.
const UNREAD: usize = 8;

/// Serves a connection whose client began it with the preface of HTTP/2, of which `early` is what was read.
pub(crate) async fn serve(
    stream: Accepted,
    early: Bytes,
    visitor: Visitor,
    limits: Arc<Limits>,
    worker: Arc<Worker>,
) {
    let streams = Arc::<Streams>::default();
    if visitor.peer.is_some() {
        streams.paid(); // what a peer asks for is paid already
    }
    let stream = ClientStream::new(Early::new(early, stream), visitor.exchange.clone());
    let shaking = settings(&limits).handshake::<_, Bytes>(Turns::new(stream, streams.unpaid.clone()));
    let header_timeout = limits.header_timeout.get();
    let shutdown = worker.core.shutdown.clone();
    let shaken = tokio::select! {
        shaken = timeout(header_timeout, shaking) => shaken,
        () = shutdown.stopped() => return,
        () = visitor.exchange.displaced() => return worker.core.recorder.turned_away(&Refusal::Displaced),
    };
    let Ok(Ok(connection)) = shaken else { return };
    let client = visitor.client();
    Serving { connection, client, visitor, limits, worker, streams }.run().await;
}

fn settings(limits: &Limits) -> server::Builder {
    let mut settings = server::Builder::new();
    settings
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .max_concurrent_streams(limits.streams.get())
        .max_frame_size(FRAME)
        .max_header_list_size(u32::try_from(limits.header_size.0).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_QUEUE)
        // A client that gives up all of its tunnels at once is no attacker.
        .max_pending_accept_reset_streams(limits.streams.get() as usize)
        .data_frame_budget(FRAME_BUDGET);
    settings
}

struct Serving<T> {
    connection: Connection<T, Bytes>,
    /// As it was at first: a place that is kept has no source.
    client: Client,
    visitor: Visitor,
    limits: Arc<Limits>,
    worker: Arc<Worker>,
    streams: Arc<Streams>,
}

/// Why a connection ends.
enum Ended {
    /// Its client left, it broke, or it was shut down and its last stream is over.
    Closed,
    /// The stop came.
    Stopped,
    /// Another connection needs the place.
    Displaced,
    /// Its client does not read why it is refused.
    Unread,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Serving<T> {
    async fn run(mut self) {
        let reason = match self.accept().await {
            Ended::Closed => return,
            Ended::Stopped => Reason::NO_ERROR,
            Ended::Displaced => {
                self.worker.core.recorder.turned_away(&Refusal::Displaced);
                Reason::NO_ERROR
            }
            Ended::Unread => Reason::ENHANCE_YOUR_CALM,
        };
        let _ = timeout(ENDING, self.end(reason)).await;
    }

    /// Ends a connection whose streams end now, each with a reset of its own if it was cut off.
    async fn end(&mut self, reason: Reason) {
        poll_fn(|cx| {
            while let Poll::Ready(Some(Ok(_))) = self.connection.poll_accept(cx) {} // it comes too late
            if self.streams.look(cx).0 == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.connection.abrupt_shutdown(reason);
        let _ = poll_fn(|cx| self.connection.poll_closed(cx)).await;
    }

    /// Accepts streams until there is a reason to end. A connection without streams ends after `header_timeout`, as one of
    /// HTTP/1.1 does, and `idle_timeout` after the last one that was paid for.
    async fn accept(&mut self) -> Ended {
        let shutdown = self.worker.core.shutdown.clone();
        let exchange = self.visitor.exchange.clone();
        let (mut draining, mut stopped) = (Some(pin!(shutdown.draining())), pin!(shutdown.stopped()));
        let mut displaced = pin!(exchange.displaced());
        let mut answering: Option<Answering> = None;
        let mut idle_since = Instant::now();
        let mut idle = pin!(sleep_until(idle_since + self.limits.header_timeout.get()));
        poll_fn(|cx| {
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ended::Stopped);
            }
            if displaced.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ended::Displaced);
            }
            if draining.as_mut().is_some_and(|drain| drain.as_mut().poll(cx).is_ready()) {
                draining = None;
                idle_since = Instant::now();
                self.connection.graceful_shutdown(); // tunnels go on until the stop
            }
            let (open, paid) = self.streams.look(cx);
            if paid.is_some() {
                exchange.keep();
                exchange.stream(); // a client may read a tunnel slowly
                self.visitor.place.keep();
            }
            if open == 0 && answering.take().is_some() {
                idle_since = Instant::now();
            }
            loop {
                let accepted = self.connection.poll_accept(cx);
                self.streams.unpaid.hold(true); // one turn, then the streams' tasks
                match accepted {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        if answering.is_none() {
                            answering = exchange.begin_any();
                        }
                        self.spawn(request, respond);
                    }
                    Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(Ended::Closed),
                    Poll::Pending => break,
                }
            }
            self.streams.unpaid.hold(false);
            if self.streams.queue.pieces() > UNREAD {
                return Poll::Ready(Ended::Unread); // the socket has no room for more, or the client's window
            }
            if answering.is_none() {
                let end = match (&draining, paid) {
                    (None, _) => idle_since + FAREWELL,
                    (Some(_), Some(paid)) => paid + self.limits.idle_timeout.get(),
                    (Some(_), None) => idle_since + self.limits.header_timeout.get(),
                };
                idle.as_mut().reset(end);
                if idle.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ended::Stopped);
                }
            }
            Poll::Pending
        })
        .await
    }

    fn spawn(&self, request: Request<RecvStream>, respond: server::SendResponse<Bytes>) {
        let stream = Stream {
            respond,
            open: self.streams.open(),
            client: self.client,
            limits: Arc::clone(&self.limits),
            worker: Arc::clone(&self.worker),
        };
        self.worker.core.shutdown.tracker().spawn(stream::serve(request, stream));
    }
}
