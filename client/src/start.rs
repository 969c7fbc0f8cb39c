//! The checks and errors of a start.

use crate::config::{Config, ConfigProblem};
use crate::hop::gateway::{Gateway, GatewayUrlError};
use crate::mint::consistency::mirrors;
use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use crate::wallet::file::WalletError;
use postern_daemon::listen::BindError;

/// The reason why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be served. Daemons exit with [`postern_daemon::exit::CONFIG`].
    #[error(transparent)]
    Config(#[from] ConfigProblem),
    /// The gateway's address or certificates. [`postern_daemon::exit::CONFIG`].
    #[error(transparent)]
    Gateway(#[from] GatewayUrlError),
    /// The issuer's address or certificates. [`postern_daemon::exit::CONFIG`].
    #[error(transparent)]
    Issuer(#[from] MintError),
    /// The wallet: in use, not a wallet, or unreadable. [`postern_daemon::exit::RUNTIME`].
    #[error(transparent)]
    Wallet(#[from] WalletError),
    /// The listener. [`postern_daemon::exit::RUNTIME`].
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

/// Finds what a start with this configuration would refuse: it reads certificates and addresses, and opens no socket,
/// takes no lock and writes nothing.
///
/// # Errors
/// [`StartError`], whose message states what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    config.check()?;
    for (_, hop) in config.hops() {
        for url in hop.gateway.url.list() {
            Gateway::new(url, hop.gateway)?;
        }
        let (issuer, ca) = (hop.issuer, hop.issuer.ca.clone());
        mirrors(&issuer.consistency)?;
        if IssuerClient::all(issuer)?.is_empty() {
            IssuerClient::named("issuer.example", ca)?; // the name is the challenge's, which only a gateway knows
        }
    }
    Ok(())
}
