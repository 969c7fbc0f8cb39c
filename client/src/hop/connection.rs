//! One request for a tunnel: a connection to a gateway, the CONNECT on it, and the gateway's answer. Without a token, the answer
//! has the challenge, which describes the tokens that the gateway accepts.

use super::gateway::{Gateway, GatewayUrlError, RouteError};
use super::health::Outage;
use crate::config::GatewayConfig;
use crate::sentence::retry_after;
use crate::wallet::challenge::mark_of;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE};
use postern_daemon::BoxFuture;
use postern_daemon::http::{no_answer, one_line, quoted};
use postern_proxy::target::{Target, Transport};
use postern_proxy::tunnel::{Asked, Connect, Head, HeadError, Joined, Tunnel, Vigil, ask, read_body};
use postern_proxy::udp::template::Template;
use postern_token::header::{Challenge, format_authorization};
use postern_token::{Token, TokenChallenge, TokenType};
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The target of a request for a challenge: a name that cannot exist (RFC 6761, section 6.4). An agent opens no tunnel
/// there.
pub(crate) const CHALLENGE_TARGET: &str = "challenge.invalid:443";
/// Time limit for the body of a refusal. It only explains the status.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence on a shared connection after which it is probed.
const SILENCE: Duration = Duration::from_secs(1);

/// A connection, or a place on a shared one, on which nothing has been sent.
pub(crate) struct Connection {
    gateway: Arc<Gateway>,
    way: Joined,
}

/// The reason why a sent request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("the gateway {url} broke the connection off before it answered: {reason}; try again")]
    Broken { url: String, reason: String },
    #[error(
        "the connection to the gateway {url} died before it answered: it hangs, or the way to it does; try again"
    )]
    Dead { url: String },
    #[error("the gateway {url} did not answer within {limit:?}; it or the target is slow: try again")]
    Silent { url: String, limit: Duration },
    #[error(
        "the gateway {url} gave an answer that is not HTTP/1.1 ({reason}); is this the address of a gateway?"
    )]
    NotHttp { url: String, reason: HeadError },
}

pub(crate) enum Answer {
    /// 2xx: the connection is now the tunnel (RFC 9110, section 9.3.6). For UDP, 101 over HTTP/1.1.
    Opened(Tunnel),
    Refused(Refused),
}

impl Gateway {
    /// Connects, over TLS for an https address, or takes a place on a shared connection. Sends no request yet.
    ///
    /// To the recorder, an attempt is a dial (name, TCP and TLS), answered when the connection is up. An exchange on that connection
    /// that ends without a readable answer counts as one more attempt, a lost one. The time of an answer is not recorded, because
    /// it includes the gateway's dial to the target. A dial abandoned because a program hung up is not an attempt.
    pub(crate) async fn dial(self: &Arc<Self>) -> Result<Connection, Outage> {
        let (began, limit) = (Instant::now(), self.dial_limit());
        let reason = match timeout(limit, self.way()).await {
            Ok(Ok(way)) => {
                self.attempts.iter().for_each(|link| link.answered(began.elapsed()));
                return Ok(Connection { gateway: self.clone(), way });
            }
            Ok(Err(RouteError::FirstHop(outage))) => return Err(outage),
            Ok(Err(RouteError::Io(error))) => no_answer(&error, self.ca_key),
            Err(_) if self.costs_a_token() => {
                format!("no connection through the first hop within {limit:?}: one of them is slow")
            }
            Err(_) => format!("no connection within {limit:?}; is it running, and is this its address?"),
        };
        self.lost();
        Err(Outage::no_answer(format_args!("the gateway {} cannot be reached: {reason}", self.url())))
    }

    fn lost(&self) {
        self.attempts.iter().for_each(|link| link.lost(1));
    }
}

impl Connection {
    /// Returns a liveness watch over a shared connection. `None` for a tunnel's own connection, which breaks with the tunnel.
    fn vigil(&self) -> Option<Vigil> {
        match &self.way {
            Joined::Alone(..) => None,
            Joined::Shared(seat) => Some(seat.vigil()),
        }
    }

    /// Checks that a quiet connection is still alive: getting a token may have taken long.
    pub(crate) fn answers(&self) -> impl Future<Output = bool> + use<> {
        let vigil = self.vigil();
        async move {
            match vigil {
                Some(vigil) => vigil.answers().await,
                None => true,
            }
        }
    }

    /// Returns `true` if the gateway may be asked for UDP. Over HTTP/1.1 only its answer shows.
    pub(crate) fn carries_udp(&self) -> bool {
        match &self.way {
            Joined::Alone(..) => true,
            Joined::Shared(seat) => seat.carries_udp(),
        }
    }

    /// Requests a tunnel to `target`, in one write, and reads the answer.
    pub(crate) async fn connect(
        self,
        target: &Target,
        token: Option<&Token>,
    ) -> Result<Answer, ExchangeError> {
        let vigil = self.vigil();
        let Self { gateway, way } = self;
        let path = (target.transport() == Transport::Udp).then(|| Template::default().expand(target));
        let authority = if path.is_some() { gateway.authority() } else { target.authority() };
        let authorization = token.map(format_authorization);
        let connect = Connect {
            authority: &authority,
            udp: path.as_deref(),
            authorization: authorization.as_deref(),
            more: None,
        };
        let is_http2 = matches!(way, Joined::Shared(_));
        let dead = async {
            match vigil {
                Some(vigil) => vigil.lost(SILENCE).await,
                None => pending().await,
            }
        };
        let exchange = async {
            match way {
                Joined::Alone(io, received) => {
                    let Asked { head, rest, tunnel } = ask(io, received, &connect).await?;
                    Ok((head, rest, tunnel))
                }
                Joined::Shared(seat) => {
                    let (head, tunnel) = seat.connect(&connect).await?;
                    Ok((head, BytesMut::new(), tunnel))
                }
            }
        };
        let url = || gateway.url().to_owned();
        let exchange = async {
            tokio::select! {
                answered = exchange => Some(answered),
                () = dead => None,
            }
        };
        let failure = match timeout(gateway.answer_timeout, exchange).await {
            Ok(Some(Ok((head, buffer, tunnel)))) if connect.is_opened_by(&head, is_http2) => {
                return Ok(Answer::Opened(tunnel.after(buffer.freeze())));
            }
            Ok(Some(Ok((head, buffer, tunnel)))) => {
                return Ok(Answer::Refused(refused(&gateway, head, buffer, tunnel).await));
            }
            Ok(Some(Err(HeadError::Broken(reason)))) => ExchangeError::Broken { url: url(), reason },
            Ok(Some(Err(reason))) => ExchangeError::NotHttp { url: url(), reason },
            Ok(None) => ExchangeError::Dead { url: url() },
            Err(_) => ExchangeError::Silent { url: url(), limit: gateway.answer_timeout },
        };
        gateway.lost();
        Err(failure)
    }
}

async fn refused(gateway: &Gateway, head: Head, mut buffer: BytesMut, mut tunnel: Tunnel) -> Refused {
    let mut body = BytesMut::new();
    let received = tunnel.received();
    let reading = read_body(&mut tunnel, &head, &mut buffer, &mut body);
    // A partial body is enough: it only explains the status.
    let _ = timeout(BODY_TIMEOUT, received.keep_taking(reading)).await;
    let (status, headers, origin) = (head.status, head.headers, gateway.origin.clone());
    Refused { status, headers, body: body.freeze(), origin }
}

/// An answer that opens no tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// At most [`postern_proxy::tunnel::BODY_LIMIT`] bytes.
    pub(crate) body: Bytes,
    /// The origin that a challenge must name; `None` accepts any.
    pub(crate) origin: Option<String>,
}

impl Refused {
    /// Returns the agent's own answer about a target of UDP whose last stream was short.
    pub(crate) fn short_udp() -> Self {
        let status = HeaderValue::from_static(
            "postern-agent; error=connection_terminated; details=\"the last stream to the target ended within seconds\"",
        );
        let headers = [(HeaderName::from_static("proxy-status"), status)].into_iter().collect();
        let body = "The last stream to the target ended within seconds: its port may be unreachable.\n";
        Self { status: StatusCode::BAD_GATEWAY, headers, body: body.into(), origin: None }
    }

    #[cfg(test)]
    pub(crate) fn of(status: StatusCode, headers: HeaderMap, body: Bytes) -> Self {
        Self { status, headers, body, origin: None }
    }

    /// Returns the first usable challenge in the gateway's order of preference. Skips other schemes, types that cannot be
    /// minted, unreadable challenges, and those of other gateways, where the token could be spent (RFC 9577, section
    /// 2.1.3).
    ///
    /// # Errors
    /// A sentence that describes the challenge or field found instead.
    pub(crate) fn challenge(&self) -> Result<Challenge, String> {
        let (mut reasons, mut other_types, mut values) = (Vec::new(), false, 0);
        for value in self.headers.get_all(PROXY_AUTHENTICATE) {
            values += 1;
            let challenges = Challenge::parse_all(value.as_bytes()).unwrap_or_else(|error| {
                reasons.push(error.to_string());
                Vec::new()
            });
            for challenge in challenges {
                match challenge.token_challenge() {
                    Ok(parsed) if !TokenType::ISSUED.contains(&parsed.token_type()) => other_types = true,
                    Ok(parsed) => match self.foreign(&parsed) {
                        Some(reason) => reasons.push(reason),
                        None => return Ok(challenge),
                    },
                    Err(error) => reasons.push(error.to_string()),
                }
            }
        }
        Err(match (values, reasons.first(), other_types) {
            (0, ..) => "its answer has no Proxy-Authenticate field".to_owned(),
            (_, Some(reason), _) => format!("its challenge cannot be used: {reason}"),
            (_, None, true) => "it requires tokens of other types than 1, 2 and 5".to_owned(),
            (_, None, false) => "it requires something other than a PrivateToken".to_owned(),
        })
    }

    /// Returns `true` if the gateway serves no target now (503 or 429). A 508 may be about one target.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
    }

    /// Describes the answer. The text follows the server's name.
    pub(crate) fn words(&self) -> String {
        format!("answered {}{}", self.status, quoted(&one_line(&self.body)))
    }

    /// Returns the reason why a challenge is rejected: it is another gateway's, or could tell clients apart.
    fn foreign(&self, challenge: &TokenChallenge) -> Option<String> {
        if challenge.redemption_context().is_some() && mark_of(challenge).is_some() {
            return Some(
                "it has a redemption context beside a mark, which could tell clients apart".to_owned(),
            );
        }
        let origin = self.origin.as_ref().filter(|origin| !challenge.names_origin(origin))?;
        // The mark is not the gateway's name, and changes.
        let named = challenge.origin_info().first().map_or("no origin", String::as_str);
        Some(format!(
            "it is for \"{named}\", and the gateway is \"{origin}\": if both are one, set gateway.origin to \"{named}\""
        ))
    }

    /// Returns `true` if the gateway refused the token as already spent.
    pub(crate) fn says_spent(&self) -> bool {
        let statuses = self.headers.get_all("proxy-status");
        statuses.iter().any(|value| value.as_bytes().windows(13).any(|text| text == b"already spent"))
    }
}

/// The reason why a gateway gave no challenge.
#[derive(Debug, thiserror::Error)]
pub enum ChallengeFetchError {
    /// The gateway's address is invalid.
    #[error(transparent)]
    Url(#[from] GatewayUrlError),
    /// The gateway cannot be reached, or gave no challenge for tokens of a type that can be minted.
    #[error(transparent)]
    Outage(#[from] Outage),
}

impl Outage {
    /// Returns the outage for a 503 or 429, or a 508 to a probe: the gateway accepts no tokens now, or none from this agent.
    pub(crate) fn unavailable(url: &str, refused: &Refused) -> Self {
        let (status, text) = (refused.status.as_u16(), quoted(&one_line(&refused.body)));
        let sentence = format_args!("the gateway {url} takes no tokens now: it answered {status}{text}");
        let retry_after = retry_after(&refused.headers);
        Self { is_unavailable: true, retry_after, ..Self::no_answer(sentence) }
    }
}

/// Fetches a gateway's challenge: a CONNECT without a token, to a name that cannot exist, and the first challenge for a token
/// that can be minted (type 1, 2 or 5) in the 407 that comes back. The challenge may be for any origin.
///
/// # Errors
/// [`ChallengeFetchError`].
pub fn fetch_challenge<'a>(
    gateway_url: &'a str,
    ca: Option<&'a Path>,
) -> BoxFuture<'a, Result<Challenge, ChallengeFetchError>> {
    Box::pin(async move {
        let config = GatewayConfig { ca: ca.map(Path::to_owned), ..GatewayConfig::at(gateway_url) };
        let mut gateway = Gateway::new(gateway_url, &config)?;
        gateway.origin = None;
        Ok(fetch_challenge_from(&Arc::new(gateway)).await?)
    })
}

pub(crate) async fn fetch_challenge_from(gateway: &Arc<Gateway>) -> Result<Challenge, Outage> {
    let no_challenge = |reason: String| {
        Outage::no_answer(format_args!(
            "the gateway {} gave no challenge: {reason}; is this the address of a gateway that takes tokens?",
            gateway.url()
        ))
    };
    let target = Target::parse(CHALLENGE_TARGET, None).map_err(|error| no_challenge(error.to_string()))?;
    let refused = match gateway.dial().await?.connect(&target, None).await.map_err(Outage::no_answer)? {
        Answer::Opened(_) => return Err(no_challenge("it opens tunnels without a token".to_owned())),
        Answer::Refused(refused) => refused,
    };
    match refused.status {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => refused.challenge().map_err(no_challenge),
        // Without a target, a 508 says that all targets lead in a circle.
        status if refused.is_unavailable() || status == StatusCode::LOOP_DETECTED => {
            Err(Outage::unavailable(gateway.url(), &refused))
        }
        status => {
            let text = quoted(&one_line(&refused.body));
            Err(no_challenge(format!("it answered {status}{text} where 407 is expected")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn an_answer_that_is_there_before_the_request_is_written_counts() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gateway = Arc::new(Gateway::new(&url, &GatewayConfig::at(&url)).unwrap());
        let connection = gateway.dial().await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 503 No\r\nRetry-After: 7\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let target = Target::parse("target.example:443", None).unwrap();
        let Ok(Answer::Refused(refused)) = connection.connect(&target, None).await else {
            panic!("no answer")
        };
        assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (503, "7"));
    }
}
