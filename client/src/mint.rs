//! Minting: the gateway's challenge, the issuer's directory, and tokens signed blind (RFC 9578, section 6).
//!
//! The agent and `postern token mint` both go this way. The issuer sees how many tokens are asked for and by whom, and
//! never a token: what it signs is blinded.

use crate::config::GatewayConfig;
use crate::gateway::{Answer, DialError, Gateway, GatewayUrlError};
use crate::recorder::Attempts;
use crate::target::Target;
use http::StatusCode;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use postern_service::config::Secret;
use postern_service::http::{BodyError, ClientError, ClientOptions, client, fetch_limited, no_answer};
use postern_token::header::Challenge;
use postern_token::{
    BlindError, ChallengeDigest, DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, Directory, IssuerKey,
    REQUEST_MEDIA_TYPE, Token, TokenKeyId, TokenResponse, TokenType, UnixSeconds,
};
use reqwest::{RequestBuilder, Response, Url};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, spawn_blocking};

/// The largest directory that is read, in bytes.
const DIRECTORY_LIMIT: usize = 256 * 1024;
/// The largest token response or refusal that is read, in bytes.
const ANSWER_LIMIT: usize = 16 * 1024;

/// An issuer, and who we are to it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct IssuerClient {
    http: reqwest::Client,
    url: Url,
    api_key: Option<Secret>,
    attempts: Attempts,
}

/// A key to have tokens signed with.
#[derive(Clone, Debug)]
pub struct MintKey {
    /// The issuer's public key.
    pub key: IssuerKey,
    /// When its tokens are no longer accepted, if the directory says so.
    pub not_after: Option<UnixSeconds>,
    /// Where requests go.
    request_url: Url,
}

/// Why there are no tokens. Every one is a sentence that names the URL and what to do.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The issuer's address is not one.
    #[error(
        "the issuer's address \"{0}\" must be http://host:port or https://host, without a user or a query"
    )]
    Url(String),
    /// The trusted certificates.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No answer.
    #[error("the issuer {url} cannot be reached: {reason}")]
    Unreachable {
        /// What was asked for.
        url: Url,
        /// What went wrong, and what to do.
        reason: String,
    },
    /// An answer that gives nothing.
    #[error("the issuer {url} answered {status}{}{}", quoted(text), advice(*status))]
    Status {
        /// What was asked for.
        url: Url,
        /// The status.
        status: StatusCode,
        /// What the issuer wrote, one line of it.
        text: String,
        /// After how long it may be asked again.
        retry_after: Option<Duration>,
    },
    /// An answer that cannot be used.
    #[error(
        "the issuer {url} gave an answer that cannot be used: {reason}; is this the address of a Privacy Pass issuer?"
    )]
    Unusable {
        /// What was asked for.
        url: Url,
        /// What is wrong with it.
        reason: String,
    },
    /// The challenge's key is not among the issuer's.
    #[error(
        "the gateway asks for tokens of a key that the issuer's directory {url} does not list. Such a key could be one \
         that only some clients are shown, to tell them apart, so nothing is minted for it; does the gateway use this \
         issuer, and has it fetched its keys lately?"
    )]
    Unlisted {
        /// The directory.
        url: Url,
    },
    /// The key is unusable, or the issuer did not sign with it.
    #[error(
        "the issuer {url} gave no signature that can be used: {source}; does it hold the key that the gateway asks for?"
    )]
    Blind {
        /// What was asked for.
        url: Url,
        /// What failed.
        source: BlindError,
    },
}

impl MintError {
    /// Whether asking again soon is pointless: someone has to change an account, a key or an address first.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            // A gateway that polls seldom is behind the directory for a while after a key was taken back.
            Self::Unreachable { .. } | Self::Unlisted { .. } => false,
            Self::Status { status, .. } => {
                status.is_client_error()
                    && !matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
            }
            _ => true,
        }
    }

    /// How long the issuer wants to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": \"{text}\"") }
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "; check the account's key (issuer.api_key, --api-key or POSTERN_ISSUER_API_KEY)"
        }
        StatusCode::NOT_FOUND => "; is it a Privacy Pass issuer, and is its address right?",
        StatusCode::TOO_MANY_REQUESTS => {
            "; the account's quota is used up for now: wait for its next period, or ask the issuer's operator for more"
        }
        StatusCode::UNPROCESSABLE_ENTITY => "; does it hold the key that the gateway asks for?",
        _ => "",
    }
}

/// Why a gateway gave no challenge.
#[derive(Debug, thiserror::Error)]
pub enum ChallengeFetchError {
    /// Its address is not one.
    #[error(transparent)]
    Url(#[from] GatewayUrlError),
    /// It cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It did not answer, or not in HTTP.
    #[error("{0}")]
    Exchange(String),
    /// It answered, but with no challenge for a token of type 2.
    #[error(
        "the gateway {url} gave no challenge: {reason}; is this the address of a gateway that takes tokens?"
    )]
    NoChallenge {
        /// The gateway.
        url: String,
        /// What it gave.
        reason: String,
    },
}

/// Asks a gateway which tokens it takes: a CONNECT without a token, to a name that cannot exist (RFC 6761,
/// section 6.4), and the first challenge for a token of type 2 in the 407 that comes back.
///
/// # Errors
/// [`ChallengeFetchError`].
pub async fn fetch_challenge(gateway_url: &str, ca: Option<&Path>) -> Result<Challenge, ChallengeFetchError> {
    let config = GatewayConfig { ca: ca.map(Path::to_owned), ..GatewayConfig::at(gateway_url) };
    ask(&Gateway::new(&config)?.of_any_origin()).await
}

pub(crate) async fn ask(gateway: &Gateway) -> Result<Challenge, ChallengeFetchError> {
    let no_challenge =
        |reason: String| ChallengeFetchError::NoChallenge { url: gateway.url().to_owned(), reason };
    let target = Target::new("challenge.invalid", 443).map_err(|error| no_challenge(error.to_string()))?;
    let answer = gateway.dial().await?.connect(&target, None).await;
    match answer.map_err(|error| ChallengeFetchError::Exchange(error.to_string()))? {
        Answer::Opened(_) => Err(no_challenge("it opens tunnels without a token".to_owned())),
        Answer::Refused(refused) if refused.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            refused.challenge().map_err(no_challenge)
        }
        Answer::Refused(refused) => {
            let text = quoted(&one_line(&refused.body));
            Err(no_challenge(format!("it answered {}{text} where 407 is expected", refused.status)))
        }
    }
}

impl IssuerClient {
    /// A client for the issuer at `issuer_url` (its directory is at the well-known path of that host), which sends
    /// `api_key` as a bearer token and trusts the certificates in `ca` instead of the platform's.
    ///
    /// # Errors
    /// The address is not a URL with a host, or the certificates cannot be read.
    pub fn new(issuer_url: &str, api_key: Option<Secret>, ca: Option<PathBuf>) -> Result<Self, MintError> {
        let refused = || MintError::Url(issuer_url.to_owned());
        let url = Url::parse(issuer_url).map_err(|_| refused())?;
        let anonymous = url.username().is_empty() && url.password().is_none();
        let known = matches!(url.scheme(), "http" | "https") && url.has_host();
        if !known || !anonymous || url.query().is_some() || url.fragment().is_some() {
            return Err(refused());
        }
        let options = ClientOptions { ca_file: ca, ..ClientOptions::default() };
        Ok(Self { http: client(&options)?, url, api_key, attempts: Attempts::default() })
    }

    /// The issuer that a challenge names: `https://` and its name, which must be a host (and a port).
    ///
    /// # Errors
    /// As [`IssuerClient::new`].
    pub fn named(issuer_name: &str, ca: Option<PathBuf>) -> Result<Self, MintError> {
        let client = Self::new(&format!("https://{issuer_name}"), None, ca)?;
        if client.url.path() == "/" { Ok(client) } else { Err(MintError::Url(client.url.to_string())) }
    }

    /// Records its requests. Those to a request URI elsewhere are counted here too: the issuer chose that, and not the
    /// operator.
    pub(crate) fn recorded(self, attempts: Attempts) -> Self {
        Self { attempts, ..self }
    }

    /// The host and port of its address.
    pub(crate) fn address(&self) -> String {
        let port = self.url.port_or_known_default().unwrap_or(443);
        format!("{}:{port}", self.url.host_str().unwrap_or_default())
    }

    /// The issuer's keys.
    ///
    /// # Errors
    /// [`MintError`].
    pub async fn directory(&self) -> Result<Directory, MintError> {
        let url = self.directory_url()?;
        let request = self.http.get(url.clone()).header(ACCEPT, DIRECTORY_MEDIA_TYPE);
        let body = self.send(&url, request, DIRECTORY_LIMIT).await?;
        Directory::parse(&body).map_err(|error| MintError::Unusable { url, reason: error.to_string() })
    }

    fn directory_url(&self) -> Result<Url, MintError> {
        self.url.join(DIRECTORY_PATH).map_err(|_| MintError::Url(self.url.to_string()))
    }

    /// The key to mint with for `challenge`: the one its `token-key` gives, else the directory's preferred one. The
    /// directory must list it: a key that is shown to one client alone would name that client in each of its tokens.
    ///
    /// # Errors
    /// [`MintError`].
    pub async fn key_for(&self, challenge: &Challenge) -> Result<MintKey, MintError> {
        let directory = self.directory().await?;
        let url = self.directory_url()?;
        let unusable = |reason: String| MintError::Unusable { url: url.clone(), reason };
        let request_url = url.join(&directory.issuer_request_uri).map_err(|error| {
            unusable(format!(
                "its issuer-request-uri \"{}\" is no URL: {error}",
                directory.issuer_request_uri
            ))
        })?;
        if url.scheme() == "https" && request_url.scheme() != "https" {
            return Err(unusable(format!("its issuer-request-uri {request_url} leaves https")));
        }
        let listed = match &challenge.token_key {
            Some(wanted) => directory
                .keys_for(TokenType::BlindRsa2048)
                .find(|key| key.key_bytes().is_ok_and(|bytes| bytes == *wanted)),
            None => directory.preferred(TokenType::BlindRsa2048, UnixSeconds::now()),
        };
        let spki = match (&challenge.token_key, listed) {
            (Some(_), None) => return Err(MintError::Unlisted { url }),
            (_, Some(key)) => key.key_bytes().map_err(|error| unusable(error.to_string()))?,
            (None, None) => return Err(unusable("it lists no key of type 2 that is in use".to_owned())),
        };
        let key = IssuerKey::from_spki(&spki).map_err(|error| unusable(error.to_string()))?;
        let not_after = listed.and_then(|key| key.not_after);
        if not_after.is_some_and(|not_after| not_after <= UnixSeconds::now()) {
            return Err(unusable(
                "the key to use is retired; the issuer has to publish a newer one".to_owned(),
            ));
        }
        Ok(MintKey { key, not_after, request_url })
    }

    /// Mints up to `count` tokens for `challenge` (the exact bytes of the `TokenChallenge`), twice as many at a time
    /// as there are cores, and hands each to `on_each` as it comes. `on_each` may break off: what is under way is
    /// still finished and handed over, because the issuer has counted it. Returns how many came.
    ///
    /// Dropping the future loses the tokens under way.
    ///
    /// # Errors
    /// The first error; tokens that came before it, and those that were under way, have been handed over.
    pub async fn mint(
        &self,
        challenge: &[u8],
        key: &MintKey,
        count: usize,
        mut on_each: impl FnMut(Token) -> ControlFlow<()>,
    ) -> Result<usize, MintError> {
        let digest = ChallengeDigest::of(challenge);
        let at_a_time = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let (mut left, mut minted, mut failure) = (count, 0, None);
        let mut under_way = JoinSet::new();
        loop {
            while left > 0 && under_way.len() < at_a_time {
                left -= 1;
                let (issuer, key) = (self.clone(), key.clone());
                under_way.spawn(async move { issuer.mint_one(digest, key).await });
            }
            let Some(finished) = under_way.join_next().await else { break };
            let result = finished.unwrap_or_else(|error| {
                Err(MintError::Unusable { url: key.request_url.clone(), reason: error.to_string() })
            });
            match result {
                Ok(token) => {
                    minted += 1;
                    if on_each(token).is_break() {
                        left = 0;
                    }
                }
                Err(error) => {
                    left = 0;
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok(minted), Err)
    }

    /// Hundreds of microseconds of CPU to blind, tens to finalize, both off the async workers.
    async fn mint_one(&self, challenge: ChallengeDigest, key: MintKey) -> Result<Token, MintError> {
        let url = key.request_url;
        let blind = |source| MintError::Blind { url: url.clone(), source };
        let (request, pending) = spawn_blocking(move || key.key.request(challenge))
            .await
            .unwrap_or(Err(BlindError::Blind))
            .map_err(blind)?;
        let post = self
            .authorized(self.http.post(url.clone()))
            .header(CONTENT_TYPE, REQUEST_MEDIA_TYPE)
            .body(request.serialize().to_vec());
        let body = self.send(&url, post, ANSWER_LIMIT).await?;
        let response = TokenResponse::parse(&body)
            .map_err(|error| MintError::Unusable { url: url.clone(), reason: error.to_string() })?;
        spawn_blocking(move || pending.finalize(&response))
            .await
            .unwrap_or(Err(BlindError::BadResponse))
            .map_err(blind)
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.header(AUTHORIZATION, format!("Bearer {}", key.expose())),
            None => request,
        }
    }

    /// Sends, and returns the body of a 200.
    async fn send(&self, url: &Url, request: RequestBuilder, limit: usize) -> Result<Vec<u8>, MintError> {
        let began = Instant::now();
        let response = request.send().await.map_err(|error| {
            self.attempts.lost();
            MintError::Unreachable {
                url: url.clone(),
                reason: no_answer(&error.without_url(), "issuer.ca (or --ca)"),
            }
        })?;
        let status = response.status();
        let retry_after = retry_after(&response);
        let body = fetch_limited(response, limit).await;
        match &body {
            Err(BodyError::Broken(_)) => self.attempts.lost(),
            Ok(_) | Err(BodyError::TooLong { .. }) => self.attempts.answered(began.elapsed()),
        }
        if status != StatusCode::OK {
            let text = body.map(|body| one_line(&body)).unwrap_or_default();
            return Err(MintError::Status { url: url.clone(), status, text, retry_after });
        }
        body.map(|body| body.to_vec())
            .map_err(|error| MintError::Unusable { url: url.clone(), reason: error.to_string() })
    }
}

impl MintKey {
    /// The key's id.
    #[must_use]
    pub fn id(&self) -> TokenKeyId {
        self.key.id()
    }
}

/// In seconds; a date is passed over, and our own backoff stands.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The first 300 characters of someone else's text, fit for one line of ours.
pub(crate) fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}
