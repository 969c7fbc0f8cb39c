//! Every refusal and its answer: the only place that selects status codes.
//!
//! A refusal is a value that the detecting stage returns to its callers. This file selects the answer to the client (status,
//! Proxy-Status of RFC 9209, a body with the next step) and the outcome that the operator's metrics count.

use crate::config::Lever;
use crate::observe::labels::Outcome;
use crate::request::egress::PolicyRefusal;
use http::StatusCode;
use postern_daemon::rates::AboveRate;
use postern_proxy::headers::{HostFault, LAST_HOP};
use postern_proxy::plain::AnswerFault;
use postern_proxy::target::TargetError;
use postern_spend::Unknown;
use postern_token::header::AuthorizationError;
use postern_token::{KeyRefusal, TokenType};

/// Default Retry-After of a 503 or 429, in seconds.
const RETRY_SECONDS: u64 = 1;
/// Weight of a forged token of type 1, which costs 1.1 ms. Any other refusal costs less than 0.1 ms.
const DEAR: u32 = 20;

/// Reason to refuse a request. Its sentence describes the fault, without any byte of the request.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("no token was presented")]
    NoToken,
    #[error("Proxy-Authorization has no PrivateToken credentials")]
    OtherScheme,
    #[error("{0}")]
    MalformedToken(AuthorizationError),
    #[error("tokens of type {0} are not accepted here; the challenge has the types that are")]
    TokenType(TokenType),
    #[error("{0}")]
    Key(KeyRefusal),
    #[error("the token's signature is not valid")]
    BadSignature(TokenType),
    /// Too many tokens that are expensive to verify are waiting. This token was not verified.
    #[error("too many tokens of this type wait to be verified")]
    Crowded,
    #[error("token already spent")]
    AlreadySpent,
    #[error("the token is for another challenge, or for records that the gateway has lost")]
    Void,
    /// The store returned no verdict.
    #[error("{0}")]
    StoreUnknown(Unknown),
    /// The store can return no verdicts now: the request was refused before its token was read.
    #[error("{0}")]
    StoreDown(Unknown),
    #[error("no issuer key is in use")]
    NoKeys,
    #[error("{0}")]
    Policy(PolicyRefusal),
    #[error("the target's name has no address")]
    Unresolved,
    #[error("the target's name could not be resolved in time")]
    ResolveTimeout,
    #[error("the target refused the connection")]
    ConnectionRefused,
    #[error("the target cannot be reached")]
    Unreachable,
    #[error("this gateway has no address to reach the target from")]
    NoSource,
    #[error("the target did not answer in time")]
    DialTimeout,
    /// The next hop of all tunnels is down: the request was refused before its token was read.
    #[error("the proxy that this gateway reaches the target through cannot be used now")]
    NextHopAway,
    /// It serves, but none of its URLs that carry UDP does, so no client has to leave this gateway: the token was not read either.
    #[error("no proxy that carries UDP to the target can be used now")]
    NextHopUdpAway,
    /// The next hop of all tunnels leads in a circle, or a tunnel to this target came back recently: the request was refused
    /// before its token was read.
    #[error("the request would come back to this gateway: its next hops lead in a circle")]
    Circle,
    #[error("the proxy that this gateway reaches the target through cannot be used now")]
    NextHop,
    #[error("the proxy that this gateway reaches the target through does not open this tunnel")]
    NextHopRefused,
    /// The request has passed this gateway before, or leads back to a gateway that it has passed.
    #[error("the request came back to a gateway that it had passed")]
    Loop,
    /// The target's answer to a plain `http://` request cannot be forwarded.
    #[error("{0}")]
    Upstream(#[from] AnswerFault),
    #[error("the target did not answer the request in time")]
    UpstreamTimeout,
    #[error("the request's body is not valid or broke off")]
    BodyBroken,
    #[error("the request's body did not arrive in time")]
    BodyTimeout,
    #[error("{0}")]
    Target(TargetError),
    #[error("more than one Proxy-Authorization field presents a token")]
    SeveralAuthorizations,
    #[error("{0}")]
    Host(HostFault),
    #[error("the Host field differs from :authority (RFC 9113, section 8.3.1)")]
    OtherHost,
    #[error("a CONNECT request has no body")]
    ConnectBody,
    #[error("a request for UDP has no Content-Length, Content-Type or Transfer-Encoding")]
    CapsuleContent,
    #[error("the request's body has another transfer coding than chunked")]
    Coding,
    /// A TRACE or OPTIONS whose Max-Forwards ends at this proxy.
    #[error("{LAST_HOP}")]
    LastHop,
    #[error("this is a forward proxy, not a web server")]
    NotProxied,
    #[error("only http:// URLs are forwarded; use CONNECT for anything else")]
    Scheme,
    #[error("this proxy speaks no protocol but connect-udp on a stream")]
    Protocol,
    #[error("the path names no target for UDP")]
    Template,
    #[error("the next proxy on the way to the target carries no UDP")]
    NextHopUdp,
    /// Malformed HTTP, or no PROXY header from a load balancer.
    #[error(
        "the request is not valid HTTP/1.1; in a URL, \", <, >, ` and what is not ASCII are written with a percent sign"
    )]
    Malformed,
    #[error("the request's header is too large")]
    HeaderTooLarge,
    /// The header took too long, or the PROXY header of a load balancer did.
    #[error("the request's header did not arrive in time")]
    HeaderTimeout,
    #[error("too many connections are open")]
    TooMany,
    #[error("too many connections are open from this address or network")]
    SourceLimit,
    #[error("too many TLS handshakes from this address or network")]
    SourceHandshakes,
    #[error("the client showed no certificate of tls.client_ca that holds now")]
    ClientCertificate,
    /// Too many refused requests from one source. This request was not read.
    #[error("too many requests from this address or network were refused a moment ago")]
    SourceRefusals(AboveRate),
    #[error("the request was not complete when another connection needed its place")]
    Displaced,
}

/// Fields in which a client learns the challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedIn {
    /// 407 with Proxy-Authenticate.
    Proxy,
    /// 407 with both fields: the client asks for UDP, and may see an origin in its proxy.
    Both,
    /// 401 with both fields: the client asked as it would ask an origin.
    BothAsOrigin,
}

pub(crate) struct Verdict {
    pub(crate) status: StatusCode,
    /// Error type (RFC 9209, section 2.3).
    pub(crate) error: &'static str,
    /// Retry-After, in seconds.
    pub(crate) retry_after: Option<u64>,
    /// Description of the fault; also the `details` of Proxy-Status.
    pub(crate) details: String,
    pub(crate) advice: &'static str,
}

impl Refusal {
    pub(crate) fn verdict(&self, asked_in: AskedIn) -> Verdict {
        let (status, _, error, advice) = self.row();
        let status = match asked_in {
            AskedIn::BothAsOrigin if self.needs_challenge() => StatusCode::UNAUTHORIZED,
            _ => status,
        };
        let retry_after = match self {
            Self::SourceRefusals(above) => Some(above.seconds),
            _ => matches!(status.as_u16(), 429 | 503).then_some(RETRY_SECONDS),
        };
        Verdict { status, error, retry_after, details: self.to_string(), advice }
    }

    /// Returns `true` if the refusal counts against the client's source. Refusals by limits do not count: their answers cost
    /// the least, and a limited client would stay limited forever.
    pub(crate) fn is_of_client(&self) -> bool {
        let status = self.row().0;
        matches!(self, Self::Protocol) || status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS
    }

    /// Returns the weight of the refusal against the client's source, by the CPU time that it cost.
    pub(crate) fn cost(&self) -> u32 {
        match self {
            Self::BadSignature(TokenType::VoprfP384) => DEAR,
            _ => 1,
        }
    }

    pub(crate) fn needs_challenge(&self) -> bool {
        self.row().0 == StatusCode::PROXY_AUTHENTICATION_REQUIRED
    }

    pub(crate) fn outcome(&self) -> Outcome {
        self.row().1
    }

    /// Returns the refusal's row of the table: status, outcome, error type of Proxy-Status, advice.
    fn row(&self) -> (StatusCode, Outcome, &'static str, &'static str) {
        use Outcome as O;
        use StatusCode as S;
        const DENIED: &str = "http_request_denied";
        const MALFORMED: &str = "http_request_error";
        const PRESENT: &str = "Get a token for the challenge in Proxy-Authenticate from its issuer and send it as \
                               Proxy-Authorization: PrivateToken token=\"...\".";
        const FRESH: &str =
            "Get a fresh token for the challenge in Proxy-Authenticate; this one will never be accepted.";
        // Clients with a token of their own and users of an agent, which pays by itself, read the same words.
        const RETRY: &str = "Try again later. This attempt may have spent its token.";
        const UNREAD: &str = "Try again later. No token was read, so none is lost.";
        const SLOWER: &str = "Try again after the number of seconds in Retry-After. Requests with a token that the \
                              gateway accepts do not count. This request was not read, so no token is lost.";
        const TARGET: &str = "Check the target, or try again. This attempt has spent its token.";
        const LOOP: &str =
            "Report it to the gateway's operator: the next hops of the gateways lead in a circle.";
        const BODY: &str = "Try again, and send the whole body. This attempt has spent its token.";
        const UDP: &str = "Send connect-udp for /.well-known/masque/udp/{target_host}/{target_port}/.";
        const NO_UDP: &str = "Reach the target over TCP.";
        const REQUEST: &str = "Send CONNECT host:port HTTP/1.1, or a request with an absolute http:// URL.";
        const NO_FORWARDS: &str = "Leave Max-Forwards out to reach the target; no token was spent.";
        const FEWER: &str = "Send fewer or shorter header fields.";
        const CLOSE: &str = "Close connections without a tunnel, or try again later; no token was spent.";
        const LATER: &str = "Try again later; no token was spent.";
        const AT_ONCE: &str = "Try again, and send the whole request at once; no token was spent.";
        const HEADER_AT_ONCE: &str = "Send the whole header at once.";
        match self {
            Self::NoToken => (S::PROXY_AUTHENTICATION_REQUIRED, O::NoToken, DENIED, PRESENT),
            Self::OtherScheme => (S::PROXY_AUTHENTICATION_REQUIRED, O::OtherScheme, DENIED, PRESENT),
            Self::MalformedToken(_) => (S::PROXY_AUTHENTICATION_REQUIRED, O::MalformedToken, DENIED, PRESENT),
            Self::TokenType(_) => (S::PROXY_AUTHENTICATION_REQUIRED, O::MalformedToken, DENIED, FRESH),
            Self::Key(_) => (S::PROXY_AUTHENTICATION_REQUIRED, O::UnknownKey, DENIED, FRESH),
            Self::BadSignature(_) => (S::PROXY_AUTHENTICATION_REQUIRED, O::BadSignature, DENIED, FRESH),
            Self::AlreadySpent => (S::PROXY_AUTHENTICATION_REQUIRED, O::AlreadySpent, DENIED, FRESH),
            Self::Void => (S::PROXY_AUTHENTICATION_REQUIRED, O::Void, DENIED, FRESH),
            // The epoch's end is the token's fault, not the store's: a new token helps, waiting does not.
            Self::StoreUnknown(Unknown::EpochRetired) => {
                (S::PROXY_AUTHENTICATION_REQUIRED, O::UnknownKey, DENIED, FRESH)
            }
            Self::StoreUnknown(_) => (S::SERVICE_UNAVAILABLE, O::StoreUnknown, "proxy_internal_error", RETRY),
            Self::StoreDown(_) => (S::SERVICE_UNAVAILABLE, O::StoreDown, "proxy_internal_error", UNREAD),
            Self::Crowded => (S::SERVICE_UNAVAILABLE, O::Crowded, DENIED, RETRY),
            Self::NoKeys => (S::SERVICE_UNAVAILABLE, O::NoKeys, "proxy_internal_error", UNREAD),
            Self::Policy(PolicyRefusal::Port(lever) | PolicyRefusal::Target(lever)) => {
                (S::FORBIDDEN, O::PolicyRefused, DENIED, more(*lever))
            }
            Self::Policy(PolicyRefusal::Address(lever) | PolicyRefusal::Network(lever)) => {
                (S::FORBIDDEN, O::PolicyRefused, "destination_ip_prohibited", more(*lever))
            }
            Self::Unresolved => (S::BAD_GATEWAY, O::DialUnresolved, "dns_error", TARGET),
            Self::ResolveTimeout => (S::GATEWAY_TIMEOUT, O::DialTimeout, "dns_timeout", TARGET),
            Self::ConnectionRefused => (S::BAD_GATEWAY, O::DialRefused, "connection_refused", TARGET),
            Self::Unreachable => (S::BAD_GATEWAY, O::DialRefused, "destination_ip_unroutable", TARGET),
            Self::NoSource => (S::BAD_GATEWAY, O::DialRefused, "destination_ip_unroutable", TARGET),
            Self::DialTimeout => (S::GATEWAY_TIMEOUT, O::DialTimeout, "connection_timeout", TARGET),
            Self::NextHopAway => (S::SERVICE_UNAVAILABLE, O::NextHopDown, "destination_unavailable", UNREAD),
            Self::NextHopUdpAway => (S::BAD_GATEWAY, O::NextHopDown, "destination_unavailable", UNREAD),
            Self::Circle => (S::LOOP_DETECTED, O::NextHopDown, "proxy_loop_detected", UNREAD),
            Self::NextHop => (S::BAD_GATEWAY, O::DialRefused, "destination_unavailable", RETRY),
            Self::NextHopRefused => (S::FORBIDDEN, O::PolicyRefused, DENIED, TARGET),
            Self::Loop => (S::LOOP_DETECTED, O::Looped, "proxy_loop_detected", LOOP),
            Self::Upstream(fault) => (S::BAD_GATEWAY, O::UpstreamBroken, fault.error(), TARGET),
            Self::UpstreamTimeout => (S::GATEWAY_TIMEOUT, O::UpstreamBroken, "http_response_timeout", TARGET),
            Self::BodyBroken => (S::BAD_REQUEST, O::BodyFailed, MALFORMED, BODY),
            Self::BodyTimeout => (S::REQUEST_TIMEOUT, O::BodyFailed, MALFORMED, BODY),
            Self::NextHopUdp => (S::FORBIDDEN, O::PolicyRefused, DENIED, NO_UDP),
            Self::Protocol => (S::NOT_IMPLEMENTED, O::BadRequest, MALFORMED, UDP),
            Self::Template => (S::BAD_REQUEST, O::BadRequest, MALFORMED, UDP),
            Self::Target(_)
            | Self::SeveralAuthorizations
            | Self::Host(_)
            | Self::OtherHost
            | Self::ConnectBody
            | Self::CapsuleContent
            | Self::Coding
            | Self::NotProxied
            | Self::Scheme
            | Self::Malformed => (S::BAD_REQUEST, O::BadRequest, MALFORMED, REQUEST),
            Self::LastHop => (S::FORBIDDEN, O::BadRequest, DENIED, NO_FORWARDS),
            Self::HeaderTooLarge => (S::REQUEST_HEADER_FIELDS_TOO_LARGE, O::HeaderTooLarge, MALFORMED, FEWER),
            Self::HeaderTimeout => (S::REQUEST_TIMEOUT, O::HeaderTimeout, MALFORMED, HEADER_AT_ONCE),
            Self::TooMany => (S::SERVICE_UNAVAILABLE, O::TooMany, DENIED, LATER),
            Self::SourceLimit => (S::TOO_MANY_REQUESTS, O::SourceLimit, DENIED, CLOSE),
            // Never sent: no answer is possible before the handshake.
            Self::SourceHandshakes => (S::TOO_MANY_REQUESTS, O::SourceHandshakes, DENIED, UNREAD),
            // Never sent: the handshake failed.
            Self::ClientCertificate => (S::FORBIDDEN, O::ClientCertificate, DENIED, UNREAD),
            Self::SourceRefusals(_) => (S::TOO_MANY_REQUESTS, O::SourceRefusals, DENIED, SLOWER),
            Self::Displaced => (S::SERVICE_UNAVAILABLE, O::Displaced, DENIED, AT_ONCE),
        }
    }
}

fn more(lever: Lever) -> &'static str {
    match lever {
        Lever::Operator => {
            "The gateway's operator decides which targets it reaches, by [egress] in its configuration."
        }
        Lever::OpenEgress => "To reach any address and port, start it again as: postern up --open-egress",
    }
}
