//! Connections of programs: admits them up to a limit, and detects their protocols.

use crate::catalogue::AgentOutcome;
use crate::front::answer::Refusal;
use crate::front::http_proxy;
use crate::front::socks;
use crate::front::state::AgentState;
use http::StatusCode;
use postern_daemon::exchange::Patience;
use postern_daemon::farewell::{last_answer, part};
use postern_daemon::places::Bounds;
use postern_daemon::serve::{Endpoint, Limits, Parts, TurnedAway, Visitor};
use postern_daemon::tls::Accepted;
use postern_proxy::reset;
use postern_proxy::udp::template::WELL_KNOWN_BEGIN;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit for a client's first byte. Browsers open connections ahead of need, and open others when those are closed.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the first byte of a rejected client, which then reads the reason.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limits for a client to read the agent's own answers, and those of a target.
const PATIENCE: Patience = Patience { answer: Duration::from_secs(5), stream: Duration::from_mins(10) };

impl Endpoint for AgentState {
    const WAITS: bool = false; // most connections are tunnels, which last

    fn parts(&self) -> Parts<'_> {
        Parts { places: &self.places, rates: &self.rates, shutdown: &self.shutdown }
    }

    fn with_limits<T>(&self, read: impl FnOnce(Limits<'_>) -> T) -> T {
        let bounds = Bounds { connections: self.limit.most(), sources: &self.sources };
        read(Limits { bounds, patience: PATIENCE })
    }

    fn record(&self, reason: TurnedAway) {
        match reason {
            TurnedAway::Malformed | TurnedAway::HeaderTooLarge => self.count(AgentOutcome::BadRequest),
            TurnedAway::Displaced | TurnedAway::HeaderTimeout => {} // its client asked for nothing
            _ => self.count(AgentOutcome::TooMany),
        }
    }

    fn answer(&self, reason: TurnedAway) -> Vec<u8> {
        match reason {
            TurnedAway::Malformed => {
                let sentence = "This is no request of HTTP/1.1. In a URL, \", <, >, ` and what is not ASCII are written with a \
                                percent sign (RFC 3986, section 2.1)";
                Refusal::Request(sentence).into_bytes()
            }
            TurnedAway::HeaderTooLarge => Refusal::HeaderTooLarge.into_bytes(),
            TurnedAway::HeaderTimeout => Vec::new(),
            _ => {
                let sentence = "Too many connections are open through this agent ([listen] connections), or from your \
                                address. Close some, or try again later. No token was sent.\n";
                last_answer(StatusCode::SERVICE_UNAVAILABLE, Some(1), sentence)
            }
        }
    }

    async fn turn_away(&self, stream: Accepted, reason: TurnedAway) {
        let Accepted::Left(stream) = stream else { return }; // there is no TLS here
        match first_byte(&stream, REFUSED_TIMEOUT).await {
            Some(5) => socks::turn_away(stream).await,
            Some(4) => socks::refuse_version_4(stream).await,
            Some(_) => part(stream, &self.answer(reason)).await,
            None => {}
        }
    }

    fn tear(&self, stream: Accepted, is_read: bool) -> impl Future<Output = ()> + Send {
        reset::tear(stream, is_read)
    }

    async fn serve(&self, stream: Accepted, visitor: Visitor) {
        let Accepted::Left(stream) = stream else { return }; // there is no TLS here
        let first = tokio::select! {
            first = self.shutdown.before_request(first_byte(&stream, FIRST_BYTE_TIMEOUT)) => first.flatten(),
            () = visitor.exchange.displaced() => return,
        };
        match first {
            Some(5) => _ = self.shutdown.until_stopped(socks::serve(stream, visitor, self)).await,
            Some(4) => {
                self.count(AgentOutcome::BadRequest);
                self.shutdown.until_stopped(socks::refuse_version_4(stream)).await;
            }
            Some(first) => {
                // Of the methods that programs send to a proxy, CONNECT alone begins so.
                let asks_for_tunnel = first == b'C' || asks_for_udp(&stream).await;
                http_proxy::serve(stream, asks_for_tunnel, visitor, self).await;
            }
            None => {}
        }
    }
}

/// Peeks at what has arrived, and returns `true` if it asks for UDP.
async fn asks_for_udp(stream: &TcpStream) -> bool {
    let mut begin = [0; 4 + WELL_KNOWN_BEGIN.len()];
    let length = stream.peek(&mut begin).await.unwrap_or(0);
    begin[..length].strip_prefix(b"GET ") == Some(WELL_KNOWN_BEGIN.as_bytes())
}

/// Peeks at the first byte, which identifies the protocol: 5 and 4 are versions of SOCKS, and no HTTP method begins with them.
async fn first_byte(stream: &TcpStream, patience: Duration) -> Option<u8> {
    let mut first = [0];
    match timeout(patience, stream.peek(&mut first)).await {
        Ok(Ok(1)) => Some(first[0]),
        _ => None,
    }
}
