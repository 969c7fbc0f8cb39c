//! The driver of HTTP/1.1: hyper reads and writes it, one request after the other.

use super::{Client, MAX_HEADER, Server};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use postern_daemon::client_stream::ClientStream;
use postern_daemon::early::Early;
use postern_daemon::exchange::Exchange;
use postern_daemon::farewell;
use postern_daemon::places::Place;
use postern_daemon::tls::Accepted;
use std::convert::Infallible;

impl Server {
    /// Serves a connection to its end, or until the drain and its last answer. It began with `early`.
    pub(super) async fn http1(
        &self,
        stream: Accepted,
        early: Vec<u8>,
        client: Client,
        place: &Place,
        exchange: &Exchange,
    ) {
        if let Err(refusal) = self.routes.may_ask(client.source) {
            let answer = self.turned_away(&refusal);
            tokio::select! {
                () = farewell::part(stream, &answer) => {}
                () = exchange.displaced() => {}
            }
            return;
        }
        // Boxed, so that a connection that waits for a request needs no room for one.
        let answer = |request| {
            Box::pin(async move {
                let (answering, response) = self.routes.answer(request, client, exchange).await;
                Ok::<_, Infallible>(response.map(|body| answering.with(body)))
            })
        };
        let stream = ClientStream::new(Early::new(early.into(), stream), exchange.clone());
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new()) // without it the header timeout is silently off
            .header_read_timeout(self.header_timeout())
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        let served = tokio::select! {
            served = &mut connection => served,
            () = exchange.displaced() => {
                let parts = connection.into_parts();
                let is_owed = exchange.is_idle() && !parts.read_buf.is_empty();
                return self.displaced(parts.io.into_inner().into_inner(), place, is_owed).await;
            }
            () = self.shutdown.draining() => {
                // The request that is being answered is the last one.
                std::pin::Pin::new(&mut connection).graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            if error.is_parse() {
                self.routes.refused(client.source); // hyper has answered 400
            }
            tracing::debug!("a connection ended early: {error}");
        }
    }
}
