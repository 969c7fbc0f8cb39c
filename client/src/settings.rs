//! The settings of a hop: made from a configuration once, with every file read and every client made, so that nothing behind
//! them can be invalid.

use crate::catalogue::Position;
use crate::config::{Config, ConfigProblem, HopConfig, IssuerConfig, api_key_of};
use crate::hop::gateway::{Gateway, GatewayUrlError};
use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use crate::wallet::file::WalletError;
use postern_config::Secret;
use postern_daemon::http::ClientError;
use postern_daemon::listen::BindError;
use postern_daemon::tls::OwnCertificate;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) struct HopSettings {
    pub(crate) position: Position,
    /// The gateways in order of preference, not in use yet.
    pub(crate) gateways: Vec<Gateway>,
    /// The agent's certificate for them.
    pub(crate) own: Option<OwnCertificate>,
    pub(crate) wallet: PathBuf,
    pub(crate) fsync: bool,
    pub(crate) tokens: TokenSettings,
}

/// The settings that a reload replaces.
#[derive(Clone, Default)]
pub(crate) struct TokenSettings {
    /// Issuers in order of preference; none if the challenge names the issuer.
    pub(crate) issuers: Vec<IssuerClient>,
    /// Trusted authorities for an issuer that only the challenge names.
    pub(crate) issuer_ca: Option<PathBuf>,
    /// Other operators' copies of the issuer's directory.
    pub(crate) mirrors: Vec<IssuerClient>,
    pub(crate) low: usize,
    pub(crate) high: usize,
    /// Longest delay before minting ahead.
    pub(crate) delay: Duration,
    /// Tokens that may be sent in a minute; 0 means no limit.
    pub(crate) most_per_minute: u32,
}

/// The reason why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid. Exit code [`postern_daemon::exit::CONFIG`].
    #[error(transparent)]
    Config(#[from] ConfigProblem),
    /// A gateway's address or certificates are invalid. Exit code [`postern_daemon::exit::CONFIG`].
    #[error(transparent)]
    Gateway(#[from] GatewayUrlError),
    /// An issuer's address, API key or certificates are invalid. Exit code [`postern_daemon::exit::CONFIG`].
    #[error(transparent)]
    Issuer(#[from] MintError),
    /// The wallet is in use, not a wallet, or unreadable. Exit code [`postern_daemon::exit::RUNTIME`].
    #[error(transparent)]
    Wallet(#[from] WalletError),
    /// The listener cannot be bound. Exit code [`postern_daemon::exit::RUNTIME`].
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl StartError {
    /// Returns the process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Gateway(_) | Self::Issuer(_) => postern_daemon::exit::CONFIG,
            Self::Wallet(_) | Self::Bind(_) => postern_daemon::exit::RUNTIME,
        }
    }
}

/// Checks a configuration as a start does, including certificates and addresses. Opens no socket, takes no lock and writes
/// nothing.
///
/// # Errors
/// [`StartError`], whose message states what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    settings(config).map(drop)
}

/// Makes the settings of each hop, in order; the last one opens tunnels to targets.
pub(crate) fn settings(config: &Config) -> Result<Vec<HopSettings>, StartError> {
    config.check()?;
    config.hops().map(|(position, hop)| HopSettings::of(position, hop)).collect()
}

impl HopSettings {
    fn of(position: Position, hop: HopConfig<'_>) -> Result<Self, StartError> {
        let HopConfig { gateway, wallet, .. } = hop;
        let own = gateway.own_certificate().map_err(GatewayUrlError::from)?;
        let made = |url: &String| {
            let mut made = Gateway::showing(url, gateway, own.clone())?;
            if position == Position::First {
                made.ca_key = "first_hop.gateway.ca";
            }
            Ok(made)
        };
        let gateways = gateway.url.list().iter().map(made).collect::<Result<_, GatewayUrlError>>()?;
        let (tokens, wallet, fsync) = (TokenSettings::of(hop)?, wallet.path.clone(), wallet.fsync);
        Ok(Self { position, gateways, own, wallet, fsync, tokens })
    }
}

impl TokenSettings {
    fn of(HopConfig { issuer, wallet, .. }: HopConfig<'_>) -> Result<Self, MintError> {
        let mirror = |url: &String| IssuerClient::new(url, None, issuer.consistency.ca.clone());
        let mirrors = issuer.consistency.mirrors.iter().map(mirror).collect::<Result<_, _>>()?;
        let issuers = issuer.urls().iter().map(|url| client(url, issuer)).collect::<Result<Vec<_>, _>>()?;
        if issuers.is_empty() {
            IssuerClient::named("issuer.example", issuer.ca.clone())?; // a gateway's challenge provides the real name
        }
        Ok(Self {
            issuers,
            issuer_ca: issuer.ca.clone(),
            mirrors,
            low: wallet.low,
            high: wallet.high,
            delay: wallet.delay.get(),
            most_per_minute: wallet.most_per_minute,
        })
    }
}

/// Makes a client for the issuer at `url` with the account of `config`, whose files it reads.
pub(crate) fn client(url: &str, config: &IssuerConfig) -> Result<IssuerClient, MintError> {
    let own = config.own_certificate().map_err(ClientError::Tls)?;
    IssuerClient::showing(url, api_key(config)?, config.ca.clone(), own)
}

/// Returns the account's API key, from its file if it is in one.
fn api_key(config: &IssuerConfig) -> Result<Option<Secret>, MintError> {
    let Some(path) = &config.api_key_file else { return Ok(config.api_key.clone()) };
    let refused = |reason: String| MintError::KeyFile { path: path.clone(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    api_key_of(&text).map(Some).map_err(|reason| refused(reason.to_owned()))
}
