//! Tokens from the issuer: many in one request (draft-ietf-privacypass-batched-tokens-09), or one by one from an issuer that does
//! not support batches.

use super::error::MintError;
use super::issuer::{IssuerClient, MintKey};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use postern_token::{Batch, BlindError, ChallengeDigest, REQUEST_MEDIA_TYPE, Token, TokenResponse};
use reqwest::Url;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, spawn_blocking};

/// Maximum tokens in one request.
const BATCH: usize = 100;
/// Maximum size of a response for one token, and of a refusal, in bytes.
const ANSWER_LIMIT: usize = 16 * 1024;
/// Upper bound of a token's share in the response to a batch, in bytes.
const BATCHED_LIMIT: usize = 300;

/// Time after which a batch is requested again from an issuer that did not support batches.
const SINGLY_FOR: Duration = Duration::from_secs(3_600);

/// The meaning of a refused batch, if the issuer signs a single token after it.
enum BatchRefusal {
    NoBatches,
    TooMany,
    /// The issuer failed at this batch, perhaps not at others.
    Failed,
}

impl IssuerClient {
    /// Mints up to `count` tokens for `challenge` (the exact bytes of the `TokenChallenge`), a hundred in one request, and passes
    /// each to `on_each`. If `urgent` is not 0, the first request is for at most that many tokens: those that tunnels wait for.
    /// An issuer without batches gets requests for single tokens, twice as many at a time as there are cores.
    ///
    /// `on_each` may stop the minting: requests under way are still finished and their tokens passed on, because the issuer has
    /// counted them. Returns the number of tokens. Dropping the future loses the tokens under way.
    ///
    /// # Errors
    /// The first error. Tokens that came before it, and those that were under way, have been passed on.
    pub async fn mint(
        &self,
        challenge: &[u8],
        key: &MintKey,
        count: usize,
        urgent: usize,
        on_each: impl FnMut(Token) -> ControlFlow<()>,
    ) -> Result<usize, MintError> {
        let digest = ChallengeDigest::of(challenge);
        let mut minting = Minting { issuer: self, key, digest, left: count, minted: 0, on_each };
        let mut most = key.batch_limit.map_or(BATCH, |limit| BATCH.min(limit as usize)).max(1);
        let mut first = (urgent > 0).then_some(urgent);
        while minting.left > 0 {
            if minting.left == 1 || self.is_singly() {
                minting.singly().await?;
                break;
            }
            let size = first.take().unwrap_or(most).min(most).min(minting.left);
            if size == 1 {
                minting.one().await?;
                continue;
            }
            match minting.batch(size).await {
                Ok(left_out) if left_out > 0 && minting.left > 0 => minting.one().await?,
                Ok(_) => {}
                Err(error) => {
                    let Some(means) = BatchRefusal::of(&error) else { return Err(error) };
                    minting.one().await?; // or returns the reason why there is none
                    match means {
                        BatchRefusal::NoBatches => {
                            *self.singly_until.lock() = Some(Instant::now() + SINGLY_FOR)
                        }
                        BatchRefusal::TooMany => most = (size / 2).max(1),
                        BatchRefusal::Failed => {
                            minting.singly().await?;
                            break;
                        }
                    }
                }
            }
        }
        Ok(minting.minted)
    }

    fn is_singly(&self) -> bool {
        self.singly_until.lock().is_some_and(|until| Instant::now() < until)
    }

    async fn mint_one(&self, challenge: ChallengeDigest, key: MintKey) -> Result<Token, MintError> {
        let url = self.request_url(&key)?;
        let (issuer_key, token_type) = (key.key.clone(), key.key.token_type());
        let (request, pending) =
            off_workers(url, BlindError::Blind, move || issuer_key.request(challenge)).await?;
        let post =
            self.http.post(url.clone()).header(CONTENT_TYPE, REQUEST_MEDIA_TYPE).body(request.serialize());
        let (_, body) = self.send(&[StatusCode::OK], url, self.authorized(post), ANSWER_LIMIT).await?;
        let response = TokenResponse::parse(token_type, &body)
            .map_err(|error| MintError::Unusable { url: url.clone(), reason: error.to_string() })?;
        off_workers(url, BlindError::BadResponse, move || pending.finalize(&response)).await
    }

    async fn mint_batch(
        &self,
        challenge: ChallengeDigest,
        key: &MintKey,
        size: usize,
    ) -> Result<Batch, MintError> {
        let (url, issuer_key) = (self.request_url(key)?, key.key.clone());
        let blinding = move || issuer_key.request_batch(challenge, size);
        let (request, pending) = off_workers(url, BlindError::Blind, blinding).await?;
        let post =
            self.http.post(url.clone()).header(CONTENT_TYPE, request.media_type()).body(request.serialize());
        let wanted = [StatusCode::OK, StatusCode::PARTIAL_CONTENT];
        let limit = ANSWER_LIMIT + size * BATCHED_LIMIT;
        let (headers, body) = self.send(&wanted, url, self.authorized(post), limit).await?;
        let media_type = request.response_media_type();
        if headers.get(CONTENT_TYPE).is_none_or(|found| found != media_type) {
            let reason = format!("it answers a batch with another Content-Type than {media_type}");
            return Err(MintError::Unusable { url: url.clone(), reason });
        }
        off_workers(url, BlindError::BadResponse, move || pending.finalize(&body)).await
    }

    /// Returns the URL for token requests. Fails if an API key, which is for the issuer alone, would go to another origin.
    fn request_url<'k>(&self, key: &'k MintKey) -> Result<&'k Url, MintError> {
        let url = &key.request_url;
        if self.api_key.is_some() && url.origin() != self.url.origin() {
            return Err(MintError::Elsewhere { url: self.url.clone(), elsewhere: url.clone() });
        }
        Ok(url)
    }
}

/// Runs `work` off the async workers: hundreds of microseconds of CPU to blind a token, tens to finalize it. A panic counts as
/// `panicked`.
async fn off_workers<T: Send + 'static>(
    url: &Url,
    panicked: BlindError,
    work: impl FnOnce() -> Result<T, BlindError> + Send + 'static,
) -> Result<T, MintError> {
    let done = spawn_blocking(work).await.unwrap_or(Err(panicked));
    done.map_err(|source| MintError::Blind { url: url.clone(), source })
}

impl BatchRefusal {
    /// Interprets a refusal; `None` if a single token would be refused as well.
    fn of(refusal: &MintError) -> Option<Self> {
        match refusal {
            // An issuer that parses any body as one request, and answers it as one.
            MintError::Unusable { .. } | MintError::Blind { source: BlindError::Form(_), .. } => {
                Some(Self::NoBatches)
            }
            MintError::Status { status, .. } => match *status {
                StatusCode::BAD_REQUEST
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::NOT_ACCEPTABLE
                | StatusCode::UNSUPPORTED_MEDIA_TYPE
                | StatusCode::NOT_IMPLEMENTED => Some(Self::NoBatches),
                StatusCode::INTERNAL_SERVER_ERROR => Some(Self::Failed),
                StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNPROCESSABLE_ENTITY
                | StatusCode::TOO_MANY_REQUESTS => Some(Self::TooMany),
                _ => None,
            },
            _ => None,
        }
    }
}

struct Minting<'m, F> {
    issuer: &'m IssuerClient,
    key: &'m MintKey,
    digest: ChallengeDigest,
    /// Tokens still wanted.
    left: usize,
    minted: usize,
    on_each: F,
}

impl<F: FnMut(Token) -> ControlFlow<()>> Minting<'_, F> {
    fn hand_over(&mut self, token: Token) {
        self.minted += 1;
        self.left = self.left.saturating_sub(1);
        if (self.on_each)(token).is_break() {
            self.left = 0;
        }
    }

    async fn one(&mut self) -> Result<(), MintError> {
        let token = self.issuer.mint_one(self.digest, self.key.clone()).await?;
        self.hand_over(token);
        Ok(())
    }

    /// Mints a batch; returns how many tokens of it were not issued.
    async fn batch(&mut self, size: usize) -> Result<usize, MintError> {
        let Batch { tokens, not_issued, bad } = self.issuer.mint_batch(self.digest, self.key, size).await?;
        tokens.into_iter().for_each(|token| self.hand_over(token));
        if bad > 0 {
            let (url, source) = (self.key.request_url.clone(), BlindError::BadResponse);
            return Err(MintError::Blind { url, source });
        }
        Ok(not_issued)
    }

    /// Mints the remaining tokens, each in a separate request.
    async fn singly(&mut self) -> Result<(), MintError> {
        let at_a_time = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let (mut to_request, mut failure) = (self.left, None);
        let mut under_way = JoinSet::new();
        loop {
            while to_request > 0 && under_way.len() < at_a_time {
                to_request -= 1;
                let (issuer, key, digest) = (self.issuer.clone(), self.key.clone(), self.digest);
                under_way.spawn(async move { issuer.mint_one(digest, key).await });
            }
            let Some(finished) = under_way.join_next().await else { break };
            let result = finished.unwrap_or_else(|error| {
                let (url, reason) = (self.key.request_url.clone(), error.to_string());
                Err(MintError::Unusable { url, reason })
            });
            match result {
                Ok(token) => self.hand_over(token),
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
            if self.left == 0 || failure.is_some() {
                to_request = 0;
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
