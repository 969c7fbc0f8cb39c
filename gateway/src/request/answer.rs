//! HTTP responses to refusals and to CONNECT requests that open a tunnel.

use crate::request::deny::{AskedIn, Refusal, Verdict};
use crate::request::forward::ForwardedBody;
use bytes::Bytes;
use http::header::{
    CONTENT_TYPE, HeaderName, HeaderValue, PROXY_AUTHENTICATE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode, Version};
use http_body_util::{Either, Empty, Full};
use postern_proxy::headers::quoted;
use postern_proxy::udp::{CAPSULE_PROTOCOL, CAPSULES, set_upgraded};

/// Body of a response: a sentence, nothing, or the body of a target's answer.
pub(crate) type Body = Either<Either<Full<Bytes>, Empty<Bytes>>, ForwardedBody>;

/// Field that names the hop that answered, and the reason (RFC 9209, section 2).
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
const OWN_NAME: &str = "postern";

/// Returns the answer for an open tunnel: 200 without a body (RFC 9110, section 9.3.6).
pub(crate) fn opened() -> Response<Body> {
    let mut response = Response::new(Either::Left(Either::Right(Empty::new())));
    response.headers_mut().insert(PROXY_STATUS, HeaderValue::from_static(OWN_NAME));
    response
}

/// Returns the answer for an open tunnel of datagrams, to a request in `version`: 200, or 101 in HTTP/1.1 (RFC 9298, sections 3.3
/// and 3.5).
pub(crate) fn opened_udp(version: Version) -> Response<Body> {
    let mut response = opened();
    if version == Version::HTTP_2 {
        response.headers_mut().insert(CAPSULE_PROTOCOL, CAPSULES);
    } else {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        set_upgraded(response.headers_mut());
    }
    response
}

/// Returns the answer to a refusal. `challenge` is the value of Proxy-Authenticate, which every 407 contains, and of
/// WWW-Authenticate where `asked_in` requires it.
pub(crate) fn refused(
    refusal: &Refusal,
    challenge: Option<HeaderValue>,
    asked_in: AskedIn,
) -> Response<Body> {
    let (verdict, status, body) = written(refusal, asked_in);
    let mut response = Response::new(Either::Left(Either::Left(Full::new(Bytes::from(body)))));
    *response.status_mut() = verdict.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Ok(value) = HeaderValue::from_str(&status) {
        headers.insert(PROXY_STATUS, value);
    }
    if let (true, Some(challenge)) = (refusal.needs_challenge(), challenge) {
        if asked_in != AskedIn::Proxy {
            headers.insert(WWW_AUTHENTICATE, challenge.clone());
        }
        headers.insert(PROXY_AUTHENTICATE, challenge);
    }
    headers.extend(verdict.retry_after.map(|seconds| (RETRY_AFTER, seconds.into())));
    response
}

/// Returns a refusal as bytes, for connections that hyper has given up or never received.
pub(crate) fn refused_raw(refusal: &Refusal) -> Vec<u8> {
    let (verdict, status, body) = written(refusal, AskedIn::Proxy);
    let retry = verdict.retry_after.map_or_else(String::new, |seconds| format!("retry-after: {seconds}\r\n"));
    format!(
        "HTTP/1.1 {}\r\nproxy-status: {status}\r\n{retry}content-type: text/plain; charset=utf-8\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        verdict.status,
        body.len(),
    )
    .into_bytes()
}

/// Returns the answer to a refusal, with its Proxy-Status and its body.
fn written(refusal: &Refusal, asked_in: AskedIn) -> (Verdict, String, String) {
    let verdict = refusal.verdict(asked_in);
    let Verdict { error, details, advice, .. } = &verdict;
    let status = format!("{OWN_NAME}; error={error}; details=\"{}\"", quoted(details));
    let mut chars = details.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let body = format!("{first}{}.\n{advice}\n", chars.as_str());
    (verdict, status, body)
}
