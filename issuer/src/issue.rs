//! A request for tokens, from its bytes to the answer (RFC 9578, sections 5.2 and 6.2), alone or in a batch.

mod asked;

use crate::accounts::{Accounts, Caller, NoAccount};
use crate::answer::Refusal;
use crate::catalogue::TokenTypeAsked;
use crate::keyring::Keyring;
use crate::quota::Charge;
use crate::recorder::{Part, Recorder};
use crate::reload::Settings;
use crate::server::Client;
use crate::signing::{Done, Signature, Unsigned, Work};
use asked::Asked;
pub(crate) use asked::Form;
use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Body;
use postern_daemon::http::{BodyError, read_limited};
use postern_token::{
    AmortizedRequest, AmortizedResponse, OptionalTokenResponse, SigningKey, TokenRequest, TokenResponse,
    UnixSeconds,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Any error of a request's body.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// What it takes to issue a token.
#[derive(Debug)]
pub(crate) struct Issuance {
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) settings: Settings,
    pub(crate) recorder: Arc<Recorder>,
}

/// What was issued: one token at least.
#[derive(Debug)]
pub(crate) enum Issued {
    One(TokenResponse),
    Amortized(AmortizedResponse),
    /// Nothing where a request of the batch was refused.
    Generic(Vec<OptionalTokenResponse>),
}

impl Issuance {
    /// A request of this client whose body has been [read](Issuance::read). Dropped at any `await`, it
    /// leaves nothing counted that was not signed. `type_asked` becomes the token type, once it is read.
    pub(crate) async fn answer(
        &self,
        headers: &HeaderMap,
        client: Client,
        body: Bytes,
        type_asked: &mut TokenTypeAsked,
    ) -> Result<Issued, Refusal> {
        let form = Form::of(headers);
        *type_asked = form.as_ref().unwrap_or(&Form::One).type_asked(&body);
        let now = UnixSeconds::now();
        let caller = self.authorize(headers, client, now).await.map_err(Refusal::NoAccount)?;
        match form?.parse(&body)? {
            Asked::One(request) => self.one(&caller, request, now).await.map(Issued::One),
            Asked::Amortized(request) => self.amortized(&caller, request, now).await.map(Issued::Amortized),
            Asked::Generic(requests) => self.generic(&caller, requests, now).await.map(Issued::Generic),
        }
    }

    /// The body of a request. It is read before anything is refused: it is small, and a client that is still sending
    /// when the answer comes often sees a broken connection instead of the answer. A batch is read for accounts alone: room
    /// for it is not a stranger's.
    pub(crate) async fn read<B>(&self, headers: &HeaderMap, client: Client, body: B) -> Result<Bytes, Refusal>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let form = Form::of(headers).unwrap_or(Form::One);
        let most = form.most_bytes(self.batch_limit());
        if body.size_hint().lower() > most as u64 {
            return Err(Refusal::TooLong(form, self.batch_limit())); // before a client that waits for "100 Continue" sends it
        }
        if form != Form::One {
            self.authorize(headers, client, UnixSeconds::now()).await.map_err(Refusal::NoAccount)?;
        }
        let began = Instant::now();
        let limit = self.settings.load().limits.body_timeout.get();
        match tokio::time::timeout(limit, read_limited(body, most)).await {
            Ok(Ok(body)) => {
                self.recorder.took(Part::Body, began.elapsed());
                Ok(body)
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
    ) -> Result<Caller, NoAccount> {
        self.accounts.authorize(headers, client.source, client.certificate, now).await
    }

    async fn one(
        &self,
        caller: &Caller,
        request: TokenRequest,
        now: UnixSeconds,
    ) -> Result<TokenResponse, Refusal> {
        let key = self.signer(&request, now)?;
        let charge = self.accounts.charge(caller, 1, now).await.map_err(Refusal::NoToken)?;
        self.sign(caller, key, request, charge).map_err(Refusal::Unsigned)?.token().await
    }

    /// All of its tokens or none: they share one proof.
    async fn amortized(
        &self,
        caller: &Caller,
        request: AmortizedRequest,
        now: UnixSeconds,
    ) -> Result<AmortizedResponse, Refusal> {
        let (asked, limit) = (request.count(), self.batch_limit());
        if asked > limit {
            return Err(Refusal::BatchTooLarge { limit });
        }
        let (token_type, truncated) = (request.token_type(), request.truncated_token_key_id);
        let key = self.keyring.signer(token_type, truncated, now).map_err(Refusal::NoKey)?;
        let charge = self.accounts.charge(caller, asked as u64, now).await.map_err(Refusal::NoToken)?;
        if charge.count() < asked as u64 {
            return Err(Refusal::TooFewLeft { left: charge.count() });
        }
        let signing = self.submit(caller, key, Work::Batch(request), charge).map_err(Refusal::Unsigned)?;
        match signing.await.map_err(Refusal::Unsigned)? {
            Done::Batch(response) => Ok(response),
            Done::Token(_) => Err(Refusal::Unsigned(Unsigned::Failed)),
        }
    }

    /// As many of its tokens as can be issued, the first ones first.
    async fn generic(
        &self,
        caller: &Caller,
        requests: Vec<TokenRequest>,
        now: UnixSeconds,
    ) -> Result<Vec<OptionalTokenResponse>, Refusal> {
        let limit = self.batch_limit();
        let signer = |(index, request): (usize, &TokenRequest)| {
            if index < limit { self.signer(request, now) } else { Err(Refusal::BatchTooLarge { limit }) }
        };
        let signers: Vec<_> = requests.iter().enumerate().map(signer).collect();
        let wanted = signers.iter().filter(|signer| signer.is_ok()).count();
        let mut charge = match wanted {
            0 => Charge::free(0),
            _ => self.accounts.charge(caller, wanted as u64, now).await.map_err(Refusal::NoToken)?,
        };
        let types: Vec<_> = requests.iter().map(TokenRequest::token_type).collect();
        let mut signing = Vec::with_capacity(requests.len());
        for (request, signer) in requests.into_iter().zip(signers) {
            let begun = signer.and_then(|key| {
                let charge = charge.split_one().ok_or(Refusal::TooFewLeft { left: 0 })?;
                self.sign(caller, key, request, charge).map_err(Refusal::Unsigned)
            });
            signing.push(begun);
        }
        let (mut responses, mut first_refusal) = (Vec::with_capacity(signing.len()), None);
        for (begun, token_type) in signing.into_iter().zip(types) {
            let response = match begun {
                Ok(signature) => signature.token().await,
                Err(refusal) => Err(refusal),
            };
            match response {
                Ok(response) => responses.push(Some((token_type, response))),
                Err(refusal) => {
                    first_refusal.get_or_insert(refusal);
                    responses.push(None);
                }
            }
        }
        match first_refusal {
            Some(refusal) if responses.iter().all(Option::is_none) => Err(refusal.of_batch()),
            _ => Ok(responses),
        }
    }

    fn signer(&self, request: &TokenRequest, now: UnixSeconds) -> Result<Arc<SigningKey>, Refusal> {
        let (token_type, truncated) = (request.token_type(), request.truncated_token_key_id);
        self.keyring.signer(token_type, truncated, now).map_err(Refusal::NoKey)
    }

    fn sign(
        &self,
        caller: &Caller,
        key: Arc<SigningKey>,
        request: TokenRequest,
        charge: Charge,
    ) -> Result<Signature, Unsigned> {
        self.submit(caller, key, Work::Token(request), charge)
    }

    /// The charge stands from the moment of the signature, whether or not the client is still there to read it.
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

impl Signature {
    async fn token(self) -> Result<TokenResponse, Refusal> {
        match self.await.map_err(Refusal::Unsigned)? {
            Done::Token(response) => Ok(response),
            Done::Batch(_) => Err(Refusal::Unsigned(Unsigned::Failed)),
        }
    }
}
