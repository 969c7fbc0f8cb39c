//! A gateway, and the route to it: TCP or the previous hop, then TLS for an https address.

use super::health::Outage;
use crate::config::{GatewayConfig, server_url};
use crate::wallet::supply;
use postern_daemon::BoxFuture;
use postern_daemon::admin::ProcessContext;
use postern_daemon::admin::catalogue::LinkKind;
use postern_daemon::admin::live::Link;
use postern_daemon::http::is_localhost;
use postern_daemon::tls::{self, OwnCertificate, TlsError};
use postern_net::Lookup;
use postern_proxy::reset::Reset;
use postern_proxy::target::{Host, Target};
use postern_proxy::tunnel::{Io, Joined, Lines, Made, OnDrain, Received, Sharing, Tunnel};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsConnector;

/// Lifetime of a looked-up address: longer than the pause between two probes (`health.rs`).
const LOOKUP_KEPT: Duration = Duration::from_secs(15);

/// Time after which an idle connection to a gateway is closed.
const IDLE: Duration = Duration::from_secs(30);
/// The same for connections that cost a token of the previous hop; less than a gateway's `limits.idle_timeout`.
const PAID_IDLE: Duration = Duration::from_mins(5);

pub(crate) struct Gateway {
    url: String,
    /// Host without brackets.
    host: String,
    /// The gateway as a target of the previous hop.
    target: Target,
    /// The origin that its challenges must name; `None` accepts any.
    pub(super) origin: Option<String>,
    route: Route,
    tls: Option<Tls>,
    /// The configuration key of the trusted certificates, for errors.
    pub(crate) ca_key: &'static str,
    connect_timeout: Duration,
    pub(super) answer_timeout: Duration,
    /// Tunnels on one connection, and the age from which it takes no new ones.
    shares: (usize, Duration),
    /// Recorder of dials; `None` in commands that run once.
    pub(super) attempts: Option<Link>,
    /// Connections that tunnels share; `None` if each tunnel has its own.
    lines: Option<Lines>,
}

struct Tls {
    connector: TlsConnector,
    /// The agent's certificate, for a gateway that requires one.
    own: Option<OwnCertificate>,
    name: tokio_rustls::rustls::pki_types::ServerName<'static>,
}

enum Route {
    Direct(Lookup),
    Through(Arc<dyn HopBefore>),
}

/// A hop that opens tunnels to the gateways of the next one.
pub(crate) trait HopBefore: Send + Sync {
    /// Opens a tunnel to `target`, paid for with this hop's tokens.
    fn open_way<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Tunnel, RouteError>>;
}

pub(crate) enum RouteError {
    Io(io::Error),
    FirstHop(Outage),
}

impl From<io::Error> for RouteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
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
    /// The certificates, trusted or own, cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Gateway {
    /// Prepares the gateway at `address` with the connection settings of `config`.
    pub(crate) fn new(address: &str, config: &GatewayConfig) -> Result<Self, GatewayUrlError> {
        Self::showing(address, config, config.own_certificate()?)
    }

    /// Prepares a gateway like [`Gateway::new`], with the agent's certificate already loaded.
    pub(crate) fn showing(
        address: &str,
        config: &GatewayConfig,
        own: Option<OwnCertificate>,
    ) -> Result<Self, GatewayUrlError> {
        let refused = || GatewayUrlError::Url(address.to_owned());
        let url = server_url(address).filter(|url| url.path() == "/").ok_or_else(refused)?;
        let host = url.host_str().ok_or_else(refused)?;
        let port = url.port_or_known_default().ok_or_else(refused)?;
        let target = Target::parse(&format!("{host}:{port}"), None).map_err(|_| refused())?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let tls = match url.scheme() {
            "https" => {
                let connector = tls::client_config_showing(config.ca.as_deref(), own.as_ref())?.into();
                Some(Tls { connector, own, name: host.clone().try_into().map_err(|_| refused())? })
            }
            _ => None,
        };
        Ok(Self {
            url: address.trim_end_matches('/').to_owned(),
            origin: config.origin.clone().or_else(|| name_of(&target)),
            host,
            target,
            route: Route::Direct(Lookup::keeping(LOOKUP_KEPT)),
            tls,
            ca_key: "gateway.ca (or --ca)",
            connect_timeout: config.connect_timeout.get(),
            answer_timeout: config.answer_timeout.get(),
            shares: (config.tunnels.get(), config.connection_lifetime.get()),
            attempts: None,
            lines: None,
        })
    }

    /// Routes connections through `before`, if there is a previous hop, and records dials in the link table of the live page,
    /// under the configured host and port. Tunnels share connections if the gateway speaks HTTP/2 over TLS.
    pub(crate) fn in_use(mut self, before: Option<Arc<dyn HopBefore>>, process: &ProcessContext) -> Self {
        self.attempts = Some(process.live.link(LinkKind::Gateway, &self.target.authority()));
        let idle = if before.is_some() { PAID_IDLE } else { IDLE };
        if let Some(before) = before {
            self.route = Route::Through(before);
        }
        let (tunnels, lifetime) = self.shares;
        if let Some(tls) = self.tls.as_mut().filter(|_| tunnels > 1) {
            tls.connector = TlsConnector::from(tls::offering_http2(Arc::clone(tls.connector.config())));
            let (shutdown, on_drain) = (process.shutdown.clone(), OnDrain::Retire);
            self.lines = Some(Lines::new(Sharing { tunnels, lifetime, idle, shutdown, on_drain }));
        }
        self
    }

    pub(crate) fn costs_a_token(&self) -> bool {
        matches!(self.route, Route::Through(_))
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns `host:port`, as a request to the gateway itself names it.
    pub(super) fn authority(&self) -> String {
        self.target.authority()
    }

    /// Returns the key of the gateway's marks: gateways of one origin are one fleet.
    pub(crate) fn ledger_name(&self) -> &str {
        self.origin.as_ref().unwrap_or(&self.url)
    }

    /// Returns the time limit for a dial, with the time for the previous hop to get a token, or to report why none came.
    pub(super) fn dial_limit(&self) -> Duration {
        self.connect_timeout + if self.costs_a_token() { supply::PATIENCE } else { Duration::ZERO }
    }

    /// Connects without TLS. The task that reads the stream must run within `keep_taking` of the second value.
    async fn reach(&self) -> Result<(Box<dyn Io>, Received), RouteError> {
        match &self.route {
            Route::Direct(lookup) => {
                let stream = lookup.connect(&self.host, self.target.port(), self.connect_timeout).await?;
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), Received::default()))
            }
            Route::Through(before) => {
                let tunnel = before.open_way(&self.target).await?;
                let received = tunnel.received();
                Ok((Box::new(tunnel), received))
            }
        }
    }

    /// Connects, or takes a place on a shared connection.
    pub(super) async fn way(&self) -> Result<Joined, RouteError> {
        let Some(tls) = &self.tls else {
            let (stream, received) = self.reach().await?;
            return Ok(Joined::Alone(stream, received));
        };
        if let Some(reason) = tls.own.as_ref().and_then(OwnCertificate::refused) {
            return Err(io::Error::other(reason).into()); // the gateway would report it only after a token was sent
        }
        let connect = async {
            let (stream, received) = self.reach().await?;
            let handshake = tls.connector.connect(tls.name.clone(), stream);
            let stream = received.keep_taking(handshake).await?;
            let is_http2 = tls::is_http2(stream.get_ref().1);
            if is_http2 {
                stream.bound_unsent();
            }
            Ok::<_, RouteError>(Made { io: Box::new(stream), received, is_http2 })
        };
        match &self.lines {
            None => connect.await.map(|Made { io, received, .. }| Joined::Alone(io, received)),
            Some(lines) => lines.join(connect).await,
        }
    }
}

/// Returns the host of a target if it is a domain name other than localhost.
fn name_of(target: &Target) -> Option<String> {
    match target.host() {
        Host::Name(name) if !is_localhost(name) => Some(name.to_string()),
        Host::Name(_) | Host::Address(_) => None,
    }
}
