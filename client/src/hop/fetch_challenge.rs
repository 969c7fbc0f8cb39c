//! Fetches a gateway's challenge, which describes the tokens that it accepts.

use super::connection::{Answer, Refused};
use super::gateway::{Gateway, GatewayUrlError};
use super::health::Outage;
use crate::config::GatewayConfig;
use crate::sentence::retry_after;
use http::StatusCode;
use postern_daemon::BoxFuture;
use postern_daemon::http::{one_line, quoted};
use postern_proxy::target::Target;
use postern_token::header::Challenge;
use std::path::Path;
use std::sync::Arc;

/// The target of a request for a challenge: a name that cannot exist (RFC 6761, section 6.4). An agent opens no tunnel
/// there.
pub(crate) const CHALLENGE_TARGET: &str = "challenge.invalid:443";

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
    /// Returns the outage for a 503, 429 or 508: the gateway accepts no tokens now, or none from this agent.
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
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            Err(Outage::unavailable(gateway.url(), &refused))
        }
        status => {
            let text = quoted(&one_line(&refused.body));
            Err(no_challenge(format!("it answered {status}{text} where 407 is expected")))
        }
    }
}
