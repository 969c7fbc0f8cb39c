//! Every refusal and its answer: the one place that chooses status codes.
//!
//! A refusal is a value that travels up from the stage that found it. What the client reads (status, Proxy-Status of
//! RFC 9209, a body with what to do next) is chosen here; what the operator reads is the outcome counter.

use crate::config::Lever;
use crate::observe::labels::Outcome;
use crate::request::egress::PolicyRefusal;
use http::StatusCode;
use postern_daemon::rates::AboveRate;
use postern_proxy::headers::HostFault;
use postern_proxy::plain::AnswerFault;
use postern_proxy::target::TargetError;
use postern_spend::Unknown;
use postern_token::header::AuthorizationError;
use postern_token::{KeyRefusal, TokenType};

/// When to come back after a 503 or 429 that knows no better.
const RETRY_SECONDS: u64 = 1;
/// A forged token of type 1 costs 1.1 ms, and any other refusal less than 0.1 ms.
const DEAR: u32 = 20;

/// Why a request is not let through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// No `Proxy-Authorization` field.
    NoToken,
    /// Only credentials of other schemes.
    OtherScheme,
    /// Our scheme, but not a token.
    MalformedToken(AuthorizationError),
    /// A token of a type that is not accepted here.
    TokenType(TokenType),
    /// A token of a key that is not ours now.
    Key(KeyRefusal),
    /// The signature of a token of this type is wrong.
    BadSignature(TokenType),
    /// Too many tokens wait that are dear to verify. This one was not verified.
    Crowded,
    /// The token was spent before.
    AlreadySpent,
    /// A token for another challenge, or for a mark that the store does not know any more.
    Void,
    /// The store gave no verdict.
    StoreUnknown(Unknown),
    /// The store is known to give no verdicts: the request was refused before its token was read.
    StoreDown(Unknown),
    /// No issuer key is in use, so no token can be checked.
    NoKeys,
    /// The target is not allowed.
    Policy(PolicyRefusal),
    /// The target's name has no address.
    Unresolved,
    /// Resolving the target's name took too long, or the resolver failed.
    ResolveTimeout,
    /// The target refused the connection.
    ConnectionRefused,
    /// The target cannot be reached.
    Unreachable,
    /// There is no local address to reach the target from.
    NoSource,
    /// The target did not answer in time.
    DialTimeout,
    /// The proxy that all tunnels go on through is known to be away: the request was refused before its token was read.
    NextHopAway,
    /// The proxy that all tunnels go on through is known to lead in a circle, or a tunnel to this target came back: the request was
    /// refused before its token was read.
    Circle,
    /// The proxy that the tunnel was to go on through cannot be used.
    NextHop,
    /// That proxy does not open the tunnel.
    NextHopRefused,
    /// The request has come through this gateway before, or leads back to one that it has come through.
    Loop,
    /// The target's answer to a plain `http://` request cannot be passed on.
    Upstream(AnswerFault),
    /// The target's answer to a plain `http://` request did not begin in time.
    UpstreamTimeout,
    /// The body of a plain `http://` request is not valid, or the client broke it off.
    BodyBroken,
    /// The client did not send the body of a plain `http://` request in time.
    BodyTimeout,
    /// The target cannot be read.
    Target(TargetError),
    /// More than one `Proxy-Authorization` field with our scheme.
    SeveralAuthorizations,
    /// The `Host` field.
    Host(HostFault),
    /// A `Host` field beside an `:authority` that names something else.
    OtherHost,
    /// A CONNECT that announces a body.
    ConnectBody,
    /// A body in another transfer coding than chunked.
    Coding,
    /// A TRACE or OPTIONS that this proxy is the last to get.
    LastHop,
    /// Neither CONNECT nor an absolute `http://` URL.
    NotProxied,
    /// An absolute URL with another scheme than http.
    Scheme,
    /// Not HTTP/1, or no PROXY header from a load balancer.
    Malformed,
    /// The header is too large.
    HeaderTooLarge,
    /// The header took too long, or the PROXY header of a load balancer did.
    HeaderTimeout,
    /// Too many connections.
    TooMany,
    /// Too many connections of one source.
    SourceLimit,
    /// Too many TLS handshakes of one source.
    SourceHandshakes,
    /// No certificate of an authority that the operator trusts for clients.
    ClientCertificate,
    /// Too many refused requests of one source. This one was not read.
    SourceRefusals(AboveRate),
    /// Another connection needed the place.
    Displaced,
}

/// The answer to a refusal.
pub(crate) struct Verdict {
    pub(crate) status: StatusCode,
    /// The error type of RFC 9209, section 2.3.
    pub(crate) error: &'static str,
    /// When to come back, in seconds.
    pub(crate) retry_after: Option<u64>,
    /// What was wrong; also the `details` of Proxy-Status.
    pub(crate) details: String,
    /// What to do next.
    pub(crate) advice: &'static str,
}

impl Refusal {
    /// The answer to this refusal.
    pub(crate) fn verdict(&self) -> Verdict {
        let (status, _, error, advice) = self.row();
        let retry_after = match self {
            Self::SourceRefusals(above) => Some(above.seconds),
            _ if status == StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_SECONDS),
            _ if status == StatusCode::TOO_MANY_REQUESTS => Some(RETRY_SECONDS),
            _ => None,
        };
        Verdict { status, error, retry_after, details: self.details(), advice }
    }

    /// Whether it counts against the client's source. Limits do not: their answers cost the least there is, and
    /// whoever is limited would be so for ever.
    pub(crate) fn is_of_client(&self) -> bool {
        let status = self.row().0;
        status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS
    }

    /// How many refusals it counts as against the client's source, by the CPU time that it cost.
    pub(crate) fn cost(&self) -> u32 {
        match self {
            Self::BadSignature(TokenType::VoprfP384) => DEAR,
            _ => 1,
        }
    }

    /// Whether its answer has to name a challenge.
    pub(crate) fn needs_challenge(&self) -> bool {
        self.row().0 == StatusCode::PROXY_AUTHENTICATION_REQUIRED
    }

    /// How the refusal is counted.
    pub(crate) fn outcome(&self) -> Outcome {
        self.row().1
    }

    /// The table.
    fn row(&self) -> (StatusCode, Outcome, &'static str, &'static str) {
        use Outcome as O;
        use StatusCode as S;
        const DENIED: &str = "http_request_denied";
        const MALFORMED: &str = "http_request_error";
        const PRESENT: &str = "Get a token for the challenge in Proxy-Authenticate from its issuer and send it as \
                               Proxy-Authorization: PrivateToken token=\"...\".";
        const FRESH: &str =
            "Get a fresh token for the challenge in Proxy-Authenticate; this one will never be accepted.";
        const RETRY: &str = "Try again later with a fresh token: this one may have been spent.";
        const UNREAD: &str = "Try again later. No token was read, so none is lost.";
        const SLOWER: &str = "Try again after the number of seconds in Retry-After, and send a token that the gateway \
                              accepts with each request. This request was not read, so no token is lost.";
        const TARGET: &str = "Check the target, or try again with a fresh token: this attempt has spent one.";
        const LOOP: &str =
            "Report it to the gateway's operator: the next hops of the gateways lead in a circle.";
        const BODY: &str = "Send the whole body, with a fresh token: this attempt has spent one.";
        const REQUEST: &str = "Send CONNECT host:port HTTP/1.1, or a request with an absolute http:// URL.";
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
            Self::Circle => (S::LOOP_DETECTED, O::NextHopDown, "proxy_loop_detected", UNREAD),
            Self::NextHop => (S::BAD_GATEWAY, O::DialRefused, "destination_unavailable", RETRY),
            Self::NextHopRefused => (S::FORBIDDEN, O::PolicyRefused, DENIED, TARGET),
            Self::Loop => (S::LOOP_DETECTED, O::Looped, "proxy_loop_detected", LOOP),
            Self::Upstream(fault) => (S::BAD_GATEWAY, O::UpstreamBroken, fault.error(), TARGET),
            Self::UpstreamTimeout => (S::GATEWAY_TIMEOUT, O::UpstreamBroken, "http_response_timeout", TARGET),
            Self::BodyBroken => (S::BAD_REQUEST, O::BodyFailed, MALFORMED, BODY),
            Self::BodyTimeout => (S::REQUEST_TIMEOUT, O::BodyFailed, MALFORMED, BODY),
            Self::Target(_)
            | Self::SeveralAuthorizations
            | Self::Host(_)
            | Self::OtherHost
            | Self::ConnectBody
            | Self::Coding => (S::BAD_REQUEST, O::BadRequest, MALFORMED, REQUEST),
            Self::NotProxied | Self::Scheme | Self::Malformed => {
                (S::BAD_REQUEST, O::BadRequest, MALFORMED, REQUEST)
            }
            Self::LastHop => (
                S::FORBIDDEN,
                O::BadRequest,
                DENIED,
                "Leave Max-Forwards out to reach the target; no token was spent.",
            ),
            Self::HeaderTooLarge => (
                S::REQUEST_HEADER_FIELDS_TOO_LARGE,
                O::HeaderTooLarge,
                MALFORMED,
                "Send fewer or shorter header fields.",
            ),
            Self::HeaderTimeout => {
                (S::REQUEST_TIMEOUT, O::HeaderTimeout, MALFORMED, "Send the whole header at once.")
            }
            Self::TooMany => {
                (S::SERVICE_UNAVAILABLE, O::TooMany, DENIED, "Try again later; no token was spent.")
            }
            Self::SourceLimit => (
                S::TOO_MANY_REQUESTS,
                O::SourceLimit,
                DENIED,
                "Close connections without a tunnel, or try again later; no token was spent.",
            ),
            // Never read: there is nothing to answer before the handshake.
            Self::SourceHandshakes => (S::TOO_MANY_REQUESTS, O::SourceHandshakes, DENIED, UNREAD),
            // Never read: the handshake failed.
            Self::ClientCertificate => (S::FORBIDDEN, O::ClientCertificate, DENIED, UNREAD),
            Self::SourceRefusals(_) => (S::TOO_MANY_REQUESTS, O::SourceRefusals, DENIED, SLOWER),
            Self::Displaced => (
                S::SERVICE_UNAVAILABLE,
                O::Displaced,
                DENIED,
                "Try again, and send the whole request at once; no token was spent.",
            ),
        }
    }

    /// What was wrong, without a byte of the request in it.
    pub(crate) fn details(&self) -> String {
        match self {
            Self::NoToken => "no token was presented".into(),
            Self::OtherScheme => "Proxy-Authorization has no PrivateToken credentials".into(),
            Self::MalformedToken(error) => error.to_string(),
            Self::TokenType(found) => {
                format!("tokens of type {found} are not accepted here; the challenge has the types that are")
            }
            Self::Key(refusal) => refusal.to_string(),
            Self::BadSignature(_) => "the token's signature is not valid".into(),
            Self::AlreadySpent => "token already spent".into(),
            Self::Void => {
                "the token is for another challenge, or for records that the gateway has lost".into()
            }
            Self::StoreUnknown(unknown) | Self::StoreDown(unknown) => unknown.to_string(),
            Self::Crowded => "too many tokens of this type wait to be verified".into(),
            Self::NoKeys => "no issuer key is in use".into(),
            Self::Policy(refusal) => refusal.to_string(),
            Self::Unresolved => "the target's name has no address".into(),
            Self::ResolveTimeout => "the target's name could not be resolved in time".into(),
            Self::ConnectionRefused => "the target refused the connection".into(),
            Self::Unreachable => "the target cannot be reached".into(),
            Self::NoSource => "this gateway has no address to reach the target from".into(),
            Self::DialTimeout => "the target did not answer in time".into(),
            Self::NextHop | Self::NextHopAway => {
                "the proxy that this gateway reaches the target through cannot be used now".into()
            }
            Self::NextHopRefused => {
                "the proxy that this gateway reaches the target through does not open this tunnel".into()
            }
            Self::Loop => "the request came back to a gateway that it had passed".into(),
            Self::Circle => "the request would come back to this gateway: its next hops lead in a circle".into(),
            Self::Upstream(fault) => fault.to_string(),
            Self::UpstreamTimeout => "the target did not answer the request in time".into(),
            Self::BodyBroken => "the request's body is not valid or broke off".into(),
            Self::BodyTimeout => "the request's body did not arrive in time".into(),
            Self::Target(error) => error.to_string(),
            Self::SeveralAuthorizations => "more than one Proxy-Authorization field presents a token".into(),
            Self::Host(fault) => fault.to_string(),
            Self::OtherHost => "the Host field differs from :authority (RFC 9113, section 8.3.1)".into(),
            Self::ConnectBody => "a CONNECT request has no body".into(),
            Self::Coding => "the request's body has another transfer coding than chunked".into(),
            Self::LastHop => {
                "Max-Forwards is 0, and this proxy has no answer of its own to TRACE and OPTIONS".into()
            }
            Self::NotProxied => "this is a forward proxy, not a web server".into(),
            Self::Scheme => "only http:// URLs are forwarded; use CONNECT for anything else".into(),
            Self::Malformed => "the request is not valid HTTP/1.1; in a URL, \", <, >, ` and what is not ASCII are written with a \
                                percent sign"
                .into(),
            Self::HeaderTooLarge => "the request's header is too large".into(),
            Self::HeaderTimeout => "the request's header did not arrive in time".into(),
            Self::TooMany => "too many connections are open".into(),
            Self::SourceLimit => "too many connections are open from this address or network".into(),
            Self::SourceHandshakes => "too many TLS handshakes from this address or network".into(),
            Self::ClientCertificate => {
                "the client showed no certificate of tls.client_ca that holds now".into()
            }
            Self::SourceRefusals(_) => {
                "too many requests from this address or network were refused a moment ago".into()
            }
            Self::Displaced => "the request was not complete when another connection needed its place".into(),
        }
    }
}

impl From<AnswerFault> for Refusal {
    fn from(fault: AnswerFault) -> Self {
        Self::Upstream(fault)
    }
}

/// How more targets are allowed.
fn more(lever: Lever) -> &'static str {
    match lever {
        Lever::Operator => {
            "The gateway's operator decides which targets it reaches, by [egress] in its configuration."
        }
        Lever::OpenEgress => "To reach any address and port, start it again as: postern up --open-egress",
    }
}
