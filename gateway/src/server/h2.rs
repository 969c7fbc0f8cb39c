//! The driver of HTTP/2: many concurrent requests and tunnels on one connection, each in a separate task.
//!
//! The `h2` crate reads and writes the frames. hyper is not used: it reads a tunnel's data only as fast as its target accepts
//! it, keeps the connection's window small, and closes the connection after a CONNECT with a Content-Length.
//!
//! Each stream takes a place, as a connection does, before its request is read: `limits.connections` bounds tunnels, however
//! few connections they share.

mod stream;

use crate::config::Limits;
use crate::request::session::Client;
use crate::state::Worker;
use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::exchange::Exchange;
use postern_daemon::places::Place;
use postern_daemon::serve::h2::{self as driver, drive_http2};
use postern_daemon::serve::{Endpoint, Visitor};
use postern_daemon::tls::Accepted;
use postern_proxy::http2::{CONNECTION_WINDOW, FRAME, FRAME_BUDGET, SEND_QUEUE, STREAM_WINDOW, Turns};
use std::sync::Arc;
use std::task::Context;
use stream::{Stream, Streams};
use tokio::time::Instant;

/// Maximum refusals that a client may leave unread, in addition to those that its socket holds. Each takes 4 KiB.
const UNREAD: usize = 8;

/// Serves a connection whose client began it with the preface of HTTP/2; `early` is the part that was already read.
pub(super) async fn serve(
    endpoint: &impl Endpoint,
    stream: Accepted,
    early: Bytes,
    (client, visitor): (Client, Visitor),
    limits: Arc<Limits>,
    worker: &Arc<Worker>,
) {
    let Visitor { place, exchange, .. } = visitor;
    let (worker, streams) = (Arc::clone(worker), Arc::<Streams>::default());
    if client.peer.is_some() {
        streams.paid(); // a peer's requests are already paid for
    }
    let stream = ClientStream::after(early, stream, exchange.clone());
    let stream = Turns::new(stream, streams.unpaid.clone());
    let http = settings(&limits);
    let streams = Serving { client, place, exchange: exchange.clone(), limits, worker, streams };
    drive_http2(endpoint, &http, stream, &exchange, streams).await;
}

fn settings(limits: &Limits) -> Builder {
    let mut settings = Builder::new();
    settings
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .max_concurrent_streams(limits.streams.get())
        .max_frame_size(FRAME)
        .enable_connect_protocol() // for UDP (RFC 8441)
        .max_header_list_size(u32::try_from(limits.header_size.0).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_QUEUE)
        // A client that resets all of its tunnels at once is no attacker.
        .max_pending_accept_reset_streams(limits.streams.get() as usize)
        .data_frame_budget(FRAME_BUDGET);
    settings
}

struct Serving {
    /// The client as of the handshake: a place that is kept has no source.
    client: Client,
    place: Place,
    exchange: Exchange,
    limits: Arc<Limits>,
    worker: Arc<Worker>,
    streams: Arc<Streams>,
}

impl driver::Streams for Serving {
    fn begin(&mut self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        self.streams.unpaid.hold(true); // one read, then the streams' tasks run
        let stream = Stream {
            respond,
            open: self.streams.open(),
            client: self.client,
            limits: Arc::clone(&self.limits),
            worker: Arc::clone(&self.worker),
        };
        self.worker.core.shutdown.tracker().spawn(stream::serve(request, stream));
    }

    /// A connection without streams ends after the header timeout, or `idle_timeout` after its last admitted stream.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(usize, Option<Instant>), Reason> {
        self.streams.unpaid.hold(false);
        let (open, paid) = self.streams.look(cx);
        if paid.is_some() {
            self.exchange.keep();
            self.exchange.stream(); // a client may read a tunnel slowly
            self.place.keep();
        }
        if self.streams.queue.pieces() > UNREAD {
            return Err(Reason::ENHANCE_YOUR_CALM); // the socket or the client's window is full
        }
        Ok((open, paid.map(|paid| paid + self.limits.idle_timeout.get())))
    }
}
