//! Connections: HTTP/1.1 and HTTP/2, plain or over TLS. `routes` answers the requests on them.

mod h2;
mod routes;

pub(crate) use routes::Routes;

use crate::answer::Refusal;
use crate::issue::Client;
use crate::reload::{Present, Settings};
use postern_daemon::drain::Shutdown;
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::places::{Bounds, Places};
use postern_daemon::serve::h1::{Ended, Finished, builder, drive_http1};
use postern_daemon::serve::{self, Endpoint, Limits, Parts, TurnedAway, Visitor};
use postern_daemon::tls::{Accepted, ListenerTls, PublicKeyDigest};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

/// Maximum size of a request's header. Requests here are a few hundred bytes.
const MAX_HEADER: usize = 16 * 1024;

/// Open connections, and the admission of new ones.
pub(crate) struct Server {
    pub(crate) routes: Arc<Routes>,
    pub(crate) settings: Settings,
    pub(crate) places: Places,
    pub(crate) shutdown: Shutdown,
}

impl Server {
    /// Accepts connections until the drain begins, and those that already wait, then waits until the last one has ended.
    pub(crate) async fn accept(self, listener: TcpListener) {
        let (connections, shutdown) = (TaskTracker::new(), self.shutdown.clone());
        let accepting =
            serve::accept(Arc::new(self), ("the issuer", listener), &connections, shutdown.draining());
        let _ = accepting.await; // fails only for connections that wait
        connections.close();
        connections.wait().await;
    }

    async fn http1(&self, stream: Accepted, client: Client, exchange: &Exchange) -> Finished {
        let http = builder(self.settings.load().limits.header_timeout.get(), MAX_HEADER);
        // Boxed, so that a connection that waits for a request holds no memory for one.
        let answer = |request| {
            exchange.receive();
            Box::pin(async move {
                let (answering, response) = self.routes.answer(request, client, exchange).await;
                Ok(response.map(|body| answering.with(body)))
            })
        };
        drive_http1(self, &http, stream, exchange, answer).await
    }
}

impl Endpoint for Server {
    const WAITS: bool = true; // an answer takes milliseconds, so a place is free soon

    fn parts(&self) -> Parts<'_> {
        Parts { places: &self.places, rates: &self.routes.rates, shutdown: &self.shutdown }
    }

    fn with_limits<T>(&self, read: impl FnOnce(Limits<'_>) -> T) -> T {
        read(limits(&self.settings.load()))
    }

    fn is_balancer(&self, address: IpAddr) -> bool {
        self.settings.load().balancers.has(address)
    }

    fn tls(&self) -> Option<ListenerTls> {
        self.settings.load().tls.clone()
    }

    fn record(&self, reason: TurnedAway) {
        if reason != TurnedAway::Certificate {
            let (_, outcome) = Refusal::TurnedAway(reason).status();
            self.routes.issuance.recorder.answered(None, outcome, Duration::ZERO);
        }
    }

    fn answer(&self, reason: TurnedAway) -> Vec<u8> {
        match reason {
            TurnedAway::Certificate | TurnedAway::HeaderTimeout => Vec::new(),
            reason => Refusal::TurnedAway(reason).raw(),
        }
    }

    async fn serve(&self, stream: Accepted, visitor: Visitor) {
        let Visitor { place, exchange, .. } = visitor;
        let certificate = match &stream {
            Accepted::Left(_) => None,
            Accepted::Right(stream) => PublicKeyDigest::of_client(stream.get_ref().1),
        };
        let client = Client { source: place.source(), certificate };
        // Boxed, so the memory of HTTP/1.1 is freed before HTTP/2 begins.
        match Box::pin(self.http1(stream, client, &exchange)).await {
            Finished { stream, early, ended: Ended::Http2 } if self.settings.load().http2 => {
                Box::pin(self.http2(stream, early, client, &exchange)).await;
            }
            finished => finished.end(self, &place, &exchange).await,
        }
    }
}

/// Returns the limits on connections, and on HTTP/2 requests.
fn limits(present: &Present) -> Limits<'_> {
    let timeout = present.limits.header_timeout.get();
    Limits {
        bounds: Bounds { connections: present.connections, sources: &present.limits.source },
        patience: Patience { answer: timeout, stream: timeout },
    }
}
