//! Connections of programs: admits them up to a limit, and tells their protocols apart.

use crate::catalogue::AgentOutcome;
use crate::front::http_proxy;
use crate::front::socks;
use crate::front::state::{Admission, AgentState};
use http::StatusCode;
use postern_daemon::descriptors::Descriptors;
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::farewell;
use postern_daemon::places::{Bounds, Places};
use postern_daemon::sources::SourceLimits;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit for a client's first byte. Browsers open connections ahead of need, and open others when those are closed.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the first byte of a rejected client, which then reads the reason.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limits for a client to read the agent's own answers, and those of a target.
const PATIENCE: Patience = Patience { answer: Duration::from_secs(5), stream: Duration::from_mins(10) };

/// The open connections. Each takes at most two file descriptors: its own, and the one to the gateway.
pub(crate) struct Connections {
    places: Places,
    limit: Limit,
    sources: SourceLimits,
}

/// The limit on connections, shared by its clones.
#[derive(Clone)]
pub(crate) struct Limit {
    most: Arc<AtomicUsize>,
    descriptors: Descriptors,
}

impl Limit {
    /// Sets the limit to `wanted`, or to what the file descriptors allow.
    pub(crate) fn set(&self, wanted: usize) {
        self.most.store(self.descriptors.connections("[listen] connections", wanted, 2), Ordering::Relaxed);
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Connections {
    pub(crate) fn new(wanted: usize, descriptors: Descriptors) -> Self {
        let limit = Limit { most: Arc::default(), descriptors };
        limit.set(wanted);
        Self { places: Places::default(), limit, sources: SourceLimits::default() }
    }

    pub(crate) fn limit(&self) -> Limit {
        self.limit.clone()
    }

    /// Waits until the next connection may be accepted. Cancel safe.
    pub(crate) async fn settled(&self) {
        self.places.settled(self.limit.most()).await;
    }

    /// Serves an accepted connection, or tells its client that there are too many.
    pub(crate) fn admit(&self, stream: TcpStream, from: SocketAddr, state: Arc<AgentState>) {
        let exchange = Exchange::new(PATIENCE);
        let connections = self.limit.most();
        let bounds = Bounds { connections, sources: &self.sources };
        let (shutdown, tracker) = (state.shutdown.clone(), state.shutdown.tracker().clone());
        if let Ok(place) = self.places.take(Some(from.ip()), bounds, &exchange) {
            let admission = Admission { place, exchange };
            tracker.spawn(async move { shutdown.until_stopped(serve(stream, admission, state)).await });
            return;
        }
        state.count(AgentOutcome::TooMany);
        if let Some(leaving) = self.places.leave(connections) {
            tracker.spawn(async move {
                shutdown.until_stopped(turn_away(stream)).await;
                drop(leaving);
            });
        }
    }
}

async fn serve(stream: TcpStream, admission: Admission, state: Arc<AgentState>) {
    let first = tokio::select! {
        first = first_byte(&stream, FIRST_BYTE_TIMEOUT) => first,
        () = admission.exchange.displaced() => return,
        () = state.shutdown.draining() => return,
    };
    if stream.set_nodelay(true).is_err() {
        return;
    }
    match first {
        Some(5) => socks::serve(stream, admission, &state).await,
        Some(4) => {
            state.count(AgentOutcome::BadRequest);
            socks::refuse_version_4(stream).await;
        }
        Some(_) => http_proxy::serve(stream, admission, state).await,
        None => {}
    }
}

async fn turn_away(stream: TcpStream) {
    match first_byte(&stream, REFUSED_TIMEOUT).await {
        Some(5) => socks::turn_away(stream).await,
        Some(4) => socks::refuse_version_4(stream).await,
        Some(_) => {
            let sentence = "Too many connections are open through this agent ([listen] connections), or from your \
                            address. Close some, or try again later. No token was sent.\n";
            farewell::part(stream, &farewell::later(StatusCode::SERVICE_UNAVAILABLE, 1, sentence)).await;
        }
        None => {}
    }
}

/// Peeks at the first byte, which tells the protocols apart: 5 and 4 are versions of SOCKS, and no HTTP method begins with
/// them.
async fn first_byte(stream: &TcpStream, patience: Duration) -> Option<u8> {
    let mut first = [0];
    match timeout(patience, stream.peek(&mut first)).await {
        Ok(Ok(1)) => Some(first[0]),
        _ => None,
    }
}
