//! Checks that precede a start, and the errors with which a start fails.

use crate::backend::{self, BackendError};
use crate::config::{Config, NextHopError, StoreKind};
use crate::keys::offer::{KeyTypes, Offer};
use crate::keys::source::{Source, SourceError};
use crate::request::resolve::{self, ResolverError};
use crate::shared_limits::LEAST_SECRET;
use postern_config::Size;
use postern_daemon::exit;
use postern_daemon::listen::BindError;
use postern_daemon::tls::{TlsConfig, TlsError};
use postern_telemetry::traces::TracerError;
use postern_token::ChallengeError;
use std::net::IpAddr;
use std::path::PathBuf;

/// hyper's minimum read buffer.
const LEAST_HEADER_SIZE: Size = Size::kib(8);
/// Minimum tunnel rate, per second. A slower tunnel is of no practical use.
const LEAST_TUNNEL_RATE: Size = Size::kib(1);

/// An error that prevents a gateway from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The names in `[challenge]` are invalid.
    #[error("challenge: {0}")]
    Challenge(#[from] ChallengeError),
    /// The source of the issuer's keys cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The certificate files of the client listener cannot be used.
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    /// The certificate files of the peer listener cannot be used.
    #[error("peers: {0}")]
    Peers(TlsError),
    /// One authority signs the certificates of both clients and peers.
    #[error(
        "peers.client_ca and tls.client_ca are the same authority: every client with a certificate could open tunnels without \
         tokens at peers.address; have the certificates of your gateways signed by a separate authority"
    )]
    PeersAuthority,
    /// `limits.tunnel_rate` is too small.
    #[error(
        "limits.tunnel_rate = \"{0:?}\" a second is too slow for any use: write at least \"1KiB\", or leave it out"
    )]
    TunnelRate(Size),
    /// `limits.header_size` is too small.
    #[error("limits.header_size = \"{0:?}\" is too small for a token's header: write at least \"8KiB\"")]
    HeaderSize(Size),
    /// `limits.shared_secret` is short enough to be guessed.
    #[error(
        "limits.shared_secret is too short: anyone who reads the shared memory could guess it and find clients' addresses; write \
         at least {LEAST_SECRET} characters, such as the output of \"openssl rand -hex 32\""
    )]
    SharedSecretLength,
    /// `limits.shared_secret` is set, but the store is not shared.
    #[error(
        "limits.shared_secret needs store.kind = \"memcached\": the gateways of a fleet share limits through its memcached; \
         leave the secret out where there is one gateway"
    )]
    SharedSecretStore,
    /// `egress.source` contains an address from which no connection can be made.
    #[error(
        "egress.source has {0}, from which nothing can connect: list addresses of this machine's interfaces, IPv4 ones as such"
    )]
    LocalAddress(IpAddr),
    /// Next hops and rules are inconsistent.
    #[error(transparent)]
    NextHops(#[from] NextHopError),
    /// The double-spend store cannot be opened.
    #[error(transparent)]
    Store(#[from] BackendError),
    /// A listening address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The resolver cannot be set up.
    #[error(transparent)]
    Resolver(#[from] ResolverError),
    /// The exporter of traces cannot be started.
    #[error(transparent)]
    Tracer(#[from] TracerError),
}

impl StartError {
    /// Returns the exit code: [`exit::CONFIG`] if the configuration must be edited, otherwise [`exit::RUNTIME`].
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Tls(TlsError::State(_)) => exit::RUNTIME,
            Self::Challenge(_)
            | Self::Source(_)
            | Self::TunnelRate(_)
            | Self::PeersAuthority
            | Self::SharedSecretLength
            | Self::SharedSecretStore
            | Self::LocalAddress(_)
            | Self::NextHops(_)
            | Self::HeaderSize(_)
            | Self::Tls(_)
            | Self::Peers(_)
            | Self::Tracer(TracerError::Config { .. }) => exit::CONFIG,
            Self::Store(error) if error.is_configuration() => exit::CONFIG,
            Self::Resolver(error) if error.is_configuration() => exit::CONFIG,
            Self::Store(_) | Self::Bind(_) | Self::Resolver(_) | Self::Tracer(_) => exit::RUNTIME,
        }
    }
}

/// Returns the error with which a start with this configuration would fail. Reads files such as certificates, but opens no
/// socket, takes no lock and writes nothing.
///
/// # Errors
/// [`StartError`], with what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    if config.limits.header_size.0 < LEAST_HEADER_SIZE.0 {
        return Err(StartError::HeaderSize(config.limits.header_size));
    }
    if let Some(rate) = config.limits.tunnel_rate.filter(|rate| rate.0 < LEAST_TUNNEL_RATE.0) {
        return Err(StartError::TunnelRate(rate));
    }
    check_shared_secret(config)?;
    resolve::check(&config.egress.resolver)?;
    config.egress.check_next_hops()?;
    config.egress.unusable_source().map_or(Ok(()), |address| Err(StartError::LocalAddress(address)))?;
    let types = Source::new(&config.issuer)?.types;
    let offer = Offer::new(&config.challenge, types, KeyTypes::default())?;
    config.tls.as_ref().map(TlsConfig::load).transpose()?;
    check_peers(config)?;
    config.tracing.check()?;
    backend::check(&config.store, offer.marks())?;
    Ok(())
}

/// Rejects an authority that signs both clients and peers: any client with a certificate would be a peer.
fn check_peers(config: &Config) -> Result<(), StartError> {
    let Some(peers) = &config.peers else { return Ok(()) };
    peers.tls().load().map_err(StartError::Peers)?;
    let of_clients = config.tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
    let is_same = |ca: &PathBuf| {
        *ca == peers.client_ca || std::fs::read(ca).ok() == std::fs::read(&peers.client_ca).ok() // both are readable
    };
    if of_clients.is_some_and(is_same) { Err(StartError::PeersAuthority) } else { Ok(()) }
}

/// Rejects a secret without a shared store, and one that is short enough to be guessed.
fn check_shared_secret(config: &Config) -> Result<(), StartError> {
    match &config.limits.shared_secret {
        Some(_) if config.store.kind != StoreKind::Memcached => Err(StartError::SharedSecretStore),
        Some(secret) if secret.expose().chars().count() < LEAST_SECRET => Err(StartError::SharedSecretLength),
        _ => Ok(()),
    }
}
