//! Whether an agent would get tokens with a configuration: its gateways' challenges, its issuers' keys, and a token of each issuer.

use crate::config::{Config, Urls};
use crate::hop::fetch_challenge::{ChallengeFetchError, fetch_challenge_from};
use crate::hop::gateway::{Gateway, GatewayUrlError};
use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use std::ops::ControlFlow;
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

/// Fetches the challenge of each gateway of `config`, and each issuer's key for it; and has each issuer sign one token, which is given
/// up: whether it takes the API key, no other request shows.
///
/// # Errors
/// The first thing that would keep the agent from minting.
pub async fn check_join(config: &Config) -> Result<(), JoinCheckError> {
    let hop = config.last_hop();
    let urls = hop.issuer.url.as_ref().map_or(&[][..], Urls::list);
    let issuers = urls
        .iter()
        .map(|url| IssuerClient::configured(url, hop.issuer))
        .collect::<Result<Vec<_>, MintError>>()?;
    let mut is_tried = false;
    for url in hop.gateway.url.list() {
        let gateway = Arc::new(Gateway::new(url, hop.gateway)?);
        let fetching = timeout(PATIENCE, fetch_challenge_from(&gateway)).await;
        let challenge = fetching.map_err(|_| JoinCheckError::Silent(url.clone()))??;
        for issuer in &issuers {
            let key = issuer.key_for(&challenge).await?;
            if !is_tried {
                issuer.mint(&challenge.bytes, &key, 1, 0, |_| ControlFlow::Continue(())).await?;
            }
        }
        is_tried = true;
    }
    Ok(())
}
