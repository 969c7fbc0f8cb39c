//! Fetches a gateway's challenge: the tokens that it accepts.

use super::connection::{Answer, Refused};
use super::gateway::{DialError, Gateway, GatewayUrlError, NoWay};
use super::health::{Outage, OutageKind};
use crate::config::GatewayConfig;
use crate::sentence::{quoted, retry_after};
use http::StatusCode;
use postern_daemon::BoxFuture;
use postern_daemon::http::one_line;
use postern_proxy::target::Target;
use postern_token::header::Challenge;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The target of a request for a challenge: a name that cannot exist (RFC 6761, section 6.4). An agent opens no tunnel
/// there.
pub(crate) const CHALLENGE_TARGET: &str = "challenge.invalid:443";

/// The reason why a gateway gave no challenge.
#[derive(Debug, thiserror::Error)]
pub enum ChallengeFetchError {
    /// The gateway's address is invalid.
    #[error(transparent)]
    Url(#[from] GatewayUrlError),
    /// It cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The hop before it opens no way there.
    #[error("{0}")]
    FirstHop(Outage),
    /// It did not answer, or not in HTTP.
    #[error("{0}")]
    Exchange(String),
    /// It answered, but without a challenge for tokens of a type that can be minted.
    #[error(
        "the gateway {url} gave no challenge: {reason}; is this the address of a gateway that takes tokens?"
    )]
    NoChallenge {
        /// The gateway.
        url: String,
        /// What it sent instead.
        reason: String,
    },
    /// It accepts no tokens now: none at all (503), or none from here (429).
    #[error("the gateway {url} takes no tokens now: it answered {}{}", status.as_u16(), quoted(text))]
    Unavailable {
        /// The gateway.
        url: String,
        /// 503 or 429.
        status: StatusCode,
        /// Its message, cut to one line.
        text: String,
        /// The gateway's `Retry-After`.
        retry_after: Option<Duration>,
    },
}

impl From<NoWay> for ChallengeFetchError {
    fn from(reason: NoWay) -> Self {
        match reason {
            NoWay::Dial(error) => Self::Dial(error),
            NoWay::FirstHop(outage) => Self::FirstHop(outage),
        }
    }
}

impl ChallengeFetchError {
    /// Describes a 503 or 429.
    fn unavailable(url: String, refused: &Refused) -> Self {
        let retry_after = retry_after(&refused.headers);
        Self::Unavailable { url, status: refused.status, text: one_line(&refused.body), retry_after }
    }
}

impl Outage {
    /// Describes a 503 or 429 to a request with a token.
    pub(crate) fn unavailable(url: &str, refused: &Refused) -> Self {
        ChallengeFetchError::unavailable(url.to_owned(), refused).into()
    }
}

impl From<ChallengeFetchError> for Outage {
    fn from(error: ChallengeFetchError) -> Self {
        let sentence = error.to_string();
        match error {
            ChallengeFetchError::Dial(error) => error.into(),
            ChallengeFetchError::FirstHop(outage) => outage,
            ChallengeFetchError::Exchange(_) => Self::no_answer(sentence),
            ChallengeFetchError::Unavailable { retry_after, .. } => {
                let cause = "the gateway takes no tokens now";
                Self { sentence, cause, kind: OutageKind::Unavailable, retry_after }
            }
            ChallengeFetchError::Url(_) | ChallengeFetchError::NoChallenge { .. } => {
                let cause = "the gateway gave no challenge";
                Self { sentence, cause, kind: OutageKind::Unfit, retry_after: None }
            }
        }
    }
}

/// Fetches a gateway's challenge: a CONNECT without a token, to a name that cannot exist, and the first challenge for a token
/// that can be minted (type 1, 2 or 5) in the 407 that comes back.
///
/// # Errors
/// [`ChallengeFetchError`].
pub fn fetch_challenge<'a>(
    gateway_url: &'a str,
    ca: Option<&'a Path>,
) -> BoxFuture<'a, Result<Challenge, ChallengeFetchError>> {
    Box::pin(async move {
        let config = GatewayConfig { ca: ca.map(Path::to_owned), ..GatewayConfig::at(gateway_url) };
        fetch_challenge_from(&Arc::new(Gateway::new(gateway_url, &config)?.of_any_origin())).await
    })
}

pub(crate) async fn fetch_challenge_from(gateway: &Arc<Gateway>) -> Result<Challenge, ChallengeFetchError> {
    let url = || gateway.url().to_owned();
    let no_challenge = |reason: String| ChallengeFetchError::NoChallenge { url: url(), reason };
    let target = Target::parse(CHALLENGE_TARGET, None).map_err(|error| no_challenge(error.to_string()))?;
    let answer = gateway.dial().await?.connect(&target, None).await;
    let refused = match answer.map_err(|error| ChallengeFetchError::Exchange(error.to_string()))? {
        Answer::Opened(_) => return Err(no_challenge("it opens tunnels without a token".to_owned())),
        Answer::Refused(refused) => refused,
    };
    match refused.status {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => refused.challenge().map_err(no_challenge),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            Err(ChallengeFetchError::unavailable(url(), &refused))
        }
        status => {
            let text = quoted(&one_line(&refused.body));
            Err(no_challenge(format!("it answered {status}{text} where 407 is expected")))
        }
    }
}
