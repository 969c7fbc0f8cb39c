//! Answers without a tunnel: one table from errors to HTTP statuses and SOCKS5 replies.

use crate::catalogue::AgentOutcome;
use crate::hop::connection::{ExchangeError, Refused};
use crate::hop::health::OutageKind;
use crate::hop::tunnel::OpenError;
use crate::sentence::full_stop;
use crate::wallet::supply::Shortage;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use postern_daemon::http::{head as head_bytes, text};
use postern_proxy::headers::quoted;
use postern_proxy::plain::AnswerFault;
use postern_proxy::target::TargetError;

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// Fields of the gateway's answer that are for the user. The others are about its connection with the agent.
const PASSED_FIELDS: [HeaderName; 3] = [PROXY_STATUS, CONTENT_TYPE, RETRY_AFTER];

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

pub(crate) fn full(bytes: Bytes) -> Body {
    boxed(Full::new(bytes))
}

pub(crate) fn boxed(body: Full<Bytes>) -> Body {
    body.map_err(|never| match never {}).boxed()
}

/// Why a request gets neither a tunnel nor an answer of its target. The sentences are for the user, and never name the target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The request names no target.
    #[error("{0}")]
    Target(#[from] TargetError),
    /// No tunnel could be opened.
    #[error("{0}")]
    NoTunnel(#[from] OpenError),
    /// A tunnel was opened, and the target's answer to a plain request cannot be passed on.
    #[error("{0}; the token is spent: check the target, or try again")]
    Upstream(#[from] AnswerFault),
    /// The request is not one for a proxy.
    #[error("{0}")]
    Request(&'static str),
    /// The request's head is too large.
    #[error("the request's head has more than 1000 fields or 32 KiB: send fewer or shorter fields")]
    HeaderTooLarge,
    /// A TRACE or OPTIONS that must not be forwarded.
    #[error(
        "Max-Forwards is 0, and this proxy has no answer of its own to TRACE and OPTIONS: leave it out to reach the target"
    )]
    LastHop,
}

/// HTTP status, RFC 9209 error type, SOCKS5 reply, the metric's outcome.
type Row = (StatusCode, &'static str, Reply, AgentOutcome);

/// The replies of SOCKS5 (RFC 1928, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

impl Refusal {
    /// Looks up the answer: this is the table.
    fn row(&self) -> Row {
        use AgentOutcome::{BadRequest, GatewayFailed, NoToken, TargetFailed, TokensRefused};
        use OpenError as E;
        use Reply::{GeneralFailure, HostUnreachable, NetworkUnreachable};
        use StatusCode as S;
        let malformed = "http_request_error";
        let error = match self {
            // Not 421, which a proxy must not send (RFC 9110, section 15.5.20).
            Self::Target(_) | Self::Request(_) => {
                return (S::BAD_REQUEST, malformed, GeneralFailure, BadRequest);
            }
            Self::HeaderTooLarge => {
                return (S::REQUEST_HEADER_FIELDS_TOO_LARGE, malformed, GeneralFailure, BadRequest);
            }
            Self::LastHop => return (S::FORBIDDEN, "http_request_denied", GeneralFailure, BadRequest),
            Self::Upstream(fault) => return (S::BAD_GATEWAY, fault.error(), GeneralFailure, TargetFailed),
            Self::NoTunnel(error) => error,
        };
        let away = "destination_unavailable";
        match error {
            E::ForGateway => (S::BAD_REQUEST, malformed, GeneralFailure, BadRequest),
            E::Passed(refused) => match refused.status {
                S::SERVICE_UNAVAILABLE | S::TOO_MANY_REQUESTS => {
                    (refused.status, "", GeneralFailure, GatewayFailed)
                }
                status => (status, "", reply_to(refused), TargetFailed),
            },
            E::Outage(outage) | E::FirstHop(outage) => match outage.kind {
                OutageKind::Unavailable => (S::SERVICE_UNAVAILABLE, away, GeneralFailure, GatewayFailed),
                _ => (S::BAD_GATEWAY, away, NetworkUnreachable, GatewayFailed),
            },
            E::Exchange(error) => match error {
                ExchangeError::Silent { .. } => {
                    (S::GATEWAY_TIMEOUT, "http_response_timeout", HostUnreachable, GatewayFailed)
                }
                ExchangeError::NotHttp { .. } => {
                    (S::BAD_GATEWAY, "http_protocol_error", GeneralFailure, GatewayFailed)
                }
                ExchangeError::Broken { .. } | ExchangeError::Dead { .. } => {
                    (S::BAD_GATEWAY, "connection_terminated", GeneralFailure, GatewayFailed)
                }
            },
            E::TokensRefused { .. } => (S::BAD_GATEWAY, "http_request_denied", GeneralFailure, TokensRefused),
            E::Shortage(Shortage::Gateway(_)) => (S::BAD_GATEWAY, away, NetworkUnreachable, GatewayFailed),
            E::Shortage(_) => (S::SERVICE_UNAVAILABLE, "proxy_internal_error", GeneralFailure, NoToken),
            E::AboveCap(_) => (S::TOO_MANY_REQUESTS, "http_request_denied", GeneralFailure, NoToken),
        }
    }

    pub(crate) fn outcome(&self) -> AgentOutcome {
        self.row().3
    }

    pub(crate) fn socks_reply(&self) -> Reply {
        self.row().2
    }

    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        if let Self::NoTunnel(OpenError::Passed(refused)) = self {
            return passed(refused);
        }
        let (status, error, ..) = self.row();
        let sentence = self.to_string();
        let mut response = text(status, full_stop(&sentence) + "\n");
        // Programs that hide the body of a refused CONNECT often show its header fields.
        let details = quoted(&sentence);
        let value = format!("postern-agent; error={error}; details=\"{details}\"");
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(PROXY_STATUS, value);
        }
        if let Self::NoTunnel(error) = self
            && let Some(seconds) = error.retry_after()
        {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// Formats the answer as the last bytes on its connection.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let sentence = full_stop(&self.to_string()) + "\n";
        let mut head = self.into_response().into_parts().0;
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(sentence.len()));
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        [head_bytes(head.status, &head.headers), sentence.into_bytes()].concat()
    }
}

fn passed(refused: Refused) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(refused.body));
    *response.status_mut() = refused.status;
    for name in PASSED_FIELDS {
        for value in refused.headers.get_all(&name) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    response
}

fn reply_to(refused: &Refused) -> Reply {
    let contains = |error: &str| {
        let statuses = refused.headers.get_all(PROXY_STATUS);
        statuses.iter().any(|value| value.to_str().is_ok_and(|text| text.contains(error)))
    };
    match refused.status {
        StatusCode::FORBIDDEN => Reply::NotAllowed,
        StatusCode::BAD_GATEWAY if contains("error=connection_refused") => Reply::ConnectionRefused,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Reply::HostUnreachable,
        _ => Reply::GeneralFailure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::health::Outage;

    #[test]
    fn a_sentence_that_asks_has_no_full_stop_behind_its_question_mark() {
        let outage = |sentence| Refusal::from(OpenError::Outage(Outage::no_answer(sentence))).to_string();
        assert_eq!(outage("it is down"), "it is down. No token was sent");
        assert_eq!(outage("is it running?"), "is it running? No token was sent");
    }
}
