//! The table of refusals: the status, outcome and text of each.

use crate::accounts::{NoAccount, NoToken};
use crate::catalogue::IssuerOutcome;
use crate::config::OPENAPI_PATH;
use crate::issue::asked::Form;
use crate::keyring::NoKey;
use crate::quota::Spent;
use crate::signing::Unsigned;
use bytes::Bytes;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use postern_daemon::farewell::last_answer;
use postern_daemon::http::text;
use postern_daemon::places::NoPlace;
use postern_daemon::serve::TurnedAway;
use postern_token::{DIRECTORY_PATH, SignError, WireError};

/// A reason not to answer a request with a token or a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    /// A method other than the allowed ones.
    Method(&'static str),
    /// A request by name to an issuer that is open to this machine alone.
    ByName,
    /// A request that two servers could interpret differently.
    Ambiguous(&'static str),
    /// A body that is longer than any request of its form, in which a batch has this many tokens at most.
    TooLong(Form, usize),
    TooSlow,
    /// A body that broke off.
    Broken,
    MediaType,
    /// No account that may request tokens.
    NoAccount(NoAccount),
    /// A body that is not a request of its form.
    Malformed(Form, WireError),
    /// A batch of more tokens than allowed.
    BatchTooLarge {
        limit: usize,
    },
    /// An amortized batch of more tokens than the account may have now.
    TooFewLeft {
        left: u64,
    },
    /// A generic batch in which each request is invalid; the reason of the first one.
    NoneOfBatch(Box<Refusal>),
    NoKey(NoKey),
    NoToken(NoToken),
    Unsigned(Unsigned),
    /// The connection, or the HTTP/2 stream, is turned away unread.
    TurnedAway(TurnedAway),
}

impl Refusal {
    /// Returns the status, and the outcome for metrics.
    pub(crate) fn status(&self) -> (StatusCode, IssuerOutcome) {
        use IssuerOutcome::{
            AccountRefused, BadMediaType, BadRequest, BadTokenRequest, Displaced, Failed, KeyUnavailable,
            Overloaded, QuotaSpent, RateLimited, SourceHandshakes, SourceLimit, SourceRefusals, Unanswered,
            Unauthorized, Unrecorded,
        };
        match self {
            Self::NotFound => (StatusCode::NOT_FOUND, BadRequest),
            Self::Method(_) => (StatusCode::METHOD_NOT_ALLOWED, BadRequest),
            Self::ByName => (StatusCode::MISDIRECTED_REQUEST, BadRequest),
            Self::Ambiguous(_) | Self::Broken => (StatusCode::BAD_REQUEST, BadRequest),
            Self::TooLong(..) => (StatusCode::PAYLOAD_TOO_LARGE, BadRequest),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, BadRequest),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, BadMediaType),
            Self::NoAccount(NoAccount::Disabled | NoAccount::Expired | NoAccount::NoTier) => {
                (StatusCode::FORBIDDEN, AccountRefused)
            }
            Self::NoAccount(NoAccount::Unreadable) => (StatusCode::SERVICE_UNAVAILABLE, Unrecorded),
            Self::NoAccount(NoAccount::Unanswered | NoAccount::Crowded) => {
                (StatusCode::SERVICE_UNAVAILABLE, Unanswered)
            }
            Self::NoAccount(_) => (StatusCode::UNAUTHORIZED, Unauthorized),
            Self::NoKey(NoKey::Absent) => (StatusCode::SERVICE_UNAVAILABLE, IssuerOutcome::NoKey),
            Self::Malformed(..)
            | Self::NoKey(_)
            | Self::BatchTooLarge { .. }
            | Self::Unsigned(Unsigned::Refused(SignError::OutOfRange | SignError::NotAnElement)) => {
                (StatusCode::UNPROCESSABLE_ENTITY, BadTokenRequest)
            }
            Self::NoneOfBatch(_) => (StatusCode::BAD_REQUEST, BadTokenRequest),
            Self::TooFewLeft { .. } => (StatusCode::TOO_MANY_REQUESTS, QuotaSpent),
            Self::NoToken(NoToken::Spent(_)) => (StatusCode::TOO_MANY_REQUESTS, QuotaSpent),
            Self::NoToken(NoToken::TooFast { .. }) => (StatusCode::TOO_MANY_REQUESTS, RateLimited),
            Self::NoToken(NoToken::Unrecorded) => (StatusCode::SERVICE_UNAVAILABLE, Unrecorded),
            Self::Unsigned(Unsigned::Full | Unsigned::Crowded) => {
                (StatusCode::SERVICE_UNAVAILABLE, Overloaded)
            }
            Self::Unsigned(Unsigned::Refused(
                SignError::Key(_) | SignError::Unavailable(_) | SignError::WrongResult,
            )) => (StatusCode::SERVICE_UNAVAILABLE, KeyUnavailable),
            Self::Unsigned(Unsigned::Refused(_) | Unsigned::Failed) => {
                (StatusCode::INTERNAL_SERVER_ERROR, Failed)
            }
            Self::TurnedAway(reason) => match reason {
                TurnedAway::NoPlace(NoPlace::Full) => (StatusCode::SERVICE_UNAVAILABLE, Overloaded),
                TurnedAway::NoPlace(NoPlace::Source) => (StatusCode::TOO_MANY_REQUESTS, SourceLimit),
                TurnedAway::Displaced => (StatusCode::SERVICE_UNAVAILABLE, Displaced),
                TurnedAway::Handshakes => (StatusCode::TOO_MANY_REQUESTS, SourceHandshakes),
                TurnedAway::Refusals(_) => (StatusCode::TOO_MANY_REQUESTS, SourceRefusals),
                TurnedAway::Certificate | TurnedAway::Malformed => (StatusCode::BAD_REQUEST, BadRequest),
                TurnedAway::HeaderTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, BadRequest),
                TurnedAway::HeaderTimeout => (StatusCode::REQUEST_TIMEOUT, BadRequest),
            },
        }
    }

    /// `true` if the refusal counts against the client's source. Limits of the source do not: their answers are the cheapest, and
    /// a limited source would otherwise stay limited for ever.
    pub(crate) fn is_of_client(&self) -> bool {
        let is_limit = matches!(self, Self::TurnedAway(_));
        // An unknown key is the client's doing, even if there was no turn to ask the authorizer about it.
        let is_crowded = *self == Self::NoAccount(NoAccount::Crowded);
        (self.status().0.is_client_error() && !is_limit) || is_crowded
    }

    /// Returns the header field that goes with the status.
    pub(crate) fn field(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Method(allowed) => Some((ALLOW, HeaderValue::from_static(allowed))),
            _ if self.status().0 == StatusCode::UNAUTHORIZED => {
                Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            _ => self.retry_after().map(|seconds| (RETRY_AFTER, seconds.into())),
        }
    }

    /// Returns the number of seconds after which the same request may be answered differently, if known.
    fn retry_after(&self) -> Option<u64> {
        use IssuerOutcome as Outcome;
        match (self, self.status().1) {
            (Self::NoToken(NoToken::Spent(Spent { retry_after, .. })), _) => {
                Some(retry_after.as_secs().max(1))
            }
            (Self::NoToken(NoToken::TooFast { retry_after }), _) => {
                Some(retry_after.as_secs().saturating_add(1))
            }
            (Self::TurnedAway(TurnedAway::Refusals(above)), _) => Some(above.seconds),
            (_, Outcome::Unrecorded | Outcome::Unanswered | Outcome::KeyUnavailable) => Some(5),
            (_, Outcome::NoKey) => Some(30),
            (
                _,
                Outcome::Overloaded | Outcome::SourceLimit | Outcome::SourceHandshakes | Outcome::Displaced,
            ) => Some(1),
            _ => None,
        }
    }

    /// Returns what was wrong, and what to do.
    pub(crate) fn sentence(&self) -> String {
        let text: &str = match self {
            Self::NotFound => &format!(
                "Nothing is here: this is an issuer of tokens, and no proxy. {DIRECTORY_PATH} lists the keys, and where to \
                     POST token requests; {OPENAPI_PATH} describes every request and answer."
            ),
            Self::Method(allowed) => &format!("Only {allowed} is answered here."),
            Self::Ambiguous(why) => {
                &format!("The request {why}. Send it in one way that all servers agree on.")
            }
            Self::Malformed(Form::One, error) => &format!(
                "This is not a TokenRequest, which is 259 bytes long for type 2, 52 for type 1 and 35 for type 5 (RFC 9578, \
                     sections 5.1 and 6.1): {error}."
            ),
            Self::Malformed(_, error) => &format!(
                "This is not the batch that its Content-Type states (draft-ietf-privacypass-batched-tokens-09): {error}."
            ),
            Self::BatchTooLarge { limit } => &format!(
                "This issuer gives {limit} tokens in one request at most. Ask for the rest in others."
            ),
            Self::TooFewLeft { left } => &format!(
                "This account may have {left} tokens now, fewer than the batch asks for, and an amortized batch is issued \
                     whole or not at all. Ask for fewer, or try again later."
            ),
            Self::NoneOfBatch(first) => {
                &format!("None of the batch's tokens can be issued. The first: {}", first.sentence())
            }
            Self::TooLong(Form::One, _) => {
                "The body is too long: no TokenRequest is longer than the 259 bytes of type 2."
            }
            Self::TooLong(_, limit) => {
                &format!("The body is too long: this issuer gives {limit} tokens in one request at most.")
            }
            Self::NoKey(NoKey::Type(token_type)) => &format!(
                "This issuer issues no tokens of type {token_type}. The key directory lists the types that it does."
            ),
            Self::NoToken(NoToken::Spent(spent)) => {
                let seconds = spent.retry_after.as_secs();
                &format!(
                    "This account's quota is spent. The next one begins in {seconds} s: try again then, or ask the issuer's operator for \
                     more."
                )
            }
            Self::ByName => {
                "This issuer gives tokens to everyone on this machine: address it as localhost or by its IP address."
            }
            Self::TooSlow => "The body came too slowly. Send all of it at once.",
            Self::Broken => {
                "The body broke off or is not framed as HTTP/1.1 demands. Send the request again."
            }
            Self::MediaType => {
                "Send a request with one Content-Type: application/private-token-request, or \
                 application/private-token-amortized-batch-request or application/private-token-generic-batch-request for a batch."
            }
            Self::NoAccount(NoAccount::Missing) => {
                "Tokens are for accounts. Send one field Authorization: Bearer KEY, with the API key that the \
                 issuer's operator gave you."
            }
            Self::NoAccount(NoAccount::Unknown) => {
                "This API key is not one of this issuer's. Check it for missing characters, or ask the issuer's \
                 operator for another."
            }
            Self::NoAccount(NoAccount::Damaged) => {
                "This API key is damaged: characters are missing, too many or wrong. Copy it again, all 67 characters."
            }
            Self::NoAccount(NoAccount::Retired) => {
                "This API key is retired: its account has a newer one. Use that, or ask the issuer's operator for another."
            }
            Self::NoAccount(NoAccount::Disabled) => "This account is disabled. Ask the issuer's operator.",
            Self::NoAccount(NoAccount::Expired) => {
                "This account has expired. Ask the issuer's operator to extend it."
            }
            Self::NoAccount(NoAccount::StrangeCertificate) => {
                "The client certificate of this connection belongs to no account. Ask the issuer's operator to add it to yours, \
                 or send one field Authorization: Bearer KEY with the account's API key."
            }
            Self::NoAccount(NoAccount::Contradiction) => {
                "The client certificate of this connection and the API key belong to different accounts. Send one of the two, or \
                 both of the same account."
            }
            Self::NoAccount(NoAccount::Denied(reason)) => {
                let reason = reason.as_deref().unwrap_or("it gives no reason");
                &format!(
                    "The service that knows this issuer's users refuses this API key: {reason}. Ask the issuer's operator."
                )
            }
            Self::NoAccount(NoAccount::Unanswered) => {
                "The issuer cannot find out at the moment whose API key this is. Nothing is counted against a quota. Try again \
                 after the number of seconds in Retry-After; if it lasts, report it to the issuer's operator."
            }
            Self::NoAccount(NoAccount::Crowded) => {
                "Too many requests come with API keys that the issuer does not know yet, so it could not ask whose this one is. \
                 Nothing is counted against a quota. Try again after the number of seconds in Retry-After."
            }
            Self::NoAccount(NoAccount::NoTier) => {
                "This account has no terms at the moment: its tier is not in the issuer's configuration. Ask the issuer's operator."
            }
            Self::NoAccount(NoAccount::Unreadable) => {
                "The issuer cannot read its accounts at the moment. Nothing is counted against the quota. Try again after the \
                 number of seconds in Retry-After; if it lasts, report it to the issuer's operator."
            }
            Self::NoToken(NoToken::TooFast { .. }) => {
                "This account requests tokens faster than it may. Try again after the number of seconds in Retry-After, and \
                 spread requests out, or ask the issuer's operator for a higher rate."
            }
            Self::NoKey(NoKey::Absent) => {
                "This issuer has no token key in use at the moment. Nothing is counted against a quota. Use another issuer of the \
                 operator's if there is one, or try again after the number of seconds in Retry-After; if it lasts, report it to the \
                 issuer's operator."
            }
            Self::NoKey(NoKey::Unknown) => {
                "No key of this issuer ends in the truncated_token_key_id at byte 2 (the last byte of the SHA-256 of \
                 the published key). Fetch the key directory again."
            }
            Self::NoKey(NoKey::Retired) => {
                "The key that the request names issues no more: it is retired. Fetch the key directory again and use \
                 the first key whose not-before has passed."
            }
            Self::NoKey(NoKey::NotYet) => {
                "The key that the request names is not in use yet. Use the first key of the directory whose \
                 not-before has passed, and check this machine's clock."
            }
            Self::Unsigned(Unsigned::Refused(SignError::NotAnElement)) => {
                "A blinded element is not an element of the token type's group, or is its identity. Blind it as RFC 9497, \
                 section 3.3.2 says."
            }
            Self::Unsigned(Unsigned::Refused(SignError::OutOfRange)) => {
                "The blinded message is not a number from 2 to n - 2, where n is the modulus of the key that the request \
                 names. Blind it under that key (RFC 9474, section 4.2)."
            }
            Self::NoToken(NoToken::Unrecorded) => {
                "The issuer cannot record on its disk that this account gets another token, so it signs none. Nothing is \
                 counted against the quota. Try again after the number of seconds in Retry-After; if it lasts, report it to \
                 the issuer's operator."
            }
            Self::Unsigned(Unsigned::Full) => {
                "All signers are busy. Try again after the number of seconds in Retry-After."
            }
            Self::Unsigned(Unsigned::Crowded) => {
                "All signers are busy, and this account has more requests waiting than any other. Accounts are served in \
                 turn: send fewer requests at once, and try this one again after the number of seconds in Retry-After."
            }
            Self::TurnedAway(TurnedAway::NoPlace(NoPlace::Source)) => {
                "Too many connections are open from this address or network. Close some, or try again later."
            }
            // The next three are never sent: no request has arrived that could be answered.
            Self::TurnedAway(TurnedAway::Handshakes) => {
                "Too many TLS handshakes from this address or network."
            }
            Self::TurnedAway(TurnedAway::Certificate) => "The handshake shows no valid client certificate.",
            Self::TurnedAway(TurnedAway::HeaderTimeout) => "The request's header came too slowly.",
            Self::TurnedAway(TurnedAway::Malformed) => "This is no request of HTTP/1.1.",
            Self::TurnedAway(TurnedAway::HeaderTooLarge) => "The request's header is longer than 16 KiB.",
            Self::TurnedAway(TurnedAway::Refusals(_)) => {
                "Too many requests from this address or network were refused a moment ago. This one was not read. Try \
                 again after the number of seconds in Retry-After, and correct what the refusals complained of."
            }
            Self::TurnedAway(TurnedAway::Displaced) => {
                "The request was not complete when another connection needed its place. Send it again, all at once."
            }
            Self::TurnedAway(TurnedAway::NoPlace(NoPlace::Full)) => {
                "The issuer is answering as many requests as it may. Try again after the number of seconds in Retry-After."
            }
            Self::Unsigned(Unsigned::Refused(
                SignError::Key(_) | SignError::Unavailable(_) | SignError::WrongResult,
            )) => {
                "The issuer's private key cannot be used at the moment. Nothing is counted against the quota. \
                 Try again after the number of seconds in Retry-After; if it lasts, report it to the issuer's operator."
            }
            Self::Unsigned(Unsigned::Refused(_) | Unsigned::Failed) => {
                "Signing failed, through no fault of the request. Try again; if it fails again, report it to the \
                 issuer's operator."
            }
        };
        text.to_owned()
    }

    /// Converts the refusal to the answer to a generic batch of which no request was issued: 400 if the requests themselves are
    /// the reason (the draft's section 6.2), unchanged if the account or the issuer is.
    pub(crate) fn of_batch(self) -> Self {
        match self.status() {
            (StatusCode::UNPROCESSABLE_ENTITY, _) => Self::NoneOfBatch(Box::new(self)),
            _ => self,
        }
    }

    /// Returns the answer as bytes, for a connection without an HTTP server.
    pub(crate) fn raw(&self) -> Vec<u8> {
        last_answer(self.status().0, self.retry_after(), &(self.sentence() + "\n"))
    }

    /// Returns the answer and its outcome.
    pub(crate) fn into_response(self) -> (Response<Full<Bytes>>, IssuerOutcome) {
        let (status, outcome) = self.status();
        let mut response = text(status, self.sentence() + "\n");
        if let Some((name, value)) = self.field() {
            response.headers_mut().insert(name, value);
        }
        (response, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_nobody_knows_counts_against_its_source_also_without_a_turn_to_ask_about_it() {
        for (refusal, counts) in [
            (NoAccount::Unknown, true),
            (NoAccount::Denied(None), true),
            (NoAccount::Crowded, true),
            (NoAccount::Unanswered, false),
            (NoAccount::Unreadable, false),
        ] {
            assert_eq!(Refusal::NoAccount(refusal.clone()).is_of_client(), counts, "{refusal:?}");
        }
    }
    #[test]
    fn a_fault_of_the_machine_is_not_the_requests() {
        let fault = postern_token::SigningKey::from_pkcs8(b"").unwrap_err(); // of the kind that a failed signature has
        let (response, outcome) = Refusal::Unsigned(Unsigned::Refused(fault)).into_response();
        assert_eq!(
            (response.status(), outcome),
            (StatusCode::SERVICE_UNAVAILABLE, IssuerOutcome::KeyUnavailable)
        );
        assert!(response.headers().contains_key(RETRY_AFTER));
    }
}
