//! One client connection: requests, one after the other, until one of them becomes a tunnel, or it turns out to be HTTP/2.
//!
//! The driver of HTTP/1.1 (`h1`) gives the stream back when a CONNECT was answered 200, and the same task goes on as the
//! tunnel. So a tunnel costs one task, and nothing is handed between tasks. It also gives back a connection that begins as
//! HTTP/2 does, over TLS as without, and `h2` goes on with it.

use crate::request::answer::refused_raw;
use crate::request::deny::Refusal;
use crate::request::tunnel::{self, TunnelLimits};
use crate::server::h1::{self, Finished};
use crate::server::{Visitor, h2};
use crate::state::Worker;
use postern_daemon::farewell::{LINGER, leave, part};
use postern_daemon::tls::Accepted;
use postern_proxy::http2::Unsent;
use postern_proxy::reset::{self, Reset};
use std::sync::Arc;

/// Serves a connection to its end, or to the stop.
pub(crate) async fn serve(stream: Accepted, visitor: Visitor, worker: Arc<Worker>) {
    let (shutdown, limits) = (&worker.core.shutdown, worker.core.settings.limits.load_full());
    let client = visitor.client();
    let Visitor { client: address, mut place, exchange, peer } = visitor;
    // Boxed, so that the room HTTP needs is given back before the tunnel begins. Not cut off from here: an answer that
    // is being given has to end in a reset.
    let requests = h1::requests(stream, client, exchange.clone(), Arc::clone(&limits), Arc::clone(&worker));
    match Box::pin(requests).await {
        Finished::Tunnel { stream, early, opened } => {
            place.keep();
            let of_tunnel = TunnelLimits::of(&limits);
            drop(limits);
            let tunnel = tunnel::run(stream, opened, early, &of_tunnel, &worker.core.recorder);
            shutdown.until_stopped(tunnel).await;
        }
        Finished::Http2 { stream, early } => {
            stream.bound_unsent();
            let visitor = Visitor { client: address, place, exchange, peer };
            Box::pin(h2::serve(stream, early, visitor, limits, worker)).await;
        }
        Finished::Owed { stream, refusal } => {
            worker.core.refused(client.source, &limits, &refusal);
            worker.core.recorder.turned_away(&refusal);
            shutdown.until_stopped(part(stream, &refused_raw(&refusal))).await;
        }
        Finished::Displaced { stream, is_owed } => {
            worker.core.recorder.turned_away(&Refusal::Displaced);
            if !place.may_answer(limits.connections) {
                return;
            }
            let answer = if is_owed { refused_raw(&Refusal::Displaced) } else { Vec::new() };
            shutdown.until_stopped(part(stream, &answer)).await;
        }
        // A client that reads until the end must not take this for the end of the body, so reset, but deliver what was
        // written.
        Finished::Torn { stream } => {
            shutdown.until_stopped(reset::delivered(&stream, LINGER)).await;
            stream.reset();
        }
        Finished::Closed { stream } => _ = shutdown.until_stopped(leave(stream)).await,
    }
}
