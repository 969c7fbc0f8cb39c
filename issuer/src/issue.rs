//! Issues tokens: a request from its bytes to the answer (RFC 9578, sections 5.2 and 6.2), single or in a batch.

pub(crate) mod asked;

use crate::accounts::{Accounts, Caller};
use crate::answer::Refusal;
use crate::catalogue::{IssuerOutcome, TokenTypeAsked};
use crate::keyring::Keyring;
use crate::quota::Charge;
use crate::recorder::{Part, Recorder};
use crate::reload::Settings;
use crate::signing::{Done, Signature, Unsigned, Work};
use asked::{Asked, Form};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Body;
use postern_daemon::http::{BodyError, read_limited};
use postern_daemon::sources::Source;
use postern_daemon::tls::PublicKeyDigest;
use postern_token::{
    AMORTIZED_RESPONSE_MEDIA_TYPE, GENERIC_RESPONSE_MEDIA_TYPE, OptionalTokenResponse, RESPONSE_MEDIA_TYPE,
    SigningKey, TokenRequest, UnixSeconds, serialize_generic_response,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// An error of a request's body.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

#[derive(Debug)]
pub(crate) struct Issuance {
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) settings: Settings,
    pub(crate) recorder: Arc<Recorder>,
}

#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(crate) source: Option<Source>,
    /// The public key of the certificate that the client presented in the handshake.
    pub(crate) certificate: Option<PublicKeyDigest>,
}

/// A request's body, and its sender if it was authorized before the body was read.
#[derive(Debug, Default)]
pub(crate) struct Received {
    body: Bytes,
    caller: Option<Caller>,
}

/// The issued tokens, at least one.
#[derive(Debug)]
pub(crate) enum Issued {
    Whole(Done),
    /// `None` for each refused request of the batch.
    Generic(Vec<OptionalTokenResponse>),
}

impl Issuance {
    /// Answers a request that has been [received](Issuance::receive). Dropping the future at any `await` leaves nothing counted
    /// that was not signed. Sets `type_asked` to the token type.
    pub(crate) async fn answer(
        &self,
        headers: &HeaderMap,
        client: Client,
        Received { body, caller }: Received,
        type_asked: &mut TokenTypeAsked,
    ) -> Result<Issued, Refusal> {
        let form = Form::of(headers);
        *type_asked = form.unwrap_or(Form::One).type_asked(&body);
        let now = UnixSeconds::now();
        let caller = match caller {
            Some(caller) => caller,
            None => self.authorize(headers, client, now).await?,
        };
        let form = form.ok_or(Refusal::MediaType)?;
        match form.parse(&body).map_err(|error| Refusal::Malformed(form, error))? {
            Asked::Whole(work) => self.whole(&caller, work, now).await.map(Issued::Whole),
            Asked::Generic(requests) => self.generic(&caller, requests, now).await.map(Issued::Generic),
        }
    }

    /// Reads the body of a request. It is read before anything is refused: it is small, and a client that is still sending
    /// when the answer arrives often gets a broken connection instead of the answer. A batch is read only if it `may_pass`, and
    /// for accounts, so that strangers cannot take memory for one.
    pub(crate) async fn receive<B>(
        &self,
        headers: &HeaderMap,
        client: Client,
        body: B,
        may_pass: bool,
    ) -> Result<Received, Refusal>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let form = Form::of(headers).unwrap_or(Form::One);
        let most = form.most_bytes(self.batch_limit());
        if body.size_hint().lower() > most as u64 {
            return Err(Refusal::TooLong(form, self.batch_limit())); // before a client that waits for "100 Continue" sends it
        }
        let caller = match form {
            Form::One => None,
            _ if !may_pass => return Ok(Received::default()),
            _ => Some(self.authorize(headers, client, UnixSeconds::now()).await?),
        };
        let began = Instant::now();
        let limit = self.settings.load().limits.body_timeout.get();
        match tokio::time::timeout(limit, read_limited(body, most)).await {
            Ok(Ok(body)) => {
                self.recorder.took(Part::Body, began.elapsed());
                Ok(Received { body, caller })
            }
            Ok(Err(BodyError::TooLong { .. })) => Err(Refusal::TooLong(form, self.batch_limit())),
            Ok(Err(BodyError::Broken(_))) => Err(Refusal::Broken),
            Err(_) => Err(Refusal::TooSlow),
        }
    }

    async fn authorize(
        &self,
        headers: &HeaderMap,
        client: Client,
        now: UnixSeconds,
    ) -> Result<Caller, Refusal> {
        let authorizing = self.accounts.authorize(headers, client.source, client.certificate, now);
        authorizing.await.map_err(Refusal::NoAccount)
    }

    /// Issues all requested tokens or none: those of an amortized batch share one proof.
    async fn whole(&self, caller: &Caller, work: Work, now: UnixSeconds) -> Result<Done, Refusal> {
        let (asked, limit) = (work.count(), self.batch_limit());
        if asked > limit {
            return Err(Refusal::BatchTooLarge { limit });
        }
        let key = self.signer(&work, now)?;
        let charge = self.accounts.charge(caller, asked as u64, now).await.map_err(Refusal::NoToken)?;
        if charge.count() < asked as u64 {
            return Err(Refusal::TooFewLeft { left: charge.count() });
        }
        let signing = self.submit(caller, key, work, charge);
        signing.map_err(Refusal::Unsigned)?.await.map_err(Refusal::Unsigned)
    }

    /// Issues as many tokens of the batch as possible, the first ones first.
    async fn generic(
        &self,
        caller: &Caller,
        requests: Vec<TokenRequest>,
        now: UnixSeconds,
    ) -> Result<Vec<OptionalTokenResponse>, Refusal> {
        let limit = self.batch_limit();
        let types: Vec<_> = requests.iter().map(TokenRequest::token_type).collect();
        let works: Vec<_> = requests.into_iter().map(Work::Token).collect();
        let signer = |(index, work): (usize, &Work)| {
            if index < limit { self.signer(work, now) } else { Err(Refusal::BatchTooLarge { limit }) }
        };
        let signers: Vec<_> = works.iter().enumerate().map(signer).collect();
        let wanted = signers.iter().filter(|signer| signer.is_ok()).count();
        let mut charge = match wanted {
            0 => Charge::free(0),
            _ => self.accounts.charge(caller, wanted as u64, now).await.map_err(Refusal::NoToken)?,
        };
        let begin = |(work, signer): (Work, Result<_, Refusal>)| {
            let key = signer?;
            let charge = charge.split_one().ok_or(Refusal::TooFewLeft { left: 0 })?;
            self.submit(caller, key, work, charge).map_err(Refusal::Unsigned)
        };
        let signing: Vec<_> = works.into_iter().zip(signers).map(begin).collect();
        let (mut responses, mut first_refusal) = (Vec::with_capacity(signing.len()), None);
        for (begun, token_type) in signing.into_iter().zip(types) {
            let response = match begun {
                Ok(signature) => signature.await.map_err(Refusal::Unsigned),
                Err(refusal) => Err(refusal),
            };
            let refusal = match response {
                Ok(Done::Token(response)) => {
                    responses.push(Some((token_type, response)));
                    continue;
                }
                Ok(Done::Batch(_)) => Refusal::Unsigned(Unsigned::Failed),
                Err(refusal) => refusal,
            };
            first_refusal.get_or_insert(refusal);
            responses.push(None);
        }
        match first_refusal {
            Some(refusal) if responses.iter().all(Option::is_none) => Err(refusal.of_batch()),
            _ => Ok(responses),
        }
    }

    fn signer(&self, work: &Work, now: UnixSeconds) -> Result<Arc<SigningKey>, Refusal> {
        let (token_type, truncated) = work.key_name();
        self.keyring.signer(token_type, truncated, now).map_err(Refusal::NoKey)
    }

    /// Submits work to the pool. The charge stands once it is signed, even if the client has disconnected.
    fn submit(
        &self,
        caller: &Caller,
        key: Arc<SigningKey>,
        work: Work,
        charge: Charge,
    ) -> Result<Signature, Unsigned> {
        let tokens = self.accounts.tokens_of(caller);
        self.settings.load().pool.submit(caller.claim(), key, work, move || {
            tokens.increment(charge.count());
            charge.keep();
        })
    }

    fn batch_limit(&self) -> usize {
        self.settings.load().limits.batch as usize
    }
}

impl Issued {
    /// Returns 200 with what was issued, or 206 with a part of a generic batch, and the outcome.
    pub(crate) fn into_response(self) -> (Response<Full<Bytes>>, IssuerOutcome) {
        let (media_type, body) = match &self {
            Self::Whole(Done::Token(response)) => (RESPONSE_MEDIA_TYPE, response.as_bytes().to_vec()),
            Self::Whole(Done::Batch(response)) => (AMORTIZED_RESPONSE_MEDIA_TYPE, response.serialize()),
            Self::Generic(responses) => (GENERIC_RESPONSE_MEDIA_TYPE, serialize_generic_response(responses)),
        };
        let mut response = Response::new(Full::new(body.into()));
        // Without parameters: privacypass-ts compares the whole value.
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        match &self {
            Self::Generic(responses) if responses.iter().any(Option::is_none) => {
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                (response, IssuerOutcome::Partial)
            }
            _ => (response, IssuerOutcome::Issued),
        }
    }
}
