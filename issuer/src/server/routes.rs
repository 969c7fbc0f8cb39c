//! Routes requests to the key directory, the API description and the issuance of tokens.

use crate::answer::Refusal;
use crate::catalogue::{IssuerOutcome, TokenTypeAsked};
use crate::config::OPENAPI_PATH;
use crate::directory::Document;
use crate::issue::{BoxError, Client, Issuance, Received};
use crate::keyring::NoKey;
use crate::openapi;
use bytes::Bytes;
use http::header::HOST;
use http::{Method, Request, Response, Version, request};
use http_body_util::Full;
use hyper::body::Body;
use postern_daemon::exchange::{Answering, Exchange};
use postern_daemon::http::is_for_this_machine;
use postern_daemon::rates::Rates;
use postern_daemon::serve::TurnedAway;
use postern_daemon::sources::Source;
use postern_token::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, UnixSeconds};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) issuance: Issuance,
    pub(crate) rates: Rates,
}

impl Routes {
    /// Refuses a request unread if too many requests of its source were refused before.
    fn may_ask(&self, source: Option<Source>) -> Result<(), Refusal> {
        let may_ask = self.rates.request(source, &self.issuance.settings.load().limits.source);
        may_ask.map_err(|above| Refusal::TurnedAway(TurnedAway::Refusals(above)))
    }

    /// Counts a refused request that its client caused.
    pub(super) fn refused(&self, source: Option<Source>) {
        self.rates.refused(source, &self.issuance.settings.load().limits.source, 1);
    }

    /// Returns the response to a request that is refused unread.
    pub(super) fn turned_away(&self, refusal: Refusal, source: Option<Source>) -> Response<Full<Bytes>> {
        if refusal.is_of_client() {
            self.refused(source);
        }
        let (response, outcome) = refusal.into_response();
        self.issuance.recorder.answered(None, outcome, Duration::ZERO);
        response
    }

    /// Answers a request on the connection or stream of this exchange.
    pub(super) async fn answer<B>(
        &self,
        request: Request<B>,
        client: Client,
        exchange: &Exchange,
    ) -> (Answering, Response<Full<Bytes>>)
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let began = Instant::now();
        let (head, body) = request.into_parts();
        let is_for_token = self.issuance.settings.load().takes_requests_at(head.uri.path());
        let is_posted = is_for_token && head.method == Method::POST;
        // Until its body has arrived, a request can be displaced, like one whose header has not.
        let (may_ask, may_pass) = (self.may_ask(client.source), self.may_pass(&head));
        let received = match is_posted && may_ask.is_ok() {
            true => self.issuance.receive(&head.headers, client, body, may_pass.is_ok()).await,
            false => Ok(Received::default()),
        };
        let answering = exchange.begin().await;
        let mut asked = TokenTypeAsked::Unread;
        let answered = match may_ask.and(may_pass) {
            Ok(()) => self.route(&head, client, received, &mut asked).await,
            Err(refusal) => Err(refusal),
        };
        if answered.as_ref().is_err_and(Refusal::is_of_client) {
            self.refused(client.source);
        }
        let (response, outcome) = answered.unwrap_or_else(Refusal::into_response);
        self.issuance.recorder.answered(is_for_token.then_some(asked), outcome, began.elapsed());
        (answering, response)
    }

    /// Refuses a request by its header.
    fn may_pass(&self, head: &request::Parts) -> Result<(), Refusal> {
        refuse_ambiguous(head)?;
        if head.method == Method::CONNECT {
            return Err(Refusal::NotFound); // its sentence explains that this is no proxy
        }
        // Without accounts anyone who reaches the issuer gets tokens, so it listens on loopback.
        if self.issuance.accounts.is_open() && !is_for_this_machine(&head.headers) {
            return Err(Refusal::ByName);
        }
        Ok(())
    }

    async fn route(
        &self,
        head: &request::Parts,
        client: Client,
        received: Result<Received, Refusal>,
        asked: &mut TokenTypeAsked,
    ) -> Result<(Response<Full<Bytes>>, IssuerOutcome), Refusal> {
        match (head.uri.path(), &head.method) {
            (DIRECTORY_PATH, &Method::GET | &Method::HEAD) => self.directory(head),
            (OPENAPI_PATH, &Method::GET | &Method::HEAD) => Ok(self.description(head)),
            (DIRECTORY_PATH | OPENAPI_PATH, _) => Err(Refusal::Method("GET, HEAD")),
            (path, &Method::POST) if self.issuance.settings.load().takes_requests_at(path) => {
                Ok(self.issuance.answer(&head.headers, client, received?, asked).await?.into_response())
            }
            (path, _) if self.issuance.settings.load().takes_requests_at(path) => {
                Err(Refusal::Method("POST"))
            }
            _ => Err(Refusal::NotFound),
        }
    }

    /// Returns the key directory (RFC 9578, section 4), or 304 to a client that has it.
    fn directory(&self, head: &request::Parts) -> Result<(Response<Full<Bytes>>, IssuerOutcome), Refusal> {
        let document = self.issuance.keyring.document();
        if document.is_empty {
            return Err(Refusal::NoKey(NoKey::Absent)); // with an empty directory a gateway would drop the keys that it has
        }
        let max_age = document.max_age(self.issuance.settings.load().directory_max_age, UnixSeconds::now());
        let Document { representation, .. } = &*document;
        Ok(representation.answer(&head.headers, DIRECTORY_MEDIA_TYPE, max_age, IssuerOutcome::Directory))
    }

    /// Returns the API description, or 304 to a client that has it.
    fn description(&self, head: &request::Parts) -> (Response<Full<Bytes>>, IssuerOutcome) {
        let document = &self.issuance.settings.load().description;
        document.answer(&head.headers, openapi::MEDIA_TYPE, openapi::MAX_AGE, IssuerOutcome::Description)
    }
}

/// Refuses what a proxy in front could interpret differently (RFC 9112, section 3.2). hyper refuses the rest, and closes
/// the connection after a request with both Transfer-Encoding and Content-Length (section 6.3).
fn refuse_ambiguous(head: &request::Parts) -> Result<(), Refusal> {
    let hosts = head.headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
        return Err(Refusal::Ambiguous("does not have exactly one Host field"));
    }
    Ok(())
}
