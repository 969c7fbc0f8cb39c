//! What is served: the key directory, and tokens.

use super::Client;
use crate::answer::{self, Refusal};
use crate::catalogue::{IssuerOutcome, TokenTypeAsked};
use crate::config::OPENAPI_PATH;
use crate::issue::{BoxError, Issuance};
use crate::keyring::{Keyring, NoKey};
use crate::openapi;
use crate::recorder::Recorder;
use crate::reload::Settings;
use bytes::Bytes;
use http::header::HOST;
use http::{Method, Request, Response, Version, request};
use http_body_util::Full;
use hyper::body::Body;
use postern_daemon::exchange::{Answering, Exchange};
use postern_daemon::http::is_for_this_machine;
use postern_daemon::rates::Rates;
use postern_daemon::sources::Source;
use postern_token::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, UnixSeconds};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is served.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) issuance: Issuance,
    pub(crate) settings: Settings,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) rates: Rates,
}

impl Routes {
    /// Whether a request of this source is read, or refused because too many before it were.
    pub(super) fn may_ask(&self, source: Option<Source>) -> Result<(), Refusal> {
        self.rates.request(source, &self.settings.load().limits.source).map_err(Refusal::SourceRefusals)
    }

    /// Counts a refused request that its client caused.
    pub(super) fn refused(&self, source: Option<Source>) {
        self.rates.refused(source, &self.settings.load().limits.source, 1);
    }

    /// The answer to a refusal of which no more of the request was read.
    pub(super) fn turned_away(&self, refusal: Refusal, source: Option<Source>) -> Response<Full<Bytes>> {
        if refusal.is_of_client() {
            self.refused(source);
        }
        let (response, outcome) = refusal.into_response();
        self.recorder.answered(None, outcome, Duration::ZERO);
        response
    }

    /// Answers a request of the connection, or of the stream, of this exchange.
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
        let is_for_token = self.settings.load().takes_requests_at(head.uri.path());
        let is_posted = is_for_token && head.method == Method::POST;
        // Until its body is there, a request gives way to another connection as one does whose header is not.
        let may_ask = self.may_ask(client.source);
        let is_read = is_posted && may_ask.is_ok();
        let body =
            if is_read { self.issuance.read(&head.headers, client, body).await } else { Ok(Bytes::new()) };
        let answering = exchange.begin().await;
        let mut asked = TokenTypeAsked::Unread;
        let answered = match may_ask {
            Ok(()) => self.route(&head, client, body, &mut asked).await,
            Err(refusal) => Err(refusal),
        };
        if answered.as_ref().is_err_and(Refusal::is_of_client) {
            self.refused(client.source);
        }
        let (response, outcome) = answered.unwrap_or_else(Refusal::into_response);
        self.recorder.answered(is_for_token.then_some(asked), outcome, began.elapsed());
        (answering, response)
    }

    async fn route(
        &self,
        head: &request::Parts,
        client: Client,
        body: Result<Bytes, Refusal>,
        asked: &mut TokenTypeAsked,
    ) -> Result<(Response<Full<Bytes>>, IssuerOutcome), Refusal> {
        refuse_ambiguous(head)?;
        if head.method == Method::CONNECT {
            return Err(Refusal::NotFound); // whose sentence says that this is no proxy
        }
        // Without accounts anyone who reaches the issuer gets tokens, so it listens on loopback.
        if self.issuance.accounts.is_open() && !is_for_this_machine(&head.headers) {
            return Err(Refusal::ByName);
        }
        match (head.uri.path(), &head.method) {
            (DIRECTORY_PATH, &Method::GET | &Method::HEAD) => self.directory(head),
            (OPENAPI_PATH, &Method::GET | &Method::HEAD) => Ok(self.description(head)),
            (DIRECTORY_PATH | OPENAPI_PATH, _) => Err(Refusal::Method("GET, HEAD")),
            (path, &Method::POST) if self.settings.load().takes_requests_at(path) => {
                Ok(answer::issued(&self.issuance.answer(&head.headers, client, body?, asked).await?))
            }
            (path, _) if self.settings.load().takes_requests_at(path) => Err(Refusal::Method("POST")),
            _ => Err(Refusal::NotFound),
        }
    }

    /// The key directory (RFC 9578, section 4), or 304 to who has it.
    fn directory(&self, head: &request::Parts) -> Result<(Response<Full<Bytes>>, IssuerOutcome), Refusal> {
        let document = self.keyring.document();
        if document.is_empty {
            return Err(Refusal::NoKey(NoKey::Absent)); // a gateway would forget the keys that it knows
        }
        let max_age = document.max_age(self.settings.load().directory_max_age, UnixSeconds::now());
        let response = document.representation.answer(&head.headers, DIRECTORY_MEDIA_TYPE, max_age);
        Ok(answer::document(response, IssuerOutcome::Directory))
    }

    /// The API description, or 304 to who has it.
    fn description(&self, head: &request::Parts) -> (Response<Full<Bytes>>, IssuerOutcome) {
        let response =
            self.settings.load().description.answer(&head.headers, openapi::MEDIA_TYPE, openapi::MAX_AGE);
        answer::document(response, IssuerOutcome::Description)
    }
}

/// What a proxy in front could read otherwise than we do (RFC 9112, section 3.2). hyper refuses the rest, and closes
/// the connection after a request with both Transfer-Encoding and Content-Length (section 6.3).
fn refuse_ambiguous(head: &request::Parts) -> Result<(), Refusal> {
    let hosts = head.headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
        return Err(Refusal::Ambiguous("does not have exactly one Host field"));
    }
    Ok(())
}
