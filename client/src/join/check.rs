//! Whether an agent would get tokens with a configuration: its gateways' challenges and its issuer's keys, and no token.

use crate::config::{Config, Urls};
use crate::gateway::{Gateway, GatewayUrlError};
use crate::mint::{ChallengeFetchError, IssuerClient, MintError, fetch_challenge_from};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long each gateway may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why an agent would get no tokens.
#[derive(Debug, thiserror::Error)]
pub enum JoinCheckError {
    /// A gateway's address or certificates.
    #[error(transparent)]
    Url(#[from] GatewayUrlError),
    /// A gateway gives no challenge.
    #[error(transparent)]
    Challenge(#[from] ChallengeFetchError),
    /// A gateway does not answer.
    #[error("the gateway {0} did not answer within {PATIENCE:?}: it hangs, or the way to it does")]
    Silent(String),
    /// The issuer, or its keys.
    #[error(transparent)]
    Mint(#[from] MintError),
}

/// Fetches the challenge of each gateway of `config`, and each issuer's key for it. No token is minted, so the API key is
/// not sent.
///
/// # Errors
/// The first thing that would keep the agent from minting.
pub async fn check_join(config: &Config) -> Result<(), JoinCheckError> {
    let hop = config.last_hop();
    let urls = hop.issuer.url.as_ref().map_or(&[][..], Urls::list);
    let client = |url: &String| IssuerClient::new(url, None, hop.issuer.ca.clone());
    let issuers = urls.iter().map(client).collect::<Result<Vec<_>, MintError>>()?;
    for url in hop.gateway.url.list() {
        let gateway = Arc::new(Gateway::new(url, hop.gateway)?);
        let fetching = timeout(PATIENCE, fetch_challenge_from(&gateway)).await;
        let challenge = fetching.map_err(|_| JoinCheckError::Silent(url.clone()))??;
        for issuer in &issuers {
            issuer.key_for(&challenge).await?;
        }
    }
    Ok(())
}
