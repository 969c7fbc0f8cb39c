//! One client connection: requests, one after the other, until one of them becomes a tunnel.
//!
//! The driver of the HTTP version (`h1`) gives the stream back when a CONNECT was answered 200, and the same task goes
//! on as the tunnel. So a tunnel costs one task, and nothing is handed between tasks.

use crate::request::answer::refused_raw;
use crate::request::deny::Refusal;
use crate::request::session::Client;
use crate::request::tunnel::{self, TunnelLimits};
use crate::server::h1::{self, Finished};
use crate::state::Worker;
use postern_daemon::exchange::Exchange;
use postern_daemon::farewell::{LINGER, leave, part};
use postern_daemon::places::Place;
use postern_proxy::reset::{self, Reset};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// A client's connection, beside its stream.
pub(crate) struct Visitor {
    /// Its address, where the access log names it.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) place: Place,
    pub(crate) exchange: Exchange,
}

/// Serves a connection to its end, or to the stop.
pub(crate) async fn serve<S>(stream: S, visitor: Visitor, worker: Arc<Worker>)
where
    S: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    let (shutdown, limits) = (&worker.core.shutdown, worker.core.settings.limits.load_full());
    let Visitor { client, mut place, exchange } = visitor;
    let client = Client { address: client, source: place.source() };
    if let Err(refusal) = worker.core.may_ask(client.source, &limits) {
        worker.core.recorder.turned_away(&refusal);
        let answer = refused_raw(&refusal);
        tokio::select! {
            _ = shutdown.until_stopped(part(stream, &answer)) => {}
            () = exchange.displaced() => {}
        }
        return;
    }
    // Boxed, so that the room HTTP needs is given back before the tunnel begins. Not cut off from here: an answer that
    // is being given has to end in a reset.
    match Box::pin(h1::requests(stream, client, exchange, Arc::clone(&limits), Arc::clone(&worker))).await {
        Finished::Tunnel { stream, early, opened } => {
            place.keep();
            let of_tunnel = TunnelLimits::of(&limits);
            drop(limits);
            let tunnel = tunnel::run(stream, opened, early, &of_tunnel, &worker.core.recorder);
            shutdown.until_stopped(tunnel).await;
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
