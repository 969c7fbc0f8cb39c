//! A connection: it accepts streams until its client leaves, it does nothing for too long, or the stop comes.

use super::stream::{self, Stream};
use crate::config::Limits;
use crate::request::deny::Refusal;
use crate::request::session::Client;
use crate::server::connection::Visitor;
use crate::server::early::Early;
use crate::state::Worker;
use bytes::Bytes;
use h2::server::{self, Connection};
use h2::{Reason, RecvStream};
use http::Request;
use parking_lot::Mutex;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::exchange::Answering;
use postern_proxy::http2::{
    CONNECTION_WINDOW, FRAME, FRAME_BUDGET, SEND_QUEUE, STREAM_WINDOW, Turns, Unpaid,
};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until, timeout};

/// How long a connection may take to end.
const ENDING: Duration = Duration::from_millis(250);

/// What the tasks of a connection's streams and its own have in common.
#[derive(Default)]
pub(super) struct Streams(Mutex<State>);

#[derive(Default)]
struct State {
    open: usize,
    /// A tunnel was opened: its client has paid for the connection.
    has_paid: bool,
    connection: Option<Waker>,
}

/// A stream that is open, until this is dropped.
pub(super) struct Open(Arc<Streams>);

impl Streams {
    fn open(self: &Arc<Self>) -> Open {
        self.0.lock().open += 1;
        Open(Arc::clone(self))
    }

    /// How many are open, and whether any has paid. It leaves the connection's waker.
    fn look(&self, cx: &Context<'_>) -> (usize, bool) {
        let mut state = self.0.lock();
        state.connection = Some(cx.waker().clone());
        (state.open, state.has_paid)
    }
}

impl Open {
    /// Its request was admitted.
    pub(super) fn paid(&self) {
        let mut state = self.0.0.lock();
        if !std::mem::replace(&mut state.has_paid, true) {
            state.connection.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.open -= 1;
        if state.open == 0 {
            state.connection.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// Serves a connection whose client began it with the preface of HTTP/2, of which `early` is what was read.
pub(crate) async fn serve<S>(
    stream: S,
    early: Bytes,
    visitor: Visitor,
    limits: Arc<Limits>,
    worker: Arc<Worker>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let unpaid = Unpaid::default();
    let stream = ClientStream::new(Early::new(early, stream), visitor.exchange.clone());
    let shaking = settings(&limits).handshake::<_, Bytes>(Turns::new(stream, unpaid.clone()));
    let header_timeout = limits.header_timeout.get();
    let shutdown = worker.core.shutdown.clone();
    let shaken = tokio::select! {
        shaken = timeout(header_timeout, shaking) => shaken,
        () = shutdown.stopped() => return,
        () = visitor.exchange.displaced() => return worker.core.recorder.turned_away(&Refusal::Displaced),
    };
    let Ok(Ok(connection)) = shaken else { return };
    let (client, streams) = (visitor.client(), Arc::default());
    Serving { connection, unpaid, client, visitor, limits, worker, streams }.run().await;
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
        .data_frame_budget(FRAME_BUDGET);
    settings
}

struct Serving<T> {
    connection: Connection<T, Bytes>,
    unpaid: Unpaid,
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
}

impl<T: AsyncRead + AsyncWrite + Unpin> Serving<T> {
    async fn run(mut self) {
        match self.accept().await {
            Ended::Closed => return,
            Ended::Stopped => {}
            Ended::Displaced => self.worker.core.recorder.turned_away(&Refusal::Displaced),
        }
        let _ = timeout(ENDING, self.end()).await;
    }

    /// Ends a connection whose streams end now, each with a reset of its own if it was cut off.
    async fn end(&mut self) {
        poll_fn(|cx| {
            while let Poll::Ready(Some(Ok(_))) = self.connection.poll_accept(cx) {} // it comes too late
            if self.streams.look(cx).0 == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.connection.abrupt_shutdown(Reason::NO_ERROR);
        let _ = poll_fn(|cx| self.connection.poll_closed(cx)).await;
    }

    /// Accepts streams until there is a reason to end. A connection without streams ends after `header_timeout`, as one of
    /// HTTP/1.1 does, and after `idle_timeout` once it has carried a tunnel.
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
                self.connection.graceful_shutdown(); // tunnels go on until the stop
            }
            let (open, has_paid) = self.streams.look(cx);
            if has_paid {
                exchange.keep();
                exchange.stream(); // a client may read a tunnel slowly
                self.visitor.place.keep();
            }
            if open == 0 && answering.take().is_some() {
                idle_since = Instant::now();
            }
            loop {
                match self.connection.poll_accept(cx) {
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
            if answering.is_none() {
                let limit = if has_paid { self.limits.idle_timeout } else { self.limits.header_timeout };
                idle.as_mut().reset(idle_since + limit.get());
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
        let unpaid = self.unpaid.clone();
        self.worker.core.shutdown.tracker().spawn(stream::serve(request, unpaid, stream));
    }
}
