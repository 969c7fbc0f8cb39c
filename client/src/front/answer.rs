//! Answers without a tunnel: one table from errors to HTTP statuses and SOCKS5 replies.

use crate::catalogue::AgentOutcome;
use crate::hop::connection::{ExchangeError, Refused};
use crate::hop::tunnel::OpenError;
use crate::sentence::full_stop;
use crate::wallet::supply::Shortage;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use postern_daemon::http::{head as head_bytes, text};
use postern_proxy::headers::{LAST_HOP, quoted};
use postern_proxy::plain::{AnswerFault, MOST_FIELDS};
use postern_proxy::target::TargetError;

/// Maximum size of a header, in bytes. Cookies make plain requests long.
pub(crate) const HEADER_LIMIT: usize = 32 * 1024;

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

/// The reason why a request gets neither a tunnel nor an answer of its target. Messages are for the user, and never name the
/// target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    Target(#[from] TargetError),
    #[error("{0}")]
    NoTunnel(#[from] OpenError),
    /// A tunnel was opened, and the target's answer to a plain request cannot be passed on.
    #[error("{0}; check the target, or try again. This attempt has spent its token")]
    Upstream(#[from] AnswerFault),
    #[error("{0}")]
    Request(&'static str),
    #[error("the request's head has more than {MOST_FIELDS} fields or {} KiB: send fewer or shorter fields", HEADER_LIMIT / 1024)]
    HeaderTooLarge,
    #[error("UDP is off in this agent ([listen] udp_targets); no token was sent")]
    UdpOff,
    /// A TRACE or OPTIONS that must not be forwarded.
    #[error("{LAST_HOP}. Leave Max-Forwards out to reach the target; no token was spent")]
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
    fn row(&self) -> Row {
        use AgentOutcome::{BadRequest, GatewayFailed, NoToken, TargetFailed, TokensRefused};
        use OpenError as E;
        use Reply::{CommandNotSupported, GeneralFailure, HostUnreachable, NetworkUnreachable};
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
            Self::UdpOff => return (S::FORBIDDEN, "http_request_denied", CommandNotSupported, BadRequest),
            Self::LastHop => return (S::FORBIDDEN, "http_request_denied", GeneralFailure, BadRequest),
            Self::Upstream(fault) => return (S::BAD_GATEWAY, fault.error(), GeneralFailure, TargetFailed),
            Self::NoTunnel(error) => error,
        };
        let away = "destination_unavailable";
        match error {
            E::ForGateway => (S::BAD_REQUEST, malformed, GeneralFailure, BadRequest),
            E::Passed(refused) if refused.is_unavailable() => {
                (refused.status, "", GeneralFailure, GatewayFailed)
            }
            E::Passed(refused) => (refused.status, "", reply_to(refused), TargetFailed),
            E::Outage(outage) | E::FirstHop(outage) if outage.is_unavailable => {
                (S::SERVICE_UNAVAILABLE, away, GeneralFailure, GatewayFailed)
            }
            E::NoUdp(_) => (S::BAD_GATEWAY, "http_request_denied", GeneralFailure, GatewayFailed),
            E::Outage(_) | E::FirstHop(_) => (S::BAD_GATEWAY, away, NetworkUnreachable, GatewayFailed),
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
    let has = |error: &str| {
        let statuses = refused.headers.get_all(PROXY_STATUS).iter().filter_map(|value| value.to_str().ok());
        statuses.flat_map(|text| text.split([';', ','])).any(|parameter| parameter.trim() == error)
    };
    match refused.status {
        StatusCode::FORBIDDEN => Reply::NotAllowed,
        StatusCode::BAD_GATEWAY if has("error=connection_refused") => Reply::ConnectionRefused,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Reply::HostUnreachable,
        _ => Reply::GeneralFailure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::health::Outage;
    use std::time::Duration;

    #[test]
    fn a_gateway_that_serves_no_target_has_failed() {
        for (status, outcome) in [
            (StatusCode::SERVICE_UNAVAILABLE, AgentOutcome::GatewayFailed),
            (StatusCode::TOO_MANY_REQUESTS, AgentOutcome::GatewayFailed),
            (StatusCode::LOOP_DETECTED, AgentOutcome::TargetFailed),
            (StatusCode::BAD_GATEWAY, AgentOutcome::TargetFailed),
        ] {
            let refused = Refused::of(status, http::HeaderMap::new(), Bytes::new());
            assert_eq!(Refusal::from(OpenError::Passed(refused)).outcome(), outcome, "{status}");
        }
    }

    #[test]
    fn each_reason_has_its_status_error_and_reply() {
        let url = || "https://gateway.example".to_owned();
        let exchange = |error| Refusal::from(OpenError::Exchange(error));
        let silent = ExchangeError::Silent { url: url(), limit: Duration::from_secs(1) };
        let outage = |is_unavailable| Outage { is_unavailable, ..Outage::no_answer("it is down") };
        for (refusal, status, error, reply) in [
            (exchange(silent), 504, "http_response_timeout", Reply::HostUnreachable),
            (
                exchange(ExchangeError::Dead { url: url() }),
                502,
                "connection_terminated",
                Reply::GeneralFailure,
            ),
            (OpenError::Outage(outage(true)).into(), 503, "destination_unavailable", Reply::GeneralFailure),
            (
                OpenError::Outage(outage(false)).into(),
                502,
                "destination_unavailable",
                Reply::NetworkUnreachable,
            ),
            (OpenError::Shortage(Shortage::Slow).into(), 503, "proxy_internal_error", Reply::GeneralFailure),
            (Refusal::LastHop, 403, "http_request_denied", Reply::GeneralFailure),
            (Refusal::HeaderTooLarge, 431, "http_request_error", Reply::GeneralFailure),
        ] {
            assert_eq!(refusal.socks_reply(), reply, "{refusal}");
            let response = refusal.into_response();
            assert_eq!(response.status().as_u16(), status);
            let field = response.headers()[PROXY_STATUS].to_str().unwrap();
            assert!(field.contains(&format!("error={error};")), "{field}");
        }
    }

    #[test]
    fn only_the_parameter_of_the_gateway_tells_a_refused_connection() {
        let reply = |value: &'static str| {
            let headers = [(PROXY_STATUS, HeaderValue::from_static(value))].into_iter().collect();
            let refused = Refused::of(StatusCode::BAD_GATEWAY, headers, Bytes::new());
            Refusal::from(OpenError::Passed(refused)).socks_reply()
        };
        assert_eq!(reply("postern; error=connection_refused; details=\"x\""), Reply::ConnectionRefused);
        assert_eq!(
            reply("postern; error=dns_error; details=\"no error=connection_refused\""),
            Reply::HostUnreachable
        );
    }
}
