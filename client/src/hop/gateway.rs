//! The way to a gateway: a connection for one CONNECT, or one over TLS and HTTP/2 that tunnels share.

mod refused;
mod route;

pub(crate) use refused::Refused;
pub(crate) use route::NoWay;

use crate::config::{GatewayConfig, server_url};
use crate::hop::tunnel::Opener;
use crate::recorder::Attempts;
use crate::wallet::supply;
use bytes::BytesMut;
use postern_admin::catalogue::LinkKind;
use postern_admin::live::Live;
use postern_daemon::http::{is_localhost, no_answer};
use postern_daemon::tls::{self, OwnCertificate, TlsError, client_config_showing};
use postern_lookup::Lookup;
use postern_proxy::http2::Unsent;
use postern_proxy::target::Target;
use postern_proxy::tunnel::{
    Asked, Connect, Head, HeadError, Io, Joined, Lines, Made, Received, Seat, Sharing, Tunnel, Vigil, ask,
    read_body,
};
use postern_token::Token;
use postern_token::header::format_authorization;
use reqwest::Url;
use route::{Reached, Route, RouteError};
use std::future::pending;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// How long the body of a refusal may take; it is an explanation, and the status stands without it.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a shared connection may leave a request without an answer before it is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(1);
/// Longer than the pause between two probes (`gateways/health.rs`).
const LOOKUP_KEPT: Duration = Duration::from_secs(15);

/// The gateway, and how to reach it.
pub(crate) struct Gateway {
    url: String,
    host: String,
    port: u16,
    /// What its challenges must name; `None` where it has no name.
    origin: Option<String>,
    route: Route,
    tls: Option<Tls>,
    /// What names the certificates to trust.
    ca_key: &'static str,
    connect_timeout: Duration,
    answer_timeout: Duration,
    attempts: Attempts,
    /// Connections that tunnels share; `None` where each has its own.
    lines: Option<Lines>,
}

struct Tls {
    connector: TlsConnector,
    /// What is shown to a gateway that requires a certificate.
    own: Option<OwnCertificate>,
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
    /// The connection gives no sign of life.
    #[error(
        "the connection to the gateway {url} died before it answered: it hangs, or the way to it does; try again"
    )]
    Dead { url: String },
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

impl Gateway {
    /// The gateway at `address`, with the connection settings of `config`.
    pub(crate) fn new(address: &str, config: &GatewayConfig) -> Result<Self, GatewayUrlError> {
        Self::shown(address, config, config.own_certificate()?)
    }

    /// The same, which is shown this certificate where it requires one.
    pub(crate) fn shown(
        address: &str,
        config: &GatewayConfig,
        own: Option<OwnCertificate>,
    ) -> Result<Self, GatewayUrlError> {
        let refused = || GatewayUrlError::Url(address.to_owned());
        let url = server_url(address).filter(|url| url.path() == "/").ok_or_else(refused)?;
        let host = url.host_str().ok_or_else(refused)?.to_owned();
        let tls = match url.scheme() {
            "http" => None,
            "https" => {
                let ca = config.ca.as_deref();
                Some(Tls::new(&host, ca, own).map_err(|error| error.unwrap_or_else(refused))?)
            }
            _ => return Err(refused()),
        };
        Ok(Self {
            url: address.trim_end_matches('/').to_owned(),
            origin: config.origin.clone().or_else(|| name_of(&url)),
            port: url.port_or_known_default().unwrap_or(80),
            host,
            route: Route::Direct(Lookup::keeping(LOOKUP_KEPT)),
            tls,
            ca_key: "gateway.ca (or --ca)",
            connect_timeout: config.connect_timeout.get(),
            answer_timeout: config.answer_timeout.get(),
            attempts: Attempts::default(),
            lines: None,
        })
    }

    /// Shows each attempt in the link table of `live`, under the configured host and port.
    pub(crate) fn recorded(mut self, live: &Live) -> Self {
        let address = format!("{}:{}", self.host, self.port);
        self.attempts = Attempts::over(live.link(LinkKind::Gateway, &address));
        self
    }

    /// Is a hop before another.
    pub(crate) fn in_front(self) -> Self {
        Self { ca_key: "first_hop.gateway.ca", ..self }
    }

    /// Is reached through another hop, which opens a tunnel there.
    pub(crate) fn behind(mut self, first: Opener) -> Result<Self, GatewayUrlError> {
        let target = Target::parse(&format!("{}:{}", self.host, self.port), None);
        let target = target.map_err(|_| GatewayUrlError::Url(self.url.clone()))?;
        self.route = Route::Through(first, target);
        Ok(self)
    }

    /// Whether a connection there is paid for with a token of the hop before.
    pub(crate) fn costs_a_token(&self) -> bool {
        matches!(self.route, Route::Through(..))
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

    /// Lets tunnels share connections, where the gateway is reached over TLS and speaks HTTP/2.
    pub(crate) fn sharing(mut self, sharing: Sharing) -> Self {
        if let Some(tls) = self.tls.as_mut().filter(|_| sharing.tunnels > 1) {
            tls.connector = TlsConnector::from(tls::offering_http2(Arc::clone(tls.connector.config())));
            self.lines = Some(Lines::new(sharing));
        }
        self
    }

    /// Connects, over TLS where the address says https, or finds room on a connection. Nothing is sent yet.
    pub(crate) async fn dial(self: &Arc<Self>) -> Result<Connection, NoWay> {
        let (url, limit) = (|| self.url.clone(), self.dial_limit());
        let began = Instant::now();
        let failure = match timeout(limit, self.way()).await {
            Ok(Ok(way)) => {
                self.attempts.answered(began.elapsed());
                return Ok(Connection { gateway: self.clone(), way });
            }
            Ok(Err(RouteError::FirstHop(outage))) => return Err(NoWay::FirstHop(outage)),
            Ok(Err(RouteError::Io(error))) => {
                DialError::Failed { url: url(), reason: no_answer(&error, self.ca_key) }
            }
            Err(_) if self.costs_a_token() => {
                let reason =
                    format!("no connection through the first hop within {limit:?}: one of them is slow");
                DialError::Failed { url: url(), reason }
            }
            Err(_) => DialError::Timeout { url: url(), limit },
        };
        self.attempts.lost();
        Err(failure.into())
    }

    /// How long a dial may take. A hop before this one may have to get a token first, and says why if none comes.
    fn dial_limit(&self) -> Duration {
        self.connect_timeout + if self.costs_a_token() { supply::PATIENCE } else { Duration::ZERO }
    }

    async fn way(&self) -> Result<Way, RouteError> {
        let Some(tls) = &self.tls else {
            let Reached { stream, received } = self.route.reach(self).await?;
            return Ok(Way::Alone(stream, received));
        };
        if let Some(reason) = tls.own.as_ref().and_then(OwnCertificate::refused) {
            return Err(io::Error::other(reason).into()); // the gateway would say so only after a token was sent
        }
        let connect = async {
            let Reached { stream, received } = self.route.reach(self).await?;
            let handshake = tls.connector.connect(tls.name.clone(), stream);
            let stream = received.keep_taking(handshake).await?;
            let is_http2 = tls::is_http2(stream.get_ref().1);
            if is_http2 {
                stream.bound_unsent();
            }
            Ok::<_, RouteError>(Made { io: Box::new(stream), received, is_http2 })
        };
        Ok(match &self.lines {
            None => {
                let Made { io, received, .. } = connect.await?;
                Way::Alone(io, received)
            }
            Some(lines) => match lines.join(connect).await? {
                Joined::Alone(io, received) => Way::Alone(io, received),
                Joined::Shared(seat) => Way::Shared(seat),
            },
        })
    }
}

/// The host of a URL, if it is a name that means the same everywhere.
fn name_of(url: &Url) -> Option<String> {
    let name = url.domain()?;
    (!is_localhost(name)).then(|| name.to_owned())
}

impl Tls {
    fn new(
        host: &str,
        ca: Option<&Path>,
        own: Option<OwnCertificate>,
    ) -> Result<Self, Option<GatewayUrlError>> {
        let config =
            own.as_ref().map_or_else(|| tls::client_config(ca), |own| client_config_showing(ca, own));
        let config = config.map_err(|error| Some(error.into()))?;
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { connector: TlsConnector::from(config), own, name: name.try_into().map_err(|_| None)? })
    }
}

/// A connection, or room on one, on which nothing has been sent.
pub(crate) struct Connection {
    gateway: Arc<Gateway>,
    way: Way,
}

enum Way {
    /// Over HTTP/1.1: one connection, one tunnel.
    Alone(Box<dyn Io>, Received),
    /// Over HTTP/2.
    Shared(Seat),
}

impl Way {
    /// Watches over a connection that is shared: one of a tunnel's own breaks with it.
    fn vigil(&self) -> Option<Vigil> {
        match self {
            Self::Alone(..) => None,
            Self::Shared(seat) => Some(seat.vigil()),
        }
    }
}

impl Connection {
    /// Whether the gateway is still there, if nothing came over the connection for a second: getting a token may have taken long.
    pub(crate) fn answers(&self) -> impl Future<Output = bool> + use<> {
        let vigil = self.way.vigil();
        async move {
            match vigil {
                Some(vigil) => vigil.answers().await,
                None => true,
            }
        }
    }

    /// Asks for a tunnel to `target`, in one write, and reads the answer.
    pub(crate) async fn connect(
        self,
        target: &Target,
        token: Option<&Token>,
    ) -> Result<Answer, ExchangeError> {
        let Self { gateway, way } = self;
        let (authority, authorization) = (target.authority(), token.map(format_authorization));
        let connect = Connect { authority: &authority, authorization: authorization.as_deref(), more: None };
        let vigil = way.vigil();
        let dead = async {
            match vigil {
                Some(vigil) => vigil.lost(SILENCE).await,
                None => pending().await,
            }
        };
        let exchange = async {
            match way {
                Way::Alone(io, received) => {
                    let Asked { head, rest, tunnel } = ask(io, received, &connect).await?;
                    Ok((head, rest, tunnel))
                }
                Way::Shared(seat) => {
                    let (head, tunnel) = seat.connect(&connect).await?;
                    Ok((head, BytesMut::new(), tunnel))
                }
            }
        };
        let url = || gateway.url.clone();
        let exchange = async {
            tokio::select! {
                answered = exchange => Some(answered),
                () = dead => None,
            }
        };
        let failure = match timeout(gateway.answer_timeout, exchange).await {
            Ok(Some(Ok((head, buffer, tunnel)))) => return Ok(answer(&gateway, head, buffer, tunnel).await),
            Ok(Some(Err(HeadError::Broken(reason)))) => ExchangeError::Broken { url: url(), reason },
            Ok(Some(Err(reason))) => ExchangeError::NotHttp { url: url(), reason },
            Ok(None) => ExchangeError::Dead { url: url() },
            Err(_) => ExchangeError::Silent { url: url(), limit: gateway.answer_timeout },
        };
        gateway.attempts.lost();
        Err(failure)
    }
}

async fn answer(gateway: &Gateway, head: Head, mut buffer: BytesMut, mut tunnel: Tunnel) -> Answer {
    if head.status.is_success() {
        // RFC 9110, section 9.3.6: what follows is the tunnel's, whatever the length fields contain.
        return Answer::Opened(tunnel.after(buffer.freeze()));
    }
    let mut body = BytesMut::new();
    let received = tunnel.received();
    let reading = read_body(&mut tunnel, &head, &mut buffer, &mut body);
    // What has come is enough: it only explains the status.
    let _ = timeout(BODY_TIMEOUT, received.keep_taking(reading)).await;
    let (status, headers, origin) = (head.status, head.headers, gateway.origin.clone());
    Answer::Refused(Refused { status, headers, body: body.freeze(), origin })
}

#[cfg(test)]
mod tests;
