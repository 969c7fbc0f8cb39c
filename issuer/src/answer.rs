//! The one table of statuses: what the issuer answers, and what each answer advises.

use crate::accounts::{NoAccount, NoToken};
use crate::catalogue::IssuerOutcome;
use crate::config::OPENAPI_PATH;
use crate::issue::{Form, Issued};
use crate::keyring::NoKey;
use crate::quota::Spent;
use crate::signing::Unsigned;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use postern_daemon::farewell;
use postern_daemon::http::text;
use postern_daemon::rates::AboveRate;
use postern_token::{
    AMORTIZED_RESPONSE_MEDIA_TYPE, DIRECTORY_PATH, GENERIC_RESPONSE_MEDIA_TYPE, RESPONSE_MEDIA_TYPE,
    SignError, WireError, serialize_generic_response,
};

/// Why a request is not answered with a token or a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another path.
    NotFound,
    /// Another method; these are allowed.
    Method(&'static str),
    /// By a name, at an issuer that is open to this machine alone.
    ByName,
    /// A request that two servers could read in two ways.
    Ambiguous(&'static str),
    /// The body is longer than any request of its form; a batch has this many tokens at most.
    TooLong(Form, usize),
    /// The body took too long.
    TooSlow,
    /// The body broke off.
    Broken,
    /// Another media type.
    MediaType,
    /// No API key, or a bad one.
    NoAccount(NoAccount),
    /// The body is not a request of its form.
    Malformed(Form, WireError),
    /// A batch asks for more tokens than it may.
    BatchTooLarge {
        /// How many it may ask for.
        limit: usize,
    },
    /// An amortized batch asks for more tokens than the account may have now.
    TooFewLeft {
        /// How many that is.
        left: u64,
    },
    /// Each request of a generic batch is refused for what it is; the first one for this.
    NoneOfBatch(Box<Refusal>),
    /// No key signs it.
    NoKey(NoKey),
    /// The account gets no token.
    NoToken(NoToken),
    /// There is no signature.
    Unsigned(Unsigned),
    /// Too many connections of one source.
    SourceLimit,
    /// Too many TLS handshakes of one source.
    SourceHandshakes,
    /// Too many refused requests of one source. This one was not read.
    SourceRefusals(AboveRate),
    /// Another connection needed the place.
    Displaced,
    /// As many requests are being answered as may be.
    Full,
}

impl Refusal {
    /// The status, and how it is counted.
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
            Self::Unsigned(Unsigned::Refused(SignError::Unavailable(_) | SignError::WrongResult)) => {
                (StatusCode::SERVICE_UNAVAILABLE, KeyUnavailable)
            }
            Self::Unsigned(Unsigned::Refused(_) | Unsigned::Failed) => {
                (StatusCode::INTERNAL_SERVER_ERROR, Failed)
            }
            Self::SourceLimit => (StatusCode::TOO_MANY_REQUESTS, SourceLimit),
            Self::SourceHandshakes => (StatusCode::TOO_MANY_REQUESTS, SourceHandshakes),
            Self::SourceRefusals(_) => (StatusCode::TOO_MANY_REQUESTS, SourceRefusals),
            Self::Displaced => (StatusCode::SERVICE_UNAVAILABLE, Displaced),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, Overloaded),
        }
    }

    /// Whether it counts against the client's source. Limits of the source do not: their answers cost the least there
    /// is, and whoever is limited would be so for ever.
    pub(crate) fn is_of_client(&self) -> bool {
        let is_limit = matches!(self, Self::SourceLimit | Self::SourceHandshakes | Self::SourceRefusals(_));
        // A key that nobody knows is its client's doing, also where there was no turn to ask about it.
        let is_crowded = *self == Self::NoAccount(NoAccount::Crowded);
        (self.status().0.is_client_error() && !is_limit) || is_crowded
    }

    /// The field that goes with the status.
    pub(crate) fn field(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Method(allowed) => Some((ALLOW, HeaderValue::from_static(allowed))),
            _ if self.status().0 == StatusCode::UNAUTHORIZED => {
                Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            _ => self.retry_after().map(|seconds| (RETRY_AFTER, seconds.into())),
        }
    }

    /// In how many seconds the same request may be answered otherwise, where that is known.
    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::NoToken(NoToken::Spent(Spent { retry_after })) => Some(retry_after.as_secs().max(1)),
            Self::NoToken(NoToken::TooFast { retry_after }) => Some(retry_after.as_secs().saturating_add(1)),
            Self::NoAccount(NoAccount::Unreadable | NoAccount::Unanswered | NoAccount::Crowded)
            | Self::NoToken(NoToken::Unrecorded)
            | Self::Unsigned(Unsigned::Refused(SignError::Unavailable(_) | SignError::WrongResult)) => {
                Some(5)
            }
            Self::SourceRefusals(above) => Some(above.seconds),
            Self::NoKey(NoKey::Absent) => Some(30),
            Self::Unsigned(Unsigned::Full | Unsigned::Crowded)
            | Self::SourceLimit
            | Self::SourceHandshakes
            | Self::Displaced
            | Self::Full => Some(1),
            _ => None,
        }
    }

    /// What was wrong, and what to do.
    pub(crate) fn sentence(&self) -> String {
        let text = match self {
            Self::NotFound => {
                return format!(
                    "Nothing is here: this is an issuer of tokens, and no proxy. {DIRECTORY_PATH} lists the keys, and where to \
                     POST token requests; {OPENAPI_PATH} describes every request and answer."
                );
            }
            Self::Method(allowed) => return format!("Only {allowed} is answered here."),
            Self::Ambiguous(why) => {
                return format!("The request {why}. Send it in one way that all servers agree on.");
            }
            Self::Malformed(Form::One, error) => {
                return format!(
                    "This is not a TokenRequest, which is 259 bytes long for type 2, 52 for type 1 and 35 for type 5 (RFC 9578, \
                     sections 5.1 and 6.1): {error}."
                );
            }
            Self::Malformed(_, error) => {
                return format!(
                    "This is not the batch that its Content-Type states (draft-ietf-privacypass-batched-tokens-09): {error}."
                );
            }
            Self::BatchTooLarge { limit } => {
                return format!(
                    "This issuer gives {limit} tokens in one request at most. Ask for the rest in others."
                );
            }
            Self::TooFewLeft { left } => {
                return format!(
                    "This account may have {left} tokens now, fewer than the batch asks for, and an amortized batch is issued \
                     whole or not at all. Ask for fewer, or try again later."
                );
            }
            Self::NoneOfBatch(first) => {
                return format!("None of the batch's tokens can be issued. The first: {}", first.sentence());
            }
            Self::TooLong(Form::One, _) => {
                "The body is too long: no TokenRequest is longer than the 259 bytes of type 2."
            }
            Self::TooLong(_, limit) => {
                return format!(
                    "The body is too long: this issuer gives {limit} tokens in one request at most."
                );
            }
            Self::NoKey(NoKey::Type(token_type)) => {
                return format!(
                    "This issuer issues no tokens of type {token_type}. The key directory lists the types that it does."
                );
            }
            Self::NoToken(NoToken::Spent(spent)) => {
                let seconds = spent.retry_after.as_secs();
                return format!(
                    "This account's quota is spent at this issuer. The next one begins in {seconds} s: try again then, or use another \
                     issuer of the operator's if there is one, or ask the operator for more."
                );
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
                return format!(
                    "The service that knows this issuer's users refuses this API key: {reason}. Ask the issuer's operator."
                );
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
            Self::SourceLimit => {
                "Too many connections are open from this address or network. Close some, or try again later."
            }
            // Never read: there is nothing to answer before the handshake.
            Self::SourceHandshakes => "Too many TLS handshakes from this address or network.",
            Self::SourceRefusals(_) => {
                "Too many requests from this address or network were refused a moment ago. This one was not read. Try \
                 again after the number of seconds in Retry-After, and correct what the refusals complained of."
            }
            Self::Displaced => {
                "The request was not complete when another connection needed its place. Send it again, all at once."
            }
            Self::Full => {
                "The issuer is answering as many requests as it may. Try again after the number of seconds in Retry-After."
            }
            Self::Unsigned(Unsigned::Refused(SignError::Unavailable(_) | SignError::WrongResult)) => {
                "The issuer's private key is in an HSM that does not answer at the moment. Nothing is counted against the quota. \
                 Try again after the number of seconds in Retry-After; if it lasts, report it to the issuer's operator."
            }
            Self::Unsigned(Unsigned::Refused(_) | Unsigned::Failed) => {
                "Signing failed, through no fault of the request. Try again; if it fails again, report it to the \
                 issuer's operator."
            }
        };
        text.to_owned()
    }

    /// As the answer to a generic batch, of which no request was issued: 400 where that is for what the requests are (the
    /// draft's section 6.2), and what it is alone where the account or the issuer is the reason.
    pub(crate) fn of_batch(self) -> Self {
        match self.status() {
            (StatusCode::UNPROCESSABLE_ENTITY, _) => Self::NoneOfBatch(Box::new(self)),
            _ => self,
        }
    }

    /// The answer as bytes, for a connection that no HTTP server has, and how it is counted.
    pub(crate) fn raw(&self) -> (Vec<u8>, IssuerOutcome) {
        let (status, outcome) = self.status();
        let seconds = self.retry_after().unwrap_or(1);
        (farewell::later(status, seconds, &(self.sentence() + "\n")), outcome)
    }

    /// The answer, and how it is counted.
    pub(crate) fn into_response(self) -> (Response<Full<Bytes>>, IssuerOutcome) {
        let (status, outcome) = self.status();
        let mut response = text(status, self.sentence() + "\n");
        if let Some((name, value)) = self.field() {
            response.headers_mut().insert(name, value);
        }
        (response, outcome)
    }
}

/// A document, or 304 to who has it, and how it is counted: `outcome` where it is sent.
pub(crate) fn document(
    response: Response<Full<Bytes>>,
    outcome: IssuerOutcome,
) -> (Response<Full<Bytes>>, IssuerOutcome) {
    let is_known = response.status() == StatusCode::NOT_MODIFIED;
    (response, if is_known { IssuerOutcome::NotModified } else { outcome })
}

/// 200 with what was issued, or 206 with some of a generic batch, and how it is counted.
pub(crate) fn issued(issued: &Issued) -> (Response<Full<Bytes>>, IssuerOutcome) {
    let (media_type, body) = match issued {
        Issued::One(response) => (RESPONSE_MEDIA_TYPE, response.as_bytes().to_vec()),
        Issued::Amortized(response) => (AMORTIZED_RESPONSE_MEDIA_TYPE, response.serialize()),
        Issued::Generic(responses) => (GENERIC_RESPONSE_MEDIA_TYPE, serialize_generic_response(responses)),
    };
    let mut response = Response::new(Full::new(body.into()));
    // Without a parameter: privacypass-ts compares the whole value.
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    match issued {
        Issued::Generic(responses) if responses.iter().any(Option::is_none) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            (response, IssuerOutcome::Partial)
        }
        _ => (response, IssuerOutcome::Issued),
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
}
