//! The connection to the gateway: one TCP (or TLS) connection for one CONNECT.

use crate::challenge::mark_of;
use crate::config::GatewayConfig;
use crate::recorder::{Attempts, Open};
use crate::response::{self, Head, HeadError};
use bytes::{Buf, Bytes, BytesMut};
use http::StatusCode;
use http::header::{HeaderMap, PROXY_AUTHENTICATE};
use postern_admin::catalogue::LinkKind;
use postern_admin::live::Live;
use postern_daemon::http::{is_localhost, no_answer};
use postern_daemon::tls::{self, TlsError};
use postern_proxy::dial::connect;
use postern_proxy::reset::Reset;
use postern_proxy::target::Target;
use postern_token::header::{Challenge, format_authorization};
use postern_token::{Token, TokenChallenge, TokenType};
use reqwest::Url;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::lookup_host;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// How long the body of a refusal may take; it is an explanation, and the status stands without it.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The gateway, and how to reach it.
pub(crate) struct Gateway {
    url: String,
    host: String,
    port: u16,
    /// What its challenges must name; `None` where it has no name.
    origin: Option<String>,
    tls: Option<Tls>,
    connect_timeout: Duration,
    answer_timeout: Duration,
    attempts: Attempts,
}

struct Tls {
    connector: TlsConnector,
    name: tokio_rustls::rustls::pki_types::ServerName<'static>,
}

/// Why a gateway's address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GatewayUrlError {
    /// Not a URL that names a gateway.
    #[error(
        "the gateway's address \"{0}\" must be http://host:port or https://host:port, without a path, a user or a query"
    )]
    Url(String),
    /// The trusted certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why there is no connection to the gateway. No token was needed for finding out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DialError {
    /// Resolving, connecting or the TLS handshake failed.
    #[error("the gateway {url} cannot be reached: {reason}")]
    Failed {
        /// The gateway.
        url: String,
        /// What went wrong, and what to do.
        reason: String,
    },
    /// It took longer than `gateway.connect_timeout`.
    #[error(
        "the gateway {url} cannot be reached: no connection within {limit:?}; is it running, and is this its address?"
    )]
    Timeout {
        /// The gateway.
        url: String,
        /// The limit.
        limit: Duration,
    },
}

/// Why a request that was sent has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// The connection ended or broke before the answer was whole.
    #[error("the gateway {url} broke the connection off before it answered: {reason}; try again")]
    Broken { url: String, reason: String },
    /// The answer did not come in time.
    #[error("the gateway {url} did not answer within {limit:?}; it or the target is slow: try again")]
    Silent { url: String, limit: Duration },
    /// The answer is not HTTP, or too large.
    #[error(
        "the gateway {url} gave an answer that is not HTTP/1.1 ({reason}); is this the address of a gateway?"
    )]
    NotHttp { url: String, reason: HeadError },
}

/// The gateway's answer to a CONNECT.
pub(crate) enum Answer {
    /// 2xx: the connection is now the tunnel (RFC 9110, section 9.3.6).
    Opened(Tunnel),
    /// Anything else.
    Refused(Refused),
}

/// An answer that opens nothing.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// At most [`response::BODY_LIMIT`] bytes.
    pub(crate) body: Bytes,
    /// What a challenge must name.
    origin: Option<String>,
}

impl Gateway {
    /// The gateway at `address`, with the connection settings of `config`.
    pub(crate) fn new(address: &str, config: &GatewayConfig) -> Result<Self, GatewayUrlError> {
        let refused = || GatewayUrlError::Url(address.to_owned());
        let url = Url::parse(address).map_err(|_| refused())?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let anonymous = url.username().is_empty() && url.password().is_none();
        let host = url.host_str().filter(|_| bare && anonymous).ok_or_else(refused)?.to_owned();
        let tls = match url.scheme() {
            "http" => None,
            "https" => {
                Some(Tls::new(&host, config.ca.as_deref()).map_err(|error| error.unwrap_or_else(refused))?)
            }
            _ => return Err(refused()),
        };
        Ok(Self {
            url: address.trim_end_matches('/').to_owned(),
            origin: config.origin.clone().or_else(|| name_of(&url)),
            port: url.port_or_known_default().unwrap_or(80),
            host,
            tls,
            connect_timeout: config.connect_timeout.get(),
            answer_timeout: config.answer_timeout.get(),
            attempts: Attempts::default(),
        })
    }

    /// Shows each attempt in the link table of `live`, under the configured host and port.
    pub(crate) fn recorded(mut self, live: &Live) -> Self {
        let address = format!("{}:{}", self.host, self.port);
        self.attempts = Attempts::over(live.link(LinkKind::Gateway, &address));
        self
    }

    /// Takes challenges for any origin: for who mints and does not spend.
    pub(crate) fn of_any_origin(self) -> Self {
        Self { origin: None, ..self }
    }

    /// The address as it was configured.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What its challenges must name, where it has a name.
    pub(crate) fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// Connects, over TLS where the address says https. Nothing is sent yet.
    pub(crate) async fn dial(self: &Arc<Self>) -> Result<Connection, DialError> {
        let connecting = async {
            let host = self.host.trim_start_matches('[').trim_end_matches(']');
            let stream = connect(lookup_host((host, self.port)).await?.collect()).await?;
            stream.set_nodelay(true)?;
            let io: Box<dyn Io> = match &self.tls {
                None => Box::new(stream),
                Some(tls) => Box::new(tls.connector.connect(tls.name.clone(), stream).await?),
            };
            Ok::<_, io::Error>(io)
        };
        let url = || self.url.clone();
        let began = Instant::now();
        let failure = match timeout(self.connect_timeout, connecting).await {
            Ok(Ok(io)) => {
                self.attempts.answered(began.elapsed());
                return Ok(Connection { gateway: self.clone(), io });
            }
            Ok(Err(error)) => {
                DialError::Failed { url: url(), reason: no_answer(&error, "gateway.ca (or --ca)") }
            }
            Err(_) => DialError::Timeout { url: url(), limit: self.connect_timeout },
        };
        self.attempts.lost();
        Err(failure)
    }
}

/// The host of a URL, if it is a name that means the same everywhere.
fn name_of(url: &Url) -> Option<String> {
    let name = url.domain()?;
    (!is_localhost(name)).then(|| name.to_owned())
}

impl Tls {
    fn new(host: &str, ca: Option<&Path>) -> Result<Self, Option<GatewayUrlError>> {
        let config = tls::client_config(ca).map_err(|error| Some(error.into()))?;
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { connector: TlsConnector::from(config), name: name.try_into().map_err(|_| None)? })
    }
}

/// A connection on which nothing has been sent.
pub(crate) struct Connection {
    gateway: Arc<Gateway>,
    io: Box<dyn Io>,
}

impl Connection {
    /// Asks for a tunnel to `target`, in one write, and reads the answer.
    pub(crate) async fn connect(
        self,
        target: &Target,
        token: Option<&Token>,
    ) -> Result<Answer, ExchangeError> {
        let Self { gateway, mut io } = self;
        let request = request(target, token);
        let exchange = async {
            // A gateway that answers before it has read everything closes its side: read the answer even so.
            let written = match io.write_all(&request).await {
                Ok(()) => io.flush().await,
                Err(error) => Err(error),
            };
            let mut buffer = BytesMut::new();
            let head = response::read_head(&mut io, &mut buffer).await;
            match (head, written) {
                (Ok(head), _) => Ok((head, buffer)),
                (Err(HeadError::Broken(_)), Err(error)) => Err(HeadError::Broken(error.to_string())),
                (Err(error), _) => Err(error),
            }
        };
        let url = || gateway.url.clone();
        let failure = match timeout(gateway.answer_timeout, exchange).await {
            Ok(Ok((head, buffer))) => return Ok(answer(&gateway, head, buffer, io).await),
            Ok(Err(HeadError::Broken(reason))) => ExchangeError::Broken { url: url(), reason },
            Ok(Err(reason)) => ExchangeError::NotHttp { url: url(), reason },
            Err(_) => ExchangeError::Silent { url: url(), limit: gateway.answer_timeout },
        };
        gateway.attempts.lost();
        Err(failure)
    }
}

/// Nothing in it comes from the client but the target.
fn request(target: &Target, token: Option<&Token>) -> Vec<u8> {
    let authority = target.authority();
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    if let Some(token) = token {
        request.push_str("Proxy-Authorization: ");
        request.push_str(&format_authorization(token));
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    request.into_bytes()
}

async fn answer(gateway: &Gateway, head: Head, mut buffer: BytesMut, mut io: Box<dyn Io>) -> Answer {
    if head.status.is_success() {
        // RFC 9110, section 9.3.6: what follows is the tunnel's, whatever the length fields contain.
        return Answer::Opened(Tunnel { early: buffer.freeze(), io, _open: None });
    }
    let mut body = BytesMut::new();
    let reading = response::read_body(&mut io, &head, &mut buffer, &mut body);
    let _ = timeout(BODY_TIMEOUT, reading).await; // what has come is enough: it only explains the status
    let (status, headers, origin) = (head.status, head.headers, gateway.origin.clone());
    Answer::Refused(Refused { status, headers, body: body.freeze(), origin })
}

impl Refused {
    /// The first challenge for a token of type 2, in the gateway's order of preference. Other schemes, other types,
    /// other gateways' challenges (RFC 9577, section 2.1.3: a gateway that presents such a challenge could spend the
    /// token there) and those that cannot be read are passed over.
    ///
    /// # Errors
    /// A sentence about what was there instead.
    pub(crate) fn challenge(&self) -> Result<Challenge, String> {
        let (mut reasons, mut other_types, mut values) = (Vec::new(), false, 0);
        for value in self.headers.get_all(PROXY_AUTHENTICATE) {
            values += 1;
            match Challenge::parse_all(value.as_bytes()) {
                Err(error) => reasons.push(error.to_string()),
                Ok(challenges) => {
                    for challenge in challenges {
                        match challenge.token_challenge() {
                            Ok(parsed) if parsed.token_type() != TokenType::BlindRsa2048 => {
                                other_types = true
                            }
                            Ok(parsed) => match self.foreign(&parsed) {
                                Some(reason) => reasons.push(reason),
                                None => return Ok(challenge),
                            },
                            Err(error) => reasons.push(error.to_string()),
                        }
                    }
                }
            }
        }
        Err(match (values, reasons.first(), other_types) {
            (0, ..) => "its answer has no Proxy-Authenticate field".to_owned(),
            (_, Some(reason), _) => format!("its challenge cannot be used: {reason}"),
            (_, None, true) => "it requires tokens of a type other than 2 (blind RSA)".to_owned(),
            (_, None, false) => "it requires something other than a PrivateToken".to_owned(),
        })
    }

    /// Why a challenge is none of this gateway's.
    fn foreign(&self, challenge: &TokenChallenge) -> Option<String> {
        if challenge.redemption_context().is_some() && mark_of(challenge).is_some() {
            return Some(
                "it has a redemption context beside a mark, which could tell clients apart".to_owned(),
            );
        }
        let origin = self.origin.as_ref().filter(|origin| !challenge.names_origin(origin))?;
        let named = challenge.origin_info().join(", ");
        Some(format!(
            "it is for \"{named}\", and the gateway is \"{origin}\": if both are one, set gateway.origin to the former"
        ))
    }

    /// Whether the gateway refused this token itself as spent, and not its key.
    pub(crate) fn says_spent(&self) -> bool {
        let statuses = self.headers.get_all("proxy-status");
        statuses.iter().any(|value| value.as_bytes().windows(13).any(|text| text == b"already spent"))
    }
}

/// What a connection to the gateway can do, plain or TLS.
pub(crate) trait Io: AsyncRead + AsyncWrite + Reset + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Reset + Send + Unpin> Io for T {}

/// An open tunnel: bytes that came together with the answer first, then the connection.
pub(crate) struct Tunnel {
    early: Bytes,
    io: Box<dyn Io>,
    _open: Option<Open>,
}

impl Tunnel {
    /// The tunnel, which counts as open for as long as it lives.
    pub(crate) fn counted(self, open: Open) -> Self {
        Self { _open: Some(open), ..self }
    }
}

impl Reset for Tunnel {
    fn reset(&self) {
        self.io.reset();
    }

    fn is_delivered(&self) -> bool {
        self.io.is_delivered()
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..length]);
        self.early.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
