//! A gateway, and the way to it: TCP or the hop before it, then TLS where its address says https.

use super::health::Outage;
use crate::config::{GatewayConfig, server_url};
use crate::recorder::Attempts;
use crate::wallet::supply;
use postern_admin::catalogue::LinkKind;
use postern_admin::live::Live;
use postern_daemon::BoxFuture;
use postern_daemon::http::is_localhost;
use postern_daemon::tls::{self, OwnCertificate, TlsError, client_config_showing};
use postern_lookup::Lookup;
use postern_proxy::http2::Unsent;
use postern_proxy::target::Target;
use postern_proxy::tunnel::{Io, Joined, Lines, Made, Received, Seat, Sharing, Tunnel};
use reqwest::Url;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsConnector;

/// Lifetime of a looked-up address: longer than the pause between two probes (`health.rs`).
const LOOKUP_KEPT: Duration = Duration::from_secs(15);

/// The gateway, and how to reach it.
pub(crate) struct Gateway {
    url: String,
    host: String,
    port: u16,
    /// The name that its challenges must have, if it has one.
    origin: Option<String>,
    route: Route,
    tls: Option<Tls>,
    /// The configuration key of the trusted certificates, for errors.
    pub(super) ca_key: &'static str,
    connect_timeout: Duration,
    pub(super) answer_timeout: Duration,
    pub(super) attempts: Attempts,
    /// Connections that tunnels share; `None` if each tunnel has its own.
    lines: Option<Lines>,
}

struct Tls {
    connector: TlsConnector,
    /// The agent's certificate, for a gateway that requires one.
    own: Option<OwnCertificate>,
    name: tokio_rustls::rustls::pki_types::ServerName<'static>,
}

/// The route to a gateway.
enum Route {
    /// Over TCP.
    Direct(Lookup),
    /// Through the hop before it, for which the gateway is a target.
    Through(Arc<dyn HopBefore>, Target),
}

/// A hop that opens the way to the gateways of the next one.
pub(crate) trait HopBefore: Send + Sync {
    /// Opens a tunnel to `target`, paid for with this hop's tokens.
    fn open_way<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Tunnel, RouteError>>;
}

/// The reason why a route is not open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    FirstHop(Outage),
}

/// An open route: a stream to a gateway on which nothing was sent.
struct Reached {
    stream: Box<dyn Io>,
    /// The task that reads the stream must keep taking from it.
    received: Received,
}

impl Route {
    async fn reach(&self, gateway: &Gateway) -> Result<Reached, RouteError> {
        match self {
            Self::Direct(lookup) => {
                let host = gateway.host.trim_matches(['[', ']']);
                let stream = lookup.connect(host, gateway.port, gateway.connect_timeout).await?;
                stream.set_nodelay(true)?;
                Ok(Reached { stream: Box::new(stream), received: Received::default() })
            }
            Self::Through(first, target) => {
                let tunnel = first.open_way(target).await?;
                let received = tunnel.received();
                Ok(Reached { stream: Box::new(tunnel), received })
            }
        }
    }
}

/// The reason why a gateway's address cannot be used.
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

/// The reason why the gateway could not be dialled. It cost no token.
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

/// The reason why there is no connection to a gateway, through whatever route.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoWay {
    /// The gateway cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The hop before it opens no way there, for a reason of its own.
    #[error("{0}")]
    FirstHop(Outage),
}

impl From<DialError> for Outage {
    fn from(error: DialError) -> Self {
        let cause = "the gateway cannot be reached";
        Self { cause, ..Self::no_answer(error) }
    }
}

impl Gateway {
    /// Prepares the gateway at `address` with the connection settings of `config`.
    pub(crate) fn new(address: &str, config: &GatewayConfig) -> Result<Self, GatewayUrlError> {
        Self::shown(address, config, config.own_certificate()?)
    }

    /// As [`Gateway::new`], with the agent's certificate already loaded.
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

    /// Marks a gateway of the first hop, for its errors.
    pub(crate) fn in_front(self) -> Self {
        Self { ca_key: "first_hop.gateway.ca", ..self }
    }

    /// Routes connections through the hop before it.
    pub(crate) fn behind(mut self, first: Arc<dyn HopBefore>) -> Result<Self, GatewayUrlError> {
        let target = Target::parse(&format!("{}:{}", self.host, self.port), None);
        let target = target.map_err(|_| GatewayUrlError::Url(self.url.clone()))?;
        self.route = Route::Through(first, target);
        Ok(self)
    }

    /// Tells whether a connection costs a token of the hop before.
    pub(crate) fn costs_a_token(&self) -> bool {
        matches!(self.route, Route::Through(..))
    }

    /// Accepts challenges for any origin: for commands that mint and do not spend.
    pub(crate) fn of_any_origin(self) -> Self {
        Self { origin: None, ..self }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// Lets tunnels share connections if the gateway speaks HTTP/2 over TLS.
    pub(crate) fn sharing(mut self, sharing: Sharing) -> Self {
        if let Some(tls) = self.tls.as_mut().filter(|_| sharing.tunnels > 1) {
            tls.connector = TlsConnector::from(tls::offering_http2(Arc::clone(tls.connector.config())));
            self.lines = Some(Lines::new(sharing));
        }
        self
    }

    /// Returns the time limit for a dial. A hop before this one may have to get a token first, and says why if none comes.
    pub(super) fn dial_limit(&self) -> Duration {
        self.connect_timeout + if self.costs_a_token() { supply::PATIENCE } else { Duration::ZERO }
    }

    pub(super) async fn way(&self) -> Result<Way, RouteError> {
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

/// Returns the host of a URL if it is a name that means the same everywhere.
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
        let name = host.trim_matches(['[', ']']).to_owned();
        Ok(Self { connector: TlsConnector::from(config), own, name: name.try_into().map_err(|_| None)? })
    }
}

/// A connection, or room on one.
pub(super) enum Way {
    /// Over HTTP/1.1: one connection, one tunnel.
    Alone(Box<dyn Io>, Received),
    /// Over HTTP/2.
    Shared(Seat),
}
